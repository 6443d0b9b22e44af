"""Whether a result is right: component-wise error against an independent reference.

PASS means an error of each component within ``4 (K + 2) eps`` of the same contraction of absolute values (``|A||B|``
for two operands; K is the sum of the lengths of the sums along the path), and a largest error within 4 times that of
the fastest peer, where one rounding of the largest component is always allowed. Integers and bool are exact.

The reference is NumPy, step by step along the path, in a wider type: float64 for narrower dtypes, long double for
float64. Where long double takes too long for everything, a sample of components is summed in it directly from the
slices of the operands that they depend on, and the rest is compared with a reference in the dtype itself. Where even
that takes seconds, the reference is made for a box of the output: some positions along each axis, the first, the last
and random ones, and every combination of them; the components outside are compared with the result of a peer. Outputs
of few components are judged over several draws of the operands, since a single component may be right by luck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Sequence

import numpy as np

from ..dtypes import as_numpy
from ..errors import EngineValueError
from .steps import ASCII, Expression, Path, StepCost, auto_path, walk

SLACK = 4
# A reference in float64 is made up to this many flops and bytes, one in long double up to this many multiply-adds.
_WIDE_FLOPS = 4e10
_WIDE_BYTES = 4e9
_LONG_MULTIPLY_ADDS = 1e8
# What all components may cost: real flops of BLAS, scalar multiply-adds of integers, elements of the largest step.
_BOX_FLOPS = 4e10
_BOX_INTEGERS = 1e9
_BOX_ELEMENTS = 2.5e7
_SMALLEST_SIDE = 16
# Elements compared at a time: their temporaries stay in the caches.
_BLOCK = 1 << 16
_SAMPLES = 64
_SAMPLE_MULTIPLY_ADDS = 2e7
# Fewer components than this are judged over several draws.
_FEW = 32
_DRAWS = 16
# The largest of all errors beside the largest of a sample of them: a factor of two is usual for normal ones.
_BEYOND_SAMPLE = 4


@dataclass(frozen=True, kw_only=True)
class Finding:
    """How far one result is from the reference.

    ``error`` is relative to ``|A||B|``, the largest over the components known in a wider type (over all, where all
    are); for exact dtypes the number of wrong components. ``everywhere`` is the largest over all components.
    """

    error: float
    everywhere: float
    complaint: str | None = None

    def merge(self, other: "Finding") -> "Finding":
        """The worse of two findings of the same thing."""
        return Finding(
            error=max(self.error, other.error),
            everywhere=max(self.everywhere, other.everywhere),
            complaint=self.complaint or other.complaint,
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """PASS or FAIL, and why."""

    passed: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reference:
    """What the result of a contraction must be.

    ``values`` and ``scale`` (``|A||B|``, None for exact dtypes) have the output's shape, or that of a ``box`` of it:
    positions along each axis. ``wide`` says that ``values`` is known in a wider type; if not, ``sample`` maps some
    positions in ``values`` to values that are. ``summed`` is K.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    values: np.ndarray
    scale: np.ndarray | None
    wide: bool
    sample: dict[tuple[int, ...], Any]
    summed: int
    box: tuple[np.ndarray, ...] | None = None

    @property
    def bound(self) -> float:
        """The largest error allowed whatever the peers do, relative to ``|A||B|``."""
        return SLACK * (self.summed + 2) * epsilon(self.dtype)

    @cached_property
    def rounding(self) -> float:
        """One rounding of the largest component, relative to ``|A||B|``."""
        return epsilon(self.dtype) * _largest(np.zeros((), self.values.dtype), self.values, self.scale)

    def judge(self, result: Any) -> Finding:
        """Compare one result; a wrong shape or dtype is a finding too."""
        result = np.asarray(result)
        if result.shape != self.shape or result.dtype != self.dtype:
            complaint = f"{result.dtype}{list(result.shape)} instead of {self.dtype}{list(self.shape)}"
            return Finding(error=math.inf, everywhere=math.inf, complaint=complaint)
        if self.box is not None:
            result = result[np.ix_(*self.box)]
        if self.scale is None:
            wrong = int(np.count_nonzero(result != self.values))
            return Finding(error=wrong, everywhere=wrong)
        everywhere = _largest(_widen(result), self.values, self.scale)
        return Finding(error=self._sampled(_widen(result)) if self.sample else everywhere, everywhere=everywhere)

    def beside(self, ours: Any, theirs: Any) -> str | None:
        """What is wrong with ``ours`` outside the box, where only the right result of a peer tells: None if nothing.

        Two right results differ by twice the bound at most; the largest ``|A||B|`` of the box stands for all.
        """
        if self.box is None:
            return None
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if self.scale is None:
            wrong = int(np.count_nonzero(ours != theirs))
            return f"{wrong} components differ from a peer's" if wrong else None
        allowed = 2 * self.bound * float(np.max(self.scale)) * _BEYOND_SAMPLE
        apart = _largest(_widen(ours), _widen(theirs), np.ones((), np.float64))
        return None if apart <= allowed else f"a component is {apart:.1e} from a peer's, over {allowed:.1e}"

    def _sampled(self, result: np.ndarray) -> float:
        assert self.scale is not None
        return max(
            _largest(np.asarray(result[where]), np.asarray(value), np.asarray(self.scale[where]))
            for where, value in self.sample.items()
        )

    def verdict(self, ours: Finding, peer: Finding | None) -> Verdict:
        """PASS or FAIL of our finding beside that of the fastest peer (None where no peer ran)."""
        if ours.complaint:
            return Verdict(passed=False, reason=ours.complaint)
        if self.scale is None:
            return Verdict(passed=ours.error == 0, reason=f"{int(ours.error)} wrong components" if ours.error else "")
        for error, allowed, what in self._demands(ours, peer):
            if not error <= allowed:
                return Verdict(passed=False, reason=f"error {error:.1e} over {allowed:.1e}, {what}")
        return Verdict(passed=True)

    def _demands(self, ours: Finding, peer: Finding | None) -> list[tuple[float, float, str]]:
        # A reference of our own precision may be off by as much as a result.
        bound = self.bound if self.wide else 2 * self.bound
        demands = [(ours.error, self.bound if self.wide or self.sample else bound, "4 (K + 2) eps")]
        demands.append((ours.everywhere, bound, "4 (K + 2) eps"))
        if peer is None or peer.complaint:
            return demands
        if self.wide or self.sample:
            allowed = max(SLACK * peer.error, self.rounding)
            demands.append((ours.error, allowed, "4 times the peer's error"))
            if self.sample:
                own = self._sampled(self.values)
                allowed = _BEYOND_SAMPLE * (allowed + max(own, self.rounding))
                demands.append((ours.everywhere, allowed, "what the sample allows elsewhere"))
        else:
            allowed = SLACK * max(peer.error, math.sqrt(self.summed + 2) * self.rounding)
            demands.append((ours.error, allowed, "4 times the peer's error"))
        return demands


