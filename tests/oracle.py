"""Independent answers and hostile memory for the tests of kernels and plans.

`einsum` is a loop over all index values in Python numbers; `check` compares with a component-wise error bound.
`guarded`, `place` and `Fence` put operands directly against pages that must not be touched, so that a read or write
outside an operand ends the process; `Canary` notices stray writes without ending it.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Sequence

import numpy as np

PAGE = mmap.PAGESIZE
_CANARY = 0xA5
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


# -- values --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Answer:
    """``value``: Python numbers in an object array; ``magnitude``: the same sum over absolute values; ``terms``: how
    many products each element sums."""

    value: np.ndarray
    magnitude: np.ndarray
    terms: int


def einsum(expression: str, *arrays: np.ndarray, conj: Sequence[int] = ()) -> Answer:
    """The contraction ``ab,bc->ac`` (explicit output, single letters, repeated letters anywhere) by plain loops.

    Integers are exact, floats are summed in float64 and complex numbers in complex128; bool is ``or`` of ``and``.
    """
    left, output = expression.replace(" ", "").split("->")
    terms = left.split(",")
    assert len(terms) == len(arrays), f"{expression!r} with {len(arrays)} operands"
    sizes: dict[str, int] = {}
    for term, array in zip(terms, arrays):
        for letter, size in zip(term, array.shape, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    summed = [letter for letter in sizes if letter not in output]
    kept = list(dict.fromkeys(output))
    flat = [_numbers(np.asarray(a.conj() if n in conj else a)) for n, a in enumerate(arrays)]
    outer = [_offsets(term, array.shape, kept, sizes) for term, array in zip(terms, arrays)]
    inner = [_offsets(term, array.shape, summed, sizes) for term, array in zip(terms, arrays)]
    is_bool = all(a.dtype == bool for a in arrays)
    shape = tuple(sizes[letter] for letter in output)
    value, magnitude = np.zeros(shape, object), np.zeros(shape, object)
    points = prod(sizes[letter] for letter in summed)
    for number, point in enumerate(product(*(range(sizes[letter]) for letter in kept))):
        products = [True if is_bool else 1] * points
        for numbers, begin, offsets in zip(flat, outer, inner):
            start = begin[number]
            products = [x * numbers[start + offset] for x, offset in zip(products, offsets)]
        at = dict(zip(kept, point))
        where = tuple(at[letter] for letter in output)
        value[where] = any(products) if is_bool else sum(products)
        magnitude[where] = sum(map(abs, products))
    return Answer(value=value, magnitude=magnitude, terms=points)


def _offsets(term: str, shape: Sequence[int], letters: Sequence[str], sizes: dict[str, int]) -> list[int]:
    """Where an operand's elements are in a list of them, from point to point of a loop over ``letters``."""
    steps, step = dict.fromkeys(letters, 0), 1
    for letter, size in zip(reversed(term), reversed(shape)):
        if size > 1 and letter in steps:
            steps[letter] += step
        step *= size
    loops = [range(0, steps[x] * sizes[x], steps[x]) if steps[x] else [0] * sizes[x] for x in letters]
    return [sum(point) for point in product(*loops)]


def _numbers(array: np.ndarray) -> list:
    """Elements, the last index fastest, as Python bool, int, float or complex; object elements stay as they are."""
    wide = {"f": np.float64, "c": np.complex128}.get(array.dtype.kind, array.dtype)
    return array.astype(wide).astype(object).ravel().tolist()


def check(actual: np.ndarray, answer: Answer, precision: str | None = None, context: object = "") -> None:
    """AssertionError unless ``actual`` is the answer: exact for integers and bool (modulo the width of the dtype),
    within ``4 (K + 2) eps |A||B|`` for floats, with the eps of ``precision`` (default: the dtype of ``actual``)."""
    actual = np.asarray(actual)
    assert actual.shape == answer.value.shape, f"shape {actual.shape}, expected {answer.value.shape} {context}"
    kind = actual.dtype.kind
    if kind in "iub":
        bits = 8 * actual.dtype.itemsize
        for where in np.ndindex(actual.shape):
            got, want = int(actual[where]), int(answer.value[where])
            same = got == want if kind == "b" else (got - want) % (1 << bits) == 0
            assert same, f"at {where}: {got}, expected {want} {context}"
        return
    eps = np.finfo(np.dtype(precision or actual.dtype)).eps
    tiny = np.finfo(actual.dtype).tiny
    for where in np.ndindex(actual.shape):
        got, want = actual[where].item(), answer.value[where]
        bound = 4 * (answer.terms + 2) * eps * answer.magnitude[where] + tiny
        # written so that NaN fails
        assert abs(got - want) <= bound, f"at {where}: {got}, expected {want} within {bound:.3g} {context}"


