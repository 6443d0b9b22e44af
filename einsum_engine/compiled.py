"""`Compiled`: a contraction that was planned once and is called many times."""

from __future__ import annotations

from operator import is_not
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from . import serialize
from .arrays import adapt_all, adapt_out
from .contract_traced import contract_traced, program_of, readable, traced_among
from .contractor import Contractor, Kind
from .cost import Machine
from .errors import EngineValueError
from .explain import explain
from .expr import Expr, quoted
from .files import write_whole
from .options import Options, parse_factor
from .plan import Plan, Step
from .planners.order import Order
from .profile import Profile
from .routes import NativeRoute

if TYPE_CHECKING:
    from .ir import Program


class Compiled:
    """A callable ``f(*arrays, out=None)``, made by `einsum_engine.compile`.

    Operands have the shapes of the expression. Those with the dtypes and strides that it was compiled for run at
    once; others are planned at their first call (same order of contraction, nothing is compiled) and remembered.
    Results are always fresh arrays. Several threads may call it at once; it pickles and copies.
    """

    __slots__ = (
        "_contractor", "_kinds", "_same", "_constants", "_variables", "_variants", "_entry", "_into", "__weakref__"
    )  # fmt: skip

    def __init__(
        self,
        expr: Expr,
        options: Options,
        kinds: Sequence[Kind],
        *,
        constants: Mapping[int, np.ndarray] | None = None,
        order: Order | None = None,
        machine: Machine | None = None,
        same: tuple[int, ...] = (),
    ) -> None:
        self._constants = _merged(dict(sorted(constants.items()))) if constants else {}
        # Views are for `einsum`: a compiled call returns a fresh array.
        self._contractor = Contractor(
            expr, options.replace(copy=True), constants=tuple(self._constants), order=order, machine=machine
        )
        self._kinds = tuple(kinds)
        # Which operands are one array; of constants, those of the same content are.
        self._same = self._same_constants(same or range(len(expr.inputs))) if self._constants else same
        self._variables = tuple(sorted(set(range(len(expr.inputs))) - self._constants.keys()))
        self._variants: dict[tuple[int, ...], Contractor] = {}
        self._entry: Callable[..., Any] = _not_yet
        self._into: Callable[..., Any] = _no_entry

    def __call__(self, *arrays: Any, out: Any = None, alpha: Any = None, beta: Any = None) -> Any:
        """``alpha * einsum(arrays) (+ beta * out)``: ``arrays`` are the operands that are not constant, in order.

        The result has the type of the operands; without axes it is a scalar. With ``out`` it is written there, and
        ``out`` returned; ``beta=0`` never reads it. ``alpha`` and ``beta`` default to what was compiled.

        Raises `EngineValueError` or `EngineTypeError` (number of operands, shapes, an ``out`` that does not fit), and
        then nothing is written; `EngineMemoryError`.
        """
        if alpha is None and beta is None:
            result = self._entry(*arrays) if out is None else self._into(*arrays, out)
            if result is not NotImplemented:
                return result
        return self._call(arrays, out, alpha, beta)

    def _call(self, arrays: Sequence[Any], out: Any, alpha: Any, beta: Any) -> Any:
        expr, options = self._contractor.expr, self._contractor.options
        if len(arrays) != len(self._variables):
            raise self._count_error(len(arrays))
        if self._entry is _not_yet and out is None and alpha is None and beta is None:
            self._entry = self._quick()
            result = self._entry(*arrays)
            if result is not NotImplemented:
                return result
        if traced_among((*arrays, out)):
            return self._traced(arrays, out, alpha, beta)
        operands, conj, wrap = adapt_all(self._with_constants(arrays), expr.text)
        own = alpha is None and beta is None
        if own and out is None and not conj:
            given = [operands[position] for position in self._variables]
            if any(map(is_not, given, arrays)):
                # Lists and arrays of other libraries are NumPy's by now.
                result = self._entry(*given)
                if result is not NotImplemented:
                    return result if wrap is None else wrap(np.asarray(result))
        _check_shapes(operands, expr)
        contractor = self._contractor if not conj else self._conjugated(conj)
        alpha = options.alpha if alpha is None else parse_factor("alpha", alpha)
        beta = options.beta if beta is None else parse_factor("beta", beta)
        if out is None:
            return hand_back(contractor.call(operands, None, alpha, beta), wrap)
        target = adapt_out(out, expr.text)
        contractor.call(operands, target, alpha, beta)
        if own and wrap is None and not conj:
            self._into = contractor.into_entry(operands, target, alpha, beta, self._constants) or _no_entry
        return out

    def _traced(self, operands: Sequence[Any], out: Any, alpha: Any, beta: Any) -> Any:
        options = self._contractor.options
        alpha, beta = options.alpha if alpha is None else alpha, options.beta if beta is None else beta
        with readable("compiled einsum", self._with_constants(operands)) as arrays:
            _check_shapes(arrays, self._contractor.expr)
            return contract_traced(self._contractor, arrays, out, alpha, beta)

    def _with_constants(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if not self._constants:
            return arrays
        variables = iter(arrays)
        count = len(self._contractor.expr.inputs)
        return [
            self._constants[position] if position in self._constants else next(variables) for position in range(count)
        ]

    def _conjugated(self, conj: tuple[int, ...]) -> Contractor:
        """The same contraction where the operands ``conj`` came lazily conjugated from their library."""
        found = self._variants.get(conj)
        if found is None:
            base = self._contractor
            options = base.options.replace(conj=tuple(sorted(set(base.options.conj) ^ set(conj))))
            found = Contractor(
                base.expr, options, constants=base.constants, order=base.order, machine=base.machine
            )
            self._variants[conj] = found
        return found

    def _count_error(self, given: int) -> EngineValueError:
        text = f"{quoted(self._contractor.expr.text)} takes {len(self._variables)} arrays, {given} were given"
        if self._constants:
            text += f" (operands {', '.join(map(str, self._constants))} are constants)"
        return EngineValueError(text)

    def prepare(self) -> Compiled:
        """Plan now what it was compiled for; otherwise the first call does. Returns the object."""
        self._route()
        return self

    def _quick(self) -> Callable[..., Any]:
        """The function that is tried first in every call. The first of them makes it: a plan that is only looked at, or
        called with ``out``, needs none."""
        route = self._route()
        entry = self._entry_of(route)
        if entry is None:
            return _no_entry
        return self._either(entry) if route.same else entry

    def _entry_of(self, route: Any) -> Callable[..., Any] | None:
        """The quick function of a route, for the operands that are not constant."""
        options = self._contractor.options
        if options.beta != 0:
            return None
        if self._constants and isinstance(route, NativeRoute):
            route.freeze(self._constants)
        return self._contractor.entry(route, self._kinds, options.alpha, constants=self._constants)

    def _either(self, shared: Callable[..., Any]) -> Callable[..., Any]:
        """``shared``, and for calls with an array each a function that is made at the first of them."""
        other: list[Callable[..., Any]] = []

        def entry(*arrays: Any) -> Any:
            result = shared(*arrays)
            if result is not NotImplemented:
                return result
            if not other:
                # No variables are one array; constants are what they are.
                route = self._route(self._same_constants(range(len(self._kinds))))
                other.append(self._entry_of(route) or _no_entry)
            return other[0](*arrays)

        return entry

    def _same_constants(self, same: Sequence[int]) -> tuple[int, ...]:
        """``same`` of the variables, with the constants that are one array."""
        first: dict[int, int] = {}
        found = list(same)
        for position, array in self._constants.items():
            found[position] = first.setdefault(id(array), position)
        return tuple(found) if found != list(range(len(found))) else ()

    def _route(self, same: tuple[int, ...] | None = None) -> Any:
        options = self._contractor.options
        same = self._same if same is None else same
        return self._contractor.route(self._kinds, None, options.alpha != 1, same)

    @property
    def plan(self) -> Plan:
        """The plan for the dtypes and strides that it was compiled for: steps, layouts, flops, bytes."""
        return self._route().plan

    @property
    def steps(self) -> tuple[Step, ...]:
        """The kernel invocations of `plan`, in order."""
        return self.plan.steps

    def explain(self) -> str:
        """A table of `plan`: per step its expression, dimensions, layouts, kernel, flops, bytes and predicted time.

        Compiled with ``profile=True`` and called, it has also the measured time of each step, mean of all calls, and its
        parts in kernel, packing and unpacking; where calls differed in strides or dtypes, one table for each plan.
        """
        tables = [explain(plan, profile) for plan, profile in self.profiles]
        return "\n\n".join(tables) if tables else explain(self.plan)

    @property
    def program(self) -> Program:
        """The contraction as a `Program`: an equation `einsum`, with casts, conjugates and factors around it.

        Its inputs are the operands that are not constant, and with ``beta`` then ``out``, which is written. A path that
        was given has an equation for each step. It says what is computed, not how: `plan` is what calls run.

        >>> from einsum_engine import compile
        >>> print(compile("ij,jk->ik", (2, 3), (3, 4)).program)
        program(%0: float64[2,3], %1: float64[3,4]) {
          %2: float64[2,4] = einsum %0 %1 {subscripts='ij,jk->ik'}
          return %2
        }
        """
        shapes = self._contractor.expr.shapes
        operands = [np.empty(shapes[at], self._kinds[at][0]) for at in self._variables]
        return program_of(self._contractor, self._with_constants, operands)

    @property
    def profiles(self) -> tuple[tuple[Plan, Profile], ...]:
        """Each plan that calls ran, with what was measured of its steps: empty without ``profile=True`` or calls."""
        contractors = (self._contractor, *self._variants.values())
        return tuple(found for contractor in contractors for found in contractor.profiles())

    def to_json(self) -> str:
        """The plan as JSON, readable and enough for `einsum_engine.load` to make the same object again."""
        return serialize.dump(self._state(), self.plan)

    def save(self, path: str | PathLike[str]) -> None:
        """Write `to_json` into a file, as a whole or not at all."""
        write_whole(Path(path), self.to_json().encode())

    def _state(self) -> serialize.State:
        contractor = self._contractor
        # The order is fixed by now; the optimiser that found it need not be something that can be stored.
        return serialize.State(
            expr=contractor.expr,
            options=contractor.options.replace(optimize="auto", minimize="flops"),
            kinds=self._kinds,
            constants=self._constants,
            order=contractor.order,
            machine=contractor.machine,
            same=self._same,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (self._state(),)

    def __repr__(self) -> str:
        expr = self._contractor.expr
        kinds = ", ".join(
            f"{dtype.name}{list(shape)}" + (" constant" if position in self._constants else "")
            for position, ((dtype, _), shape) in enumerate(zip(self._kinds, expr.shapes))
        )
        return f"<Compiled {quoted(expr.text)}: {kinds}>"


def rebuild(state: serialize.State) -> Compiled:
    """The object of a stored state; its plan is made when it is first needed."""
    return Compiled(
        state.expr,
        state.options,
        state.kinds,
        constants=state.constants,
        order=state.order,
        machine=state.machine,
        same=state.same,
    )


def _merged(constants: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The constants with one array for all of the same dtype, shape and bytes."""
    kept: dict[tuple, list[np.ndarray]] = {}
    for position, array in constants.items():
        alike = kept.setdefault((array.dtype, array.shape), [])
        constants[position] = next((other for other in alike if _equal_bytes(array, other)), array)
        if constants[position] is array:
            alike.append(array)
    return constants


def _equal_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.hasobject:
        return a is b
    return bool(np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)))


def hand_back(result: np.ndarray, wrap: Callable[[np.ndarray], Any] | None) -> Any:
    """A fresh result in the operands' type; one of NumPy without axes is a scalar."""
    if wrap is not None:
        return wrap(result)
    return result if result.ndim else result[()]


def _no_entry(*arrays: Any) -> Any:
    return NotImplemented


def _not_yet(*arrays: Any) -> Any:
    """In the place of a quick function that the first call makes."""
    return NotImplemented


def _check_shapes(arrays: Sequence[Any], expr: Expr) -> None:
    for position, (array, shape) in enumerate(zip(arrays, expr.shapes)):
        if array.shape != shape:
            raise _shape_error(position, array.shape, shape, expr)


def _shape_error(position: int, given: tuple[int, ...], wanted: tuple[int, ...], expr: Expr) -> EngineValueError:
    text = f"operand {position} of {quoted(expr.text)}"
    if len(given) != len(wanted):
        return EngineValueError(f"{text} has {len(given)} axes, shape {given}, but was compiled for shape {wanted}")
    axis = next(axis for axis, (size, want) in enumerate(zip(given, wanted)) if size != want)
    index = expr.inputs[position][axis]
    return EngineValueError(
        f"{text} has size {given[axis]} in axis {axis} (index {index!r}), but was compiled for {wanted[axis]}"
    )
