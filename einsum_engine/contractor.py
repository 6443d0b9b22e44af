"""One expression with its options, ready for operands of any strides and dtypes.

A `Contractor` owns what does not depend on the arrays (the expression, the contraction order) and a bounded cache
of routes for what does. `einsum` and compiled objects are thin layers over it.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np

from . import config, dtypes, measured
from .cost import Machine
from .errors import EngineTypeError, EngineValueError
from .executor import NO_CONSTANTS, address
from .explain import explain
from .expr import Expr, Term, from_terms, quoted
from .kernels.isa import active_isa
from .lru import BoundedCache
from .memory import empty
from .options import Options
from .plan import Plan
from .planners.build import PlanRequest, build_plan
from .planners.constant_first import constants_first
from .planners.order import Order, find_order, leaner_orders
from .profile import Profile
from .records import lazy
from .routes import ExternalRoute, NativeRoute, SpreadRoute, ViewRoute, ZeroRoute, bound, contiguous_strides

# The dtype and the strides, in bytes, of an operand: what a plan depends on besides shapes.
Kind = tuple[np.dtype, tuple[int, ...]]
# Plans kept per expression, one for each combination of strides, dtypes and kind of output.
ROUTES = 64
# Orders tried where a limit in bytes is not met at once.
LEANER_ORDERS = 16
# Elements of an operand from which on a contraction takes so long that to read its address does not count.
LARGE = 1 << 14


class Contractor:
    """``constants`` are positions of operands that never change; ``order`` is searched where it is not given.

    ``machine``: the constants to plan with, for its instruction set; None: those of this machine.
    """

    def __init__(
        self,
        expr: Expr,
        options: Options,
        *,
        constants: tuple[int, ...] = (),
        order: Order | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.expr = expr
        self.options = options
        self.constants = constants
        self.view = ViewRoute(expr) if not (options.copy or options.conj) and ViewRoute.exists(expr) else None
        self._core = _unrepeated(expr)
        self._order = order
        self._machine = machine
        self._routes = BoundedCache(ROUTES)
        self._check_positions()
        if options.optimize != "auto":
            # An unknown value is an error, also where there is nothing to search.
            self._order = self.order

    def _check_positions(self) -> None:
        count = len(self.expr.inputs)
        for name, positions in (("conj", self.options.conj), ("constants", self.constants)):
            if positions and positions[-1] >= count:
                raise EngineValueError(
                    f"{name} names operand {positions[-1]}, but {quoted(self.expr.text)} has {count}, counted from 0"
                )

    @property
    def order(self) -> Order:
        """The contraction order, searched once."""
        if self._order is None:
            options, limit = self.options, self.options.memory_limit
            problem = self._terms, self._core.output, self.expr.sizes
            goal = {"optimize": options.optimize, "minimize": options.minimize}
            elements = "max_input" if limit.max_input else limit.elements
            order = find_order(*problem, memory_limit=elements, max_time=options.max_time, text=self.expr.text, **goal)
            if self.constants and self._searched(order):
                order = constants_first(order, *problem, self.constants, limited=elements is not None, **goal)
            self._order = order
        return self._order

    def _searched(self, order: Order) -> bool:
        """Whether an order was left to a search that may take its time, with no limit that only a plan can tell."""
        options = self.options
        free = options.max_time is None and options.memory_limit.nbytes is None
        return free and isinstance(options.optimize, str) and order.optimizer != "left-to-right"

    @lazy
    def _alike(self) -> tuple[int, ...]:
        """Of the operands, as `same` looks at them: calls ask, plans do not."""
        return _alike(self.expr)

    @lazy
    def _large(self) -> tuple[int, ...]:
        return tuple([position for position in self._alike if math.prod(self.expr.shapes[position]) >= LARGE])

    @property
    def machine(self) -> Machine:
        """The constants that plans are made with, the same for all of them."""
        isa = active_isa()
        if self._machine is None or self._machine.isa != isa.name:
            self._machine = measured.machine(isa)
        return self._machine

    @property
    def _terms(self) -> tuple[Term, ...]:
        return _without_repeats(self.expr.inputs)

    def call(self, arrays: Sequence[np.ndarray], out: np.ndarray | None = None, alpha: Any = 1, beta: Any = 0) -> Any:
        """``alpha * result (+ beta * out)``; the array may be a view of the operand where `view` allows it.

        Operands are NumPy arrays of the shapes of the expression. Without ``out`` the result is a fresh array.
        """
        operands, same = tuple([(array.dtype, array.strides) for array in arrays]), self.same(arrays)
        if out is not None:
            return self._call_into(operands, same, arrays, out, alpha, beta)
        if beta != 0:
            raise EngineValueError(f"{quoted(self.expr.text)}: beta={beta!r} adds to out=, which was not given")
        if alpha == 1:
            result = self.route(operands, same=same).fresh(arrays)
        else:
            route = self.route(operands, scaled=True, same=same)
            result = route.fresh(arrays, self._scalar("alpha", alpha, route.dtype))
        wanted = self.options.dtype
        return result if wanted is None or wanted.isnative else result.astype(wanted)

    def _call_into(
        self,
        operands: tuple[Kind, ...],
        same: tuple[int, ...],
        arrays: Sequence[np.ndarray],
        out: np.ndarray,
        alpha: Any,
        beta: Any,
    ) -> np.ndarray:
        self._check_out(out)
        scaled = not (alpha == 1 and beta == 0)
        route = self.route(operands, (out.dtype, out.strides), scaled, same)
        if scaled:
            alpha, beta = self._scalar("alpha", alpha, route.dtype), self._scalar("beta", beta, out.dtype)
        if route.direct and not _overlaps(out, arrays):
            route.into(arrays, out, alpha, beta)
            return out
        if route.direct:
            # The sums go elsewhere first: writing them would change an operand that is still read.
            result = self._call_into(operands, same, arrays, empty(out.shape, out.dtype), alpha, 0)
        else:
            result = route.fresh(arrays, alpha)
        np.copyto(out, result if beta == 0 else result + beta * out, casting="unsafe")
        return out

    def entry(
        self,
        route: Any,
        kinds: Sequence[Kind],
        alpha: Any,
        *,
        scalar: bool = True,
        constants: Mapping[int, np.ndarray] = NO_CONSTANTS,
    ) -> Any:
        """The quick function of a route for operands of these dtypes and strides, `NativeRoute.entry`. None where the
        result is not the route's, or where ``alpha`` does not fit, which a call says."""
        if not self.options.native:
            return None
        try:
            alpha = alpha if alpha == 1 else self._scalar("alpha", alpha, route.dtype)
        except EngineTypeError:
            return None
        return route.entry(scalar, kinds, alpha, constants)

    def into_entry(
        self,
        arrays: Sequence[np.ndarray],
        out: np.ndarray,
        alpha: Any,
        beta: Any,
        constants: Mapping[int, np.ndarray] = NO_CONSTANTS,
    ) -> Any:
        """A builtin ``f(*arrays, out)`` for exactly such arrays, of which ``constants`` are left out; NotImplemented for
        others. None while there is none."""
        kinds = tuple([(array.dtype, array.strides) for array in arrays])
        scaled = not (alpha == 1 and beta == 0)
        route = self.route(kinds, (out.dtype, out.strides), scaled, same=self.same(arrays))
        if not self.options.native or not isinstance(route, NativeRoute):
            return None
        if scaled:
            alpha, beta = self._scalar("alpha", alpha, route.dtype), self._scalar("beta", beta, out.dtype)
        return route.into_entry(alpha, beta, constants)

    def same(self, arrays: Sequence[np.ndarray]) -> tuple[int, ...]:
        """For each operand the first position that is the same array; empty where each is another one.

        The same is one array handed over twice. Of large arrays, where it is worth to look, also two views of one
        memory with the same shape, strides and dtype.
        """
        alike = self._alike
        if not alike:
            return ()
        if len({id(arrays[position]) for position in alike}) < len(alike):
            return same_arrays(arrays, alike)
        return same_arrays(arrays, self._large) if self._large else ()

    def route(
        self,
        operands: tuple[Kind, ...],
        out: Kind | None = None,
        scaled: bool = False,
        same: tuple[int, ...] = (),
    ) -> Any:
        """The route of operands, and of an ``out``, of these dtypes and strides; made once.

        ``same``, as `same` returns it, may be kept secret: the route computes the same thing, perhaps twice.
        """
        key = _key(operands, out, scaled, same)
        route = self._routes.get(key)
        if route is None:
            route = self._make(operands, out, scaled, same)
            if same and not route.same:
                # Nothing is computed twice: it is the route of any operands.
                plain = _key(operands, out, scaled, ())
                route = self._routes.get(plain) or route
                self._routes.put(plain, route)
            self._routes.put(key, route)
        return route

    def profiles(self) -> Iterator[tuple[Plan, Profile]]:
        """The plans that calls were measured on, and what was found, where the options ask for it."""
        if self.options.profile:
            for route in dict.fromkeys(self._routes.values()):  # one may have two keys
                yield from route.profiles()

    def _check_out(self, out: np.ndarray) -> None:
        if out.shape != self.expr.output_shape:
            raise EngineValueError(
                f"{quoted(self.expr.text)}: out= has shape {out.shape}, the result has {self.expr.output_shape}"
            )
        if not out.flags.writeable:
            raise EngineValueError(f"{quoted(self.expr.text)}: out= is read-only")

    def result_dtype(self, operands: Sequence[np.dtype], out: np.dtype | None = None) -> np.dtype:
        """The dtype of the result, in native byte order, by NumPy's rules; ``out`` takes part as it does there.

        ``accumulate=`` widens an integer result too, where ``dtype=`` does not fix it: to wrap a wide sum back to a
        narrow integer would undo it. Floating point is only rounded.
        """
        options, text = self.options, self.expr.text
        result = dtypes.result_type(*operands, dtype=options.dtype, casting=options.casting, out=out, text=text)
        if options.accumulate is None:
            return result
        dtypes.accumulate_type(result, options.accumulate, text)
        if options.dtype is not None or out is not None or dtypes.row(result).kind not in "iub":
            return result
        return options.accumulate.newbyteorder("=")

    def _scalar(self, name: str, value: Any, dtype: np.dtype) -> Any:
        """``alpha`` or ``beta`` as a scalar of ``dtype``; an error where that would change it."""
        kind = dtypes.row(dtype).kind
        if kind == "external":
            return value
        fits = kind == "c" or not isinstance(value, (complex, np.complexfloating)) or value.imag == 0
        if fits:
            value = value if kind == "c" else value.real
            with np.errstate(all="ignore"):
                result = np.asarray(value).astype(dtype, casting="unsafe").item()
            fits = kind not in "iub" or result == value
        if not fits:
            raise EngineTypeError(f"{quoted(self.expr.text)}: {name}={value!r} does not fit dtype {dtype}")
        return result

    def _make(self, operands: tuple[Kind, ...], out: Kind | None, scaled: bool, same: tuple[int, ...]) -> Any:
        known = [dtype for dtype, _ in operands]
        dtype = self.result_dtype(known, None if out is None else out[0])
        if self.view is not None and out is None and not scaled and dtype == known[0].newbyteorder("="):
            return self.view
        order = self._memory_order(operands)
        shape = self.expr.output_shape
        if self._core is not self.expr:
            options = self.options.replace(dtype=dtype, copy=True, alpha=1, beta=0)
            inner = Contractor(self._core, options, constants=self.constants, order=self.order, machine=self._machine)
            return SpreadRoute(inner, operands, self.expr, dtype, order, same)
        if 0 in self.expr.sizes.values():  # never to NumPy: its einsum spoils memory for some empty operands
            return ZeroRoute(shape, dtype, order, self._empty_plan(dtype))
        wide = self.options.accumulate
        if _external(*known, dtype, dtype if wide is None else wide):
            options = self.options.replace(order=order)
            return ExternalRoute(self.expr, self.order.path, options, dtype, self._empty_plan(dtype))
        direct = out is not None and out[0] == dtype and not _overlaps_itself(shape, out[1], dtype.itemsize)
        strides = out[1] if direct else None
        if strides is None and order == "F":
            strides = contiguous_strides(shape, dtype.itemsize, order)
        plan = self._plan(operands, dtype, strides, scaled, same, fresh=not direct)
        return NativeRoute(plan, bound(plan, self.options.profile), shape, dtype, order, direct)

    def _memory_order(self, operands: tuple[Kind, ...]) -> str:
        """``C`` or ``F`` for a fresh result; ``A`` is F where all operands are, and ``K`` promises nothing."""
        order = self.options.order
        if order == "A":
            fortran = [_is_fortran(shape, *kind) for shape, kind in zip(self.expr.shapes, operands)]
            return "F" if all(fortran) else "C"
        return "F" if order == "F" else "C"

    def _empty_plan(self, dtype: np.dtype) -> Plan:
        """The plan of what no kernel runs."""
        nbytes = math.prod(self.expr.output_shape) * dtype.itemsize
        return Plan(
            expr=self.expr,
            path=self.order.path,
            buffers=(),
            steps=(),
            dtype=dtype.name,
            compute_dtype=dtype.name,
            isa=active_isa().name,
            threads=1,
            flops=0,
            bytes_moved=nbytes,
            output_bytes=nbytes,
            arena_bytes=0,
            table_bytes=0,
        )

    def _plan(
        self,
        operands: tuple[Kind, ...],
        dtype: np.dtype,
        out_strides: tuple[int, ...] | None,
        scaled: bool,
        same: tuple[int, ...],
        fresh: bool,
    ) -> Plan:
        """The plan of these operands: of the first order tried that meets a limit in bytes.

        What is computed once for several uses is kept for longer, and what is fused reads more values at a time, so
        under a limit both are also tried without that.

        ``fresh``: the result is memory of the call, also where it has strides of its own (order F).
        """
        limit = self.options.memory_limit
        best = None
        limited = limit.nbytes is not None
        sharing, fusing = [same, ()] if same and limited else [same], [True, False] if limited else [True]
        ways = ((order, shared, fuse) for order in self._orders() for shared in sharing for fuse in fusing)
        for order, shared, fuse in ways:
            machine = self.machine
            options = {"order": order, "same": shared, "fuse": fuse, "isa": machine.isa}
            request = self.request(operands, dtype, out_strides=out_strides, scaled=scaled, **options)
            plan = build_plan(request, machine)
            if fresh and out_strides is not None:
                plan = replace(plan, output_bytes=math.prod(self.expr.output_shape) * dtype.itemsize)
            if limit.nbytes is None or plan.peak_bytes <= limit.nbytes:
                self._order = order
                if config.get("EINSUM_ENGINE_DEBUG"):
                    print(explain(plan), file=sys.stderr)
                return plan
            best = plan.peak_bytes if best is None else min(best, plan.peak_bytes)
        raise EngineValueError(
            f"{quoted(self.expr.text)}: memory_limit={limit.text!r} is {limit.nbytes} bytes, and the best order found"
            f" needs {best} bytes"
        )

    def _orders(self) -> Iterator[Order]:
        """The order asked for; then, under a limit in bytes, others of ever smaller intermediates."""
        yield self.order
        if self.options.memory_limit.nbytes is not None and isinstance(self.options.optimize, str):
            below = self.order.largest - 1
            leaner = leaner_orders(
                self._terms,
                self._core.output,
                self.expr.sizes,
                below=below,
                max_time=self.options.max_time,
                minimize=self.options.minimize,
            )
            yield from islice(leaner, LEANER_ORDERS)

    def _accumulate(self, dtype: np.dtype) -> str | None:
        wide = self.options.accumulate
        return None if wide is None or dtypes.row(wide).name == dtype.name else dtypes.row(wide).name

    def request(
        self,
        operands: Sequence[Kind],
        dtype: np.dtype,
        *,
        out_strides: tuple[int, ...] | None = None,
        scaled: bool = False,
        order: Order | None = None,
        same: tuple[int, ...] = (),
        fuse: bool = True,
        isa: str | None = None,
    ) -> PlanRequest:
        """What the planner is asked for operands of these dtypes and strides, on this machine."""
        names, of_complex, byteswapped = _stored(tuple([known for known, _ in operands]))
        return PlanRequest(
            expr=self._core,
            dtypes=names,
            strides=tuple([strides for _, strides in operands]),
            out_strides=out_strides,
            dtype=dtypes.row(dtype).name,
            accumulate=self._accumulate(dtype),
            conj=tuple([position for position in self.options.conj if position in of_complex]),
            scaled=scaled,
            threads=config.threads(self.options.threads),
            isa=isa or active_isa().name,
            order=self.order if order is None else order,
            constants=self.constants,
            layouts=self.options.layouts,
            byteswapped=byteswapped,
            same=same,
            fuse=fuse,
        )