def random(rng: np.random.Generator, shape, dtype: str, exact: bool = False) -> np.ndarray:
    """Random elements: integers over their full range, floats around 1 in size; ``exact``: small whole numbers, whose
    sums of products have no rounding error."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.asarray(rng.random(shape) < 0.3)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return np.asarray(rng.integers(limits.min, limits.max, shape, kind, endpoint=True))
    draw = (lambda: rng.integers(-4, 5, shape)) if exact else (lambda: rng.standard_normal(shape))
    return np.asarray(draw() + 1j * draw() if kind.kind == "c" else draw()).astype(kind)


# -- memory --------------------------------------------------------------------------------------------------------
def _forbid(address: int, nbytes: int) -> None:
    if _libc.mprotect(address, nbytes, 0):
        raise OSError(ctypes.get_errno(), "mprotect")


class Fence:
    """``count`` rows of ``nbytes`` bytes each, with an untouchable page directly before or after every row.

    Row r starts at byte ``start + r * pitch`` of ``memory``, a uint8 array over the whole mapping: touch rows only.
    ``flush``: the rows ``end`` or ``start`` at the border of such a page. Rows of several lengths share a fence:
    `begin` gives the start of a row of another length.
    """

    def __init__(self, count: int, nbytes: int, flush: str = "end"):
        self.count, self.nbytes, self.flush = count, nbytes, flush
        self._room = -(-max(nbytes, 1) // PAGE) * PAGE
        self.pitch = self._room + PAGE
        self.memory = np.frombuffer(mmap.mmap(-1, PAGE + count * self.pitch), np.uint8)
        for row in range(count + 1):
            _forbid(self.memory.ctypes.data + row * self.pitch, PAGE)

    @property
    def start(self) -> int:
        return self.begin(self.nbytes)

    def begin(self, nbytes: int) -> int:
        """Start of row 0 for a length of ``nbytes``."""
        return PAGE + (self._room - nbytes if self.flush == "end" else 0)

    def row(self, number: int) -> np.ndarray:
        """All the bytes of a row that may be touched."""
        first = PAGE + number * self.pitch
        return self.memory[first : first + self._room]


def guarded(nbytes: int, flush: str = "end") -> np.ndarray:
    """``nbytes`` zero bytes between two untouchable pages, flush against the one after or before them."""
    fence = Fence(1, nbytes, flush)
    return fence.memory[fence.start : fence.start + nbytes]


def place(array: np.ndarray, flush: str = "end") -> np.ndarray:
    """A copy of ``array`` with the same strides in guarded memory."""
    reach = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
    if array.size == 0:
        return np.ndarray(array.shape, array.dtype, guarded(0, flush), 0, array.strides)
    low = sum(r for r in reach if r < 0)
    high = sum(r for r in reach if r > 0) + array.itemsize
    copy = np.ndarray(array.shape, array.dtype, guarded(high - low, flush), -low, array.strides)
    copy[...] = array
    return copy


class Canary:
    """``nbytes`` bytes of memory with a known pattern on both sides; `check` fails where the pattern was changed."""

    def __init__(self, nbytes: int, margin: int = 512):
        self._all = np.full(nbytes + 2 * margin, _CANARY, np.uint8)
        self._margin = margin
        self.memory = self._all[margin : margin + nbytes]

    def check(self) -> None:
        margin = self._margin
        for side, edge in (("before", self._all[:margin]), ("after", self._all[len(self._all) - margin :])):
            changed = np.flatnonzero(edge != _CANARY)
            assert not len(changed), f"{len(changed)} bytes written {side} the operand"