def make_reference(
    expression: Expression, path: Path, arrays: Sequence[np.ndarray], dtype_name: str, seed: int = 0
) -> Reference:
    """Contract ``arrays`` with NumPy and return what a result along ``path`` is judged by.

    The reference takes opt_einsum's path where that one is cheaper.
    """
    dtype = as_numpy(dtype_name)
    steps = walk(expression, path)
    summed = sum(step.summed for step in steps)
    if len(arrays) > 2:
        path = min(path, auto_path(expression), key=lambda each: _operations(walk(expression, each)))
    shape = expression.output_shape
    box = _box(expression, path, dtype, seed)
    if box is not None:
        expression, arrays = _inside(expression, arrays, box)
    steps = walk(expression, path)
    if dtype.kind in "iub":
        values, scale, full, sample, summed = contract(steps, arrays, optimize=False), None, True, {}, 0
    else:
        values, scale, full, sample = _inexact(expression, path, arrays, dtype, seed)
    return Reference(
        shape=shape,
        dtype=dtype,
        values=values,
        scale=scale,
        wide=full,
        sample=sample,
        summed=summed,
        box=box,
    )


def _inexact(
    expression: Expression, path: Path, arrays: Sequence[np.ndarray], dtype: np.dtype[Any], seed: int
) -> tuple[np.ndarray, np.ndarray, bool, dict[tuple[int, ...], Any]]:
    """Values, their scale, whether the values are wide, and a wide sample where they are not."""
    steps = walk(expression, path)
    wide = _widened(dtype)
    full = not _is_long(wide) and _affordable(steps, dtype, wide)
    sample = {} if full else _sample(expression, path, arrays, wide, seed)
    full = full or (not sample and _affordable(steps, dtype, wide))
    values = contract(steps, [array.astype(wide if full else _native(dtype)) for array in arrays])
    real = np.dtype(np.float64) if _affordable(steps, dtype, np.dtype(np.float64)) else values.real.dtype
    scale = contract(steps, [np.abs(array.astype(_native(dtype))).astype(real) for array in arrays])
    if not np.all(np.isfinite(scale)):
        raise EngineValueError(f"{expression.eq!r}: the sum of absolute values overflows {scale.dtype}")
    return values, scale, full, sample


