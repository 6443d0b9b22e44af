"""The ways in which a contraction of given dtypes and strides is run: natively, as zeros, by NumPy, as a view.

A route computes a fresh result (``fresh``) and may have a quick function for the same (``entry``); where ``direct`` is
true it also writes into an array of the planned strides (``into``). All take exact NumPy arrays that match what the
route was made for; where it relies on some of them being the same array, ``same`` says so (see `PlanRequest`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np

from .errors import EngineTypeError
from .executor import NO_CONSTANTS, NativePlan, address, bind
from .expr import Expr, kept
from .memory import empty
from .plan import Plan
from .profile import Profile
from .views import dense_strides

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _no_entry(route: Any, scalar: bool, kinds: Any, *more: Any) -> None:
    """The general path is all there is."""


def bound(plan: Plan, profile: bool) -> NativePlan:
    """A plan with addresses; with ``profile`` its calls are measured."""
    if profile:
        from .profiler import ProfiledPlan  # only here: an ordinary call does not load it

        return ProfiledPlan(plan)
    return bind(plan)


def _no_profiles(route: Any) -> tuple[()]:
    """No step of ours runs."""
    return ()


class NativeRoute:
    """One native call of a bound plan."""

    __slots__ = ("plan", "native", "shape", "dtype", "order", "direct", "calls", "_factors", "_quick", "_other")

    def __init__(
        self, plan: Plan, native: Any, shape: tuple[int, ...], dtype: np.dtype, order: str, direct: bool
    ) -> None:
        self.plan, self.native = plan, native
        self.shape, self.dtype, self.order = shape, dtype, order
        self.direct = direct
        # Counts to 2, those in a row with the same factors: the quick function takes a while to make, which a single
        # call does not pay for.
        self.calls = 0
        self._factors: Any = None
        self._quick: Any = None  # of calls with all operands and without factors
        self._other: Any = None  # what another one was made for, and that

    @property
    def same(self) -> tuple[int, ...]:
        return self.plan.request.same

    def fresh(self, arrays: Sequence[np.ndarray], alpha: Any = 1) -> np.ndarray:
        if self._quick is not None:
            result = self._quick(*arrays)
            if result is not NotImplemented:
                return result if self.shape else np.asarray(result)
        elif self._again(alpha, 0):
            self._quick = self.native.make_entry(order=self.order)
        out = empty(self.shape, self.dtype, self.order)
        self.native.run(arrays, out, alpha, 0)
        return out

    def _again(self, alpha: Any, beta: Any) -> bool:
        """Counts a call; whether it is the second in a row with these factors, and there are none."""
        if (alpha, beta) != self._factors:
            self._factors, self.calls = (alpha, beta), 0
        if self.calls == 2:
            return False
        self.calls += 1
        return self.calls == 2 and not self.plan.request.scaled

    def entry(self, scalar: bool, kinds: Any, alpha: Any = 1, constants: Mapping[int, np.ndarray] = NO_CONSTANTS) -> Any:
        """A function of the operands alone that is as quick as can be: NotImplemented where they do not match.

        ``constants``, arrays by operand position, are no arguments of it. Results without axes are scalars, or with
        ``scalar=False`` arrays. None where the plan has no such function.
        """
        quick = None if self.direct else self._made(self.order, constants, alpha, 0)
        if quick is None:
            return None
        entry = guarded(quick, self.same, constants)
        return entry if self.shape or scalar else giving_arrays(entry)

    def _made(self, order: str | None, constants: Mapping[int, np.ndarray], alpha: Any, beta: Any) -> Any:
        """The native function: that of calls with all operands and without factors, or the other one made last."""
        if not constants and not self.plan.request.scaled:
            if self._quick is None:
                self._quick = self.native.make_entry(order=order)
            return self._quick
        # as texts: 0.0 and -0.0 are equal
        key = bool(constants), repr((alpha, beta))
        found = self._other
        if found is None or found[0] != key:
            found = self._other = (key, self.native.make_entry(constants, order, alpha, beta))
        return found[1]

    def profiles(self) -> Iterator[tuple[Plan, Profile]]:
        """Of the bound plan."""
        return self.native.profiles()

    def into_entry(self, alpha: Any, beta: Any, constants: Mapping[int, np.ndarray] = NO_CONSTANTS) -> Any:
        """The quick function of `into`, which takes the operands and the output; None before the second call."""
        quick = self._made(None, constants, alpha, beta) if self.direct and self.calls == 2 else None
        return None if quick is None else guarded(quick, self.same, constants)

    def freeze(self, constants: Mapping[int, np.ndarray]) -> None:
        """Do now what depends on the constant operands alone; ``constants`` are arrays by operand position."""
        count = len(self.plan.expr.inputs)
        self.native.freeze([address(constants[i]) if i in constants else 0 for i in range(count)])

    def into(self, arrays: Sequence[np.ndarray], out: np.ndarray, alpha: Any, beta: Any) -> None:
        """``out = alpha * result + beta * out``, which overlaps no operand."""
        if self._quick is None and self._again(alpha, beta):
            self._quick = self.native.make_entry()
        if self._quick is None or self._quick(*arrays, out) is NotImplemented:
            self.native.run(arrays, out, alpha, beta)


def giving_arrays(entry: Callable[..., Any]) -> Callable[..., Any]:
    """``entry``, of which a number comes as an array without axes."""

    def array(*arrays: Any) -> Any:
        found = entry(*arrays)
        return found if found is NotImplemented else np.asarray(found)

    return array


def guarded(
    entry: Callable[..., Any], same: tuple[int, ...], constants: Mapping[int, np.ndarray] = NO_CONSTANTS
) -> Callable[..., Any]:
    """``entry``, for calls in which the operands that ``same`` says so are one object; NotImplemented for others.

    It is called with the operands that are not ``constants``, and perhaps an output. Where ``same`` says nothing about
    those it is the entry itself.
    """
    given = [position for position in range(len(same)) if position not in constants]
    place = {position: at for at, position in enumerate(given)}
    pairs = [(place[same[position]], place[position]) for position in given if same[position] != position]
    if not pairs:
        return entry
    count = len(given)

    def guard(*arrays: Any) -> Any:
        if len(arrays) < count:
            return NotImplemented
        for first, position in pairs:
            if arrays[first] is not arrays[position]:
                return NotImplemented
        return entry(*arrays)

    return guard


class ZeroRoute:
    """An index of size 0: every sum is empty, and no kernel runs."""

    __slots__ = ("shape", "dtype", "order", "plan")
    direct, calls, same = False, 0, ()

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, order: str, plan: Plan) -> None:
        self.shape, self.dtype, self.order, self.plan = shape, dtype, order, plan

    def fresh(self, arrays: Sequence[np.ndarray], alpha: Any = 1) -> np.ndarray:
        return empty(self.shape, self.dtype, self.order, zero=True)

    entry, profiles = _no_entry, _no_profiles


class SpreadRoute:
    """A repeated output index: the result of the inner contraction on the diagonal, zeros elsewhere."""

    __slots__ = ("inner", "expr", "dtype", "order", "plan", "same")
    direct, calls = False, 0

    def __init__(
        self, inner: Any, operands: Any, expr: Expr, dtype: np.dtype, order: str, same: tuple[int, ...] = ()
    ) -> None:
        self.inner, self.expr, self.dtype, self.order = inner, expr, dtype, order
        strides: dict[Any, int] = {}
        for index, stride in zip(expr.output, contiguous_strides(expr.output_shape, dtype.itemsize, order)):
            strides[index] = strides.get(index, 0) + stride
        route = inner.route(operands, (dtype, tuple(strides.values())), same=same)
        plan, self.same = route.plan, route.same
        self.plan = replace(plan, output_bytes=prod(expr.output_shape) * dtype.itemsize)

    def fresh(self, arrays: Sequence[np.ndarray], alpha: Any = 1) -> np.ndarray:
        out = empty(self.expr.output_shape, self.dtype, self.order, zero=True)
        self.inner.call(arrays, diagonal(out, self.expr.output), alpha, 0)
        return out

    def profiles(self) -> Iterator[tuple[Plan, Profile]]:
        """Those of the inner contraction."""
        return self.inner.profiles()

    entry = _no_entry


class ExternalRoute:
    """Dtypes that only NumPy computes (longdouble, object): its einsum, one pair of operands at a time."""

    __slots__ = ("expr", "path", "options", "dtype", "plan")
    direct, calls, same = False, 0, ()

    def __init__(
        self, expr: Expr, path: tuple[tuple[int, ...], ...], options: Any, dtype: np.dtype, plan: Plan
    ) -> None:
        self.expr, self.path, self.options, self.dtype, self.plan = expr, path, options, dtype, plan

    def fresh(self, arrays: Sequence[np.ndarray], alpha: Any = 1) -> np.ndarray:
        conj = self.options.conj
        arrays = [np.conjugate(array) if position in conj else array for position, array in enumerate(arrays)]
        pending = list(zip(arrays, self.expr.inputs))
        for step in self.path:
            chosen = [pending[position] for position in step]
            pending = [item for position, item in enumerate(pending) if position not in step]
            pending.append(self._contract(chosen, self._kept(chosen, pending)))
        ((result, term),) = pending
        if term != self.expr.output or not self.path:
            result, _ = self._contract([(result, term)], self.expr.output)
        if alpha != 1:
            result = as_array(result * alpha)
        return result.astype(self.dtype, order=self.options.order, casting="unsafe")

    entry, profiles = _no_entry, _no_profiles

    def _kept(self, chosen: Any, pending: Any) -> tuple[Any, ...]:
        """The term of one step's result: in the output's order where it is the last step."""
        if not pending:
            return self.expr.output
        return kept([term for _, term in chosen], [*(term for _, term in pending), self.expr.output])

    def _contract(self, chosen: Any, output: tuple[Any, ...]) -> tuple[np.ndarray, tuple[Any, ...]]:
        numbers: dict[Any, int] = {}
        operands: list[Any] = []
        for array, term in chosen:
            operands += [array, [numbers.setdefault(index, len(numbers)) for index in term]]
        if len(numbers) > len(LETTERS):
            raise EngineTypeError(
                f"{self.expr.text!r}: dtype {self.dtype} is handed to NumPy, which takes at most {len(LETTERS)} indices"
                f" in one step; here are {len(numbers)}"
            )
        # In the dtype of the whole: two operands alone may have a narrower one, which would overflow.
        compute = self.dtype if self.options.accumulate is None else self.options.accumulate
        result = np.einsum(*operands, [numbers[index] for index in output], dtype=compute, casting="unsafe")
        return as_array(result), output


def as_array(value: Any) -> np.ndarray:
    """``value`` as an array; what NumPy took out of a 0-d array of objects goes back into one, whole."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    box = np.empty((), object)
    box[()] = value
    return box