def _key(operands: tuple[Kind, ...], out: Kind | None, scaled: bool, same: tuple[int, ...]) -> tuple:
    """What a route is looked up by: in most calls by the operands alone, each of which is a pair."""
    return operands if out is None and not scaled and not same else (scaled, out, operands, same)


@lru_cache(maxsize=256)
def _external(*known: np.dtype) -> bool:
    """Whether there are no kernels for some of these dtypes."""
    return any([dtypes.row(dtype).kind == "external" for dtype in known])


@lru_cache(maxsize=256)
def _without_repeats(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Each index of a term once."""
    return tuple([tuple(dict.fromkeys(term)) for term in terms])


@lru_cache(maxsize=256)
def _stored(operands: tuple[np.dtype, ...]) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Names of the dtypes of operands, and the positions of those that are complex and of those in the other byte order."""
    names = tuple([dtypes.row(dtype).name for dtype in operands])
    of_complex = tuple([position for position, dtype in enumerate(operands) if dtype.kind == "c"])
    return names, of_complex, tuple([position for position, dtype in enumerate(operands) if not dtype.isnative])


def _unrepeated(expr: Expr) -> Expr:
    """``expr`` itself, or with each output index once."""
    output = tuple(dict.fromkeys(expr.output))
    if len(output) == len(expr.output):
        return expr
    return from_terms(expr.inputs, output, expr.shapes, text=expr.text)


def _alike(expr: Expr) -> tuple[int, ...]:
    """Positions of operands that may be the same array so that something is computed twice."""
    if len(expr.inputs) == 2 and set(expr.inputs[0]) ^ set(expr.inputs[1]) <= set(expr.output):
        return ()  # a single step
    counts: dict[tuple[int, ...], int] = {}
    for shape in expr.shapes:
        counts[shape] = counts.get(shape, 0) + 1
    return tuple([position for position, shape in enumerate(expr.shapes) if counts[shape] > 1])


def same_arrays(arrays: Sequence[np.ndarray | None], positions: Iterable[int]) -> tuple[int, ...]:
    """`Contractor.same` by memory, of the operands at ``positions``, each of which is an array."""
    first: dict[tuple, int] = {}
    found = list(range(len(arrays)))
    repeats = False
    for position in positions:
        array = arrays[position]
        key = (address(array), array.shape, array.strides, array.dtype)
        found[position] = first.setdefault(key, position)
        repeats = repeats or found[position] != position
    return tuple(found) if repeats else ()


def _is_fortran(shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...]) -> bool:
    wanted = contiguous_strides(shape, dtype.itemsize, "F")
    return all(size == 1 or stride == want for size, stride, want in zip(shape, strides, wanted))


def _overlaps(out: np.ndarray, arrays: Sequence[np.ndarray]) -> bool:
    return any([np.may_share_memory(out, array) for array in arrays])


def _overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Whether two elements of an array share bytes, or may."""
    reach = itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape) if size > 1):
        if stride < reach:
            return True
        reach += stride * (size - 1)
    return False