def _box(expression: Expression, path: Path, dtype: np.dtype[Any], seed: int) -> tuple[np.ndarray, ...] | None:
    """Positions along each axis of the output for which a reference is affordable; None where all of it is.

    The longest axis is halved until the cost fits, or all are short: what is summed cannot be left out.
    """
    sizes = {index: expression.sizes[index] for index in dict.fromkeys(expression.output)}
    kept = dict(sizes)
    while not _is_cheap(_restricted(expression, kept), path, dtype):
        longest = max(kept, key=lambda index: kept[index], default=None)
        if longest is None or kept[longest] <= _SMALLEST_SIDE:
            break
        kept[longest] = max(_SMALLEST_SIDE, -(-kept[longest] // 2))
    if kept == sizes:
        return None
    rng = np.random.default_rng(seed)
    chosen = {index: _positions(rng, sizes[index], count) for index, count in kept.items()}
    return tuple(chosen[index] for index in expression.output)


def _positions(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    """``count`` positions of ``size``, ascending: the first, the last and random ones."""
    if count == size:
        return np.arange(size)
    return np.array([0, *sorted(1 + rng.choice(size - 2, count - 2, replace=False)), size - 1])


def _is_cheap(expression: Expression, path: Path, dtype: np.dtype[Any]) -> bool:
    steps = walk(expression, path)
    if max(sum(step.elements) for step in steps) > _BOX_ELEMENTS:
        return False
    if dtype.kind in "iub":
        return _operations(steps) <= _BOX_INTEGERS
    return 2 * _operations(steps) * (5 if dtype.kind == "c" else 2) <= _BOX_FLOPS


def _restricted(expression: Expression, kept: dict[str, int]) -> Expression:
    shapes = tuple(
        tuple(min(kept.get(index, size), size) for index, size in zip(term, shape))
        for term, shape in zip(expression.terms, expression.shapes)
    )
    return replace(expression, shapes=shapes)


def _inside(
    expression: Expression, arrays: Sequence[np.ndarray], box: tuple[np.ndarray, ...]
) -> tuple[Expression, list[np.ndarray]]:
    """The same contraction for the positions of ``box`` alone."""
    chosen = dict(zip(expression.output, box))
    parts = [_taken(array, term, chosen) for array, term in zip(arrays, expression.terms)]
    return replace(expression, shapes=tuple(part.shape for part in parts)), parts


def _taken(array: np.ndarray, term: str, chosen: dict[str, np.ndarray]) -> np.ndarray:
    for axis, index in enumerate(term):
        if index in chosen and array.shape[axis] > 1:
            array = np.take(array, chosen[index], axis=axis)
    return array


def draws(expression: Expression) -> int:
    """How many draws of the operands a fair judgement takes: several where the output has few components."""
    size = math.prod(expression.output_shape)
    return 1 if size >= _FEW or size == 0 else min(_DRAWS, -(-_FEW // size))


def epsilon(dtype: np.dtype[Any]) -> float:
    """The spacing of ``dtype`` at 1; 0 for exact dtypes."""
    if dtype.kind in "iub":
        return 0.0
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps if dtype.kind == "V" else np.finfo(dtype).eps)


def contract(steps: Sequence[StepCost], arrays: Sequence[np.ndarray], *, optimize: bool = True) -> np.ndarray:
    """NumPy, one step after the other. ``optimize`` sends the products to BLAS."""
    live = list(arrays)
    for step in steps:
        taken = [live[position] for position in step.positions]
        for position in sorted(step.positions, reverse=True):
            del live[position]
        live.append(_einsum(step.eq, taken, optimize))
    return np.ascontiguousarray(live[0]).reshape(live[0].shape)


def _einsum(eq: str, taken: Sequence[np.ndarray], optimize: bool) -> np.ndarray:
    letters = dict.fromkeys(eq.replace(",", "").replace("->", ""))
    inputs, _, output = eq.translate(str.maketrans(dict(zip(letters, ASCII)))).partition("->")
    unique = "".join(dict.fromkeys(output))
    value = np.asarray(np.einsum(f"{inputs}->{unique}", *taken, optimize=optimize))
    if unique == output:
        return value
    # NumPy has no repeated output index: fill the diagonal of zeros through the view that it does have.
    result = np.zeros([value.shape[unique.index(index)] for index in output], dtype=value.dtype)
    np.einsum(f"{output}->{unique}", result)[...] = value
    return result


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    # Sums of halves would be sequential and in half: their references are float32 at least.
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def _operations(steps: Sequence[StepCost]) -> int:
    return sum(step.multiply_adds + step.adds for step in steps)


def _is_long(dtype: np.dtype[Any]) -> bool:
    return dtype.itemsize > 8 * (1 + (dtype.kind == "c"))


def _widened(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind == "c":
        return np.dtype(np.complex128 if dtype.itemsize == 8 else np.clongdouble)
    return np.dtype(np.float64 if dtype.itemsize < 8 or dtype.kind == "V" else np.longdouble)


def _widen(result: Any) -> Any:
    # Differences are taken in the wider of two types; bfloat16 has no common type with NumPy's own.
    return result.astype(np.float32) if result.dtype.kind == "V" or result.dtype.itemsize == 2 else result


def _affordable(steps: Sequence[StepCost], dtype: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    """Whether a reference in ``wide`` is more accurate than ``dtype`` and takes seconds at most."""
    multiply_adds = _operations(steps)
    largest = max(sum(step.elements) for step in steps)
    if largest * wide.itemsize > _WIDE_BYTES:
        return False
    if _is_long(wide):
        return multiply_adds <= _LONG_MULTIPLY_ADDS and epsilon(wide) < epsilon(dtype)
    return 2 * multiply_adds <= _WIDE_FLOPS


def _largest(result: Any, values: Any, scale: Any) -> float:
    """The largest ``|result - values| / scale``; 0/0 counts 0, and a NaN counts as infinite."""
    if values.size == 0:
        return 0.0
    parts = [np.broadcast_to(each, values.shape).reshape(-1) for each in (result, values)]
    scales = np.broadcast_to(scale, values.shape).reshape(-1) if np.ndim(scale) else np.reshape(scale, (1,))
    return max(_largest_part(*parts, scales, start) for start in range(0, values.size, _BLOCK))


def _largest_part(result: np.ndarray, values: np.ndarray, scale: np.ndarray, start: int) -> float:
    part = slice(start, start + _BLOCK)
    difference = np.abs(result[part] - values[part])
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = difference / (scale if scale.size == 1 else scale[part])
    relative[difference == 0] = 0
    largest = float(np.max(relative))
    return math.inf if math.isnan(largest) else largest


def _sample(
    expression: Expression, path: Path, arrays: Sequence[np.ndarray], wide: np.dtype[Any], seed: int
) -> dict[tuple[int, ...], Any]:
    """Components in the type ``wide``: the first, the last and random ones, as many as a short time allows."""
    fixed = set(expression.output)
    terms = tuple("".join(index for index in term if index not in fixed) for term in expression.terms)
    shapes = tuple(
        tuple(size for index, size in zip(term, shape) if index not in fixed)
        for term, shape in zip(expression.terms, expression.shapes)
    )
    steps = walk(Expression(terms=terms, output="", shapes=shapes), path)
    cost = max(1, _operations(steps))
    count = min(_SAMPLES, int(_SAMPLE_MULTIPLY_ADDS // cost))
    few = count < min(_SAMPLES, math.prod(expression.output_shape)) / 4
    if few or epsilon(wide) >= epsilon(arrays[0].dtype) or 0 in expression.output_shape:
        return {}
    found = {}
    for point in _points(expression, count, seed):
        slices = [_slice(array, term, point) for array, term in zip(arrays, expression.terms)]
        value = contract(steps, [np.asarray(part).astype(wide) for part in slices], optimize=False)
        found[tuple(point[index] for index in expression.output)] = value[()]
    return found


def _points(expression: Expression, count: int, seed: int) -> list[dict[str, int]]:
    rng = np.random.default_rng(seed)
    sizes = {index: expression.sizes[index] for index in dict.fromkeys(expression.output)}
    if not sizes:
        return [{}][:count]
    points = [dict.fromkeys(sizes, 0), {index: size - 1 for index, size in sizes.items()}]
    points += [{index: int(rng.integers(size)) for index, size in sizes.items()} for _ in range(max(0, count - 2))]
    return points[:count]


def _slice(array: np.ndarray, term: str, point: dict[str, int]) -> np.ndarray:
    where = tuple(
        min(point[index], size - 1) if index in point else slice(None) for index, size in zip(term, array.shape)
    )
    return np.asarray(array[where])