def contiguous_strides(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    """Strides in bytes of a contiguous array in memory order ``C`` or ``F``.

    >>> contiguous_strides((2, 3), 8, "C"), contiguous_strides((2, 3), 8, "F")
    ((24, 8), (8, 16))
    """
    return dense_strides(shape, itemsize) if order == "C" else dense_strides(shape[::-1], itemsize)[::-1]


def diagonal(array: np.ndarray, term: Sequence[Any]) -> np.ndarray:
    """A view of ``array`` with one axis per distinct index of ``term``, in the order of first occurrence."""
    shape: dict[Any, int] = {}
    strides: dict[Any, int] = {}
    for index, size, stride in zip(term, array.shape, array.strides):
        shape[index] = size
        strides[index] = strides.get(index, 0) + stride
    return np.lib.stride_tricks.as_strided(
        array, tuple(shape.values()), tuple(strides.values()), writeable=array.flags.writeable
    )


class ViewRoute:
    """What `einsum` returns without computing: one operand whose axes are reordered or put on a diagonal."""

    __slots__ = ("term", "output", "shape", "subscripts", "permutation")
    calls, same = 2, ()
    profiles = _no_profiles

    def __init__(self, expr: Expr) -> None:
        (self.term,), self.output = expr.inputs, expr.output
        (self.shape,) = expr.shapes
        distinct = tuple(dict.fromkeys(self.term))
        self.permutation = tuple(distinct.index(index) for index in self.output)
        self.subscripts = None
        if len(distinct) < len(self.term) and len(distinct) <= len(LETTERS):
            letters = dict(zip(distinct, LETTERS))
            self.subscripts = "->".join("".join(letters[index] for index in term) for term in (self.term, self.output))

    @staticmethod
    def exists(expr: Expr) -> bool:
        """Whether the result of ``expr`` is a view of its only operand."""
        return expr.is_view and 0 not in expr.shapes[0]

    def fresh(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        (array,) = arrays
        if self.subscripts is not None:
            return np.einsum(self.subscripts, array)
        if len(self.output) < len(self.term):
            array = diagonal(array, self.term)
        return array.transpose(self.permutation)

    def entry(self, scalar: bool, kinds: Any, *more: Any) -> Any:
        """As that of `NativeRoute`, for operands of the dtype in ``kinds``."""
        if not self.output:
            return None
        shape, ((dtype, _),), permutation, subscripts = self.shape, kinds, self.permutation, self.subscripts

        def view_entry(*arrays: Any) -> Any:
            if len(arrays) != 1:
                return NotImplemented
            (array,) = arrays
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return NotImplemented
            return array.transpose(permutation) if subscripts is None else np.einsum(subscripts, array)

        return view_entry if subscripts is not None or len(self.output) == len(self.term) else None
