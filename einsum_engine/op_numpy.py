"""What each primitive means, as a NumPy function: arrays in, array (or tuple of arrays) out, nothing mutated.

Where `numpy` has a function that is the definition, `ops.OPS` names that; here is the rest.
"""

from __future__ import annotations

import math
from string import ascii_letters
from typing import Any

import numpy as np

from .errors import EngineValueError
from .expr import Term, kept, parse, spelled
from .views import View

_AT_ONCE = 16  # operands of one call of np.einsum

# -- scalar functions that NumPy lacks ---------------------------------------------------------------------------------
_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to x; computed in float64."""
    x = np.asarray(x)
    return np.asarray(_erf(x.astype(np.float64)), dtype=np.float64).astype(x.dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``1 / (1 + exp(-x))``, written so that no exponential overflows."""
    x = np.asarray(x)
    small = np.exp(-np.abs(x))
    one = x.dtype.type(1)
    return np.where(x < 0, small / (one + small), one / (one + small))


def rsqrt(x: np.ndarray) -> np.ndarray:
    """``1 / sqrt(x)``: infinite at 0, NaN below."""
    x = np.asarray(x)
    return x.dtype.type(1) / np.sqrt(x)


def cast(x: np.ndarray, *, dtype: np.dtype) -> np.ndarray:
    """``x.astype(dtype)``; of a complex value that becomes real, the real part."""
    x = np.asarray(x)
    if x.dtype.kind == "c" and np.dtype(dtype).kind not in "cb":
        x = x.real
    return x.astype(dtype)


def select(condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x where the condition holds, y elsewhere."""
    return np.where(condition, x, y)


def real(x: np.ndarray) -> np.ndarray:
    """The real part, of the real dtype."""
    return np.array(np.real(x))


def imag(x: np.ndarray) -> np.ndarray:
    """The imaginary part, of the real dtype; 0 of a real value."""
    return np.array(np.imag(x))


# -- reductions --------------------------------------------------------------------------------------------------------
def reduction(function: Any) -> Any:
    """``function`` over the axes ``axes``, the dtype kept: neither sum nor prod widens here."""
    widens = function in (np.sum, np.prod)

    def reduced(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
        return function(x, axis=axes, **({"dtype": np.asarray(x).dtype} if widens else {}))

    return reduced


def argmax(x: np.ndarray, *, axis: int) -> np.ndarray:
    """Index of the first largest element along ``axis`` (of the first NaN, where there is one)."""
    return np.argmax(x, axis=axis)


def argmin(x: np.ndarray, *, axis: int) -> np.ndarray:
    """Index of the first smallest element along ``axis`` (of the first NaN, where there is one)."""
    return np.argmin(x, axis=axis)


def einsum(*operands: np.ndarray, subscripts: str) -> np.ndarray:
    """``np.einsum(subscripts, *operands)`` without reordering, always a fresh array.

    What NumPy has no letters or places for (other symbols than a to Z, more than 16 operands) is contracted from left to
    right, two at a time.
    """
    if subscripts.isascii() and len(operands) <= _AT_ONCE:
        return np.array(np.einsum(subscripts, *operands))
    found = parse(subscripts, [np.shape(operand) for operand in operands])
    result, term = operands[0], found.inputs[0]
    for at, (operand, other) in enumerate(zip(operands[1:], found.inputs[1:]), 1):
        left = kept((term, other), (*found.inputs[at + 1 :], found.output))
        result, term = _pair((result, operand), (term, other), left), left
    return np.array(_pair((result,), (term,), found.output))


def _pair(operands: tuple[np.ndarray, ...], terms: tuple[Term, ...], output: Term) -> np.ndarray:
    """One or two operands with their indices, in NumPy's letters."""
    distinct = dict.fromkeys(index for term in terms for index in term)
    if len(distinct) > len(ascii_letters):
        raise EngineValueError(f"two operands have {len(distinct)} indices together: NumPy has {len(ascii_letters)} letters")
    return np.einsum(spelled(terms, output, dict(zip(distinct, ascii_letters))), *operands)


# -- views -------------------------------------------------------------------------------------------------------------
def access(root: np.ndarray, *, view: View) -> np.ndarray:
    """The elements of the view."""
    return view.of(np.ascontiguousarray(root).reshape(np.shape(root)))


def copy(x: np.ndarray) -> np.ndarray:
    """The same elements in memory of their own, in C order."""
    return np.array(x, order="C")


def assign(root: np.ndarray, value: np.ndarray, *, view: View) -> np.ndarray:
    """The root with the elements of the view replaced by ``value``, broadcast to the view's shape."""
    out = np.array(root, order="C")
    if view.size:
        view.of(out)[...] = value
    return out


# -- elements named by arrays ------------------------------------------------------------------------------------------
def _front(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.moveaxis(x, axes, range(len(axes)))


def gather(x: np.ndarray, *indices: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """``x`` at the broadcast ``indices`` of ``axes``: the axes of the indices, then the other axes of x.

    Negative indices count from the end; one out of range is an IndexError.
    """
    return _front(np.asarray(x), axes)[tuple(indices)]


def scatter(x: np.ndarray, value: np.ndarray, *indices: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """``x`` with the elements that `gather` would read replaced by ``value``; of equal indices the last counts."""
    out = np.array(x, order="C")
    _front(out, axes)[tuple(indices)] = value
    return out


def scatter_add(x: np.ndarray, value: np.ndarray, *indices: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """``x`` with ``value`` added to the elements that `gather` would read, once for each time one is named."""
    out = np.array(x, order="C")
    np.add.at(_front(out, axes), tuple(indices), value)
    return out


# -- shapes ------------------------------------------------------------------------------------------------------------
def concatenate(*parts: np.ndarray, axis: int) -> np.ndarray:
    """The parts one after the other along ``axis``."""
    return np.concatenate(parts, axis=axis)


def pad(x: np.ndarray, value: np.ndarray, *, widths: tuple[tuple[int, int], ...]) -> np.ndarray:
    """``x`` with so many elements equal to ``value`` before and after it along each axis."""
    x = np.asarray(x)
    out = np.empty([n + before + after for n, (before, after) in zip(x.shape, widths)], x.dtype)
    out[...] = value
    out[tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths))] = x
    return out


def iota(*, size: int, dtype: np.dtype) -> np.ndarray:
    """0, 1, ..., size - 1."""
    return np.arange(size).astype(dtype)


def sort(x: np.ndarray, *, axis: int) -> np.ndarray:
    """Ascending along ``axis``, NaN last."""
    return np.sort(x, axis=axis)


def argsort(x: np.ndarray, *, axis: int) -> np.ndarray:
    """The indices that sort along ``axis``; equal elements keep their order."""
    return np.argsort(x, axis=axis, kind="stable")


# -- control -----------------------------------------------------------------------------------------------------------
def cond(predicate: np.ndarray, *operands: np.ndarray, true: Any, false: Any) -> tuple[np.ndarray, ...]:
    """The results of program ``true`` or ``false`` on the operands."""
    return (true if predicate else false).eval(*operands)


def while_(*values: np.ndarray, test: Any, body: Any, carried: int) -> tuple[np.ndarray, ...]:
    """The first ``carried`` values, replaced by the results of ``body`` for as long as ``test`` holds.

    Both programs take all the values; those after the carried ones stay.
    """
    state, fixed = values[:carried], values[carried:]
    while test.eval(*state, *fixed)[0]:
        state = body.eval(*state, *fixed)
    return tuple(state)


# -- random numbers ----------------------------------------------------------------------------------------------------
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox-4x32-10 (Salmon et al., 2011): uint32 counters (n, 4) and a key (2,) to uint32 words (n, 4).

    >>> [f"{word:08x}" for word in philox(np.zeros((1, 4), np.uint32), np.zeros(2, np.uint32))[0]]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    low, high = (int(word) for word in key)
    for _ in range(10):
        one, two = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (two >> _HALF) ^ c1 ^ np.uint64(low),
            two & _MASK,
            (one >> _HALF) ^ c3 ^ np.uint64(high),
            one & _MASK,
        )
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def _words(key: np.ndarray, count: int, stream: int) -> np.ndarray:
    """``count`` words: block b is Philox at the counter (b low, b high, stream, 0)."""
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    zero = np.zeros_like(blocks)
    counter = np.stack([blocks & _MASK, blocks >> _HALF, zero + np.uint64(stream), zero], axis=1)
    return philox(counter, np.asarray(key)).reshape(-1)[:count]


def random_bits(key: np.ndarray, *, shape: tuple[int, ...], stream: int = 0) -> np.ndarray:
    """Uniform uint32 words: element i in C order is word i of the Philox stream."""
    return _words(key, math.prod(shape), stream).reshape(shape)


def random_uniform(key: np.ndarray, *, shape: tuple[int, ...], dtype: np.dtype, stream: int = 1) -> np.ndarray:
    """Uniform in [0, 1): 24 bits of one word for float32, 53 bits of two words (high first) for float64."""
    count = math.prod(shape)
    if np.dtype(dtype) == np.float32:
        found = (_words(key, count, stream) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    else:
        pairs = _words(key, 2 * count, stream).astype(np.uint64).reshape(-1, 2)
        found = (((pairs[:, 0] << _HALF) | pairs[:, 1]) >> np.uint64(11)) * 2.0**-53
    return found.reshape(shape)


def random_normal(key: np.ndarray, *, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Standard normal by Box and Muller: ``sqrt(-2 log(1 - u)) cos(2 pi v)``, u and v uniform float64 of 53 bits,
    computed in float64 and rounded once."""
    count = math.prod(shape)
    quads = _words(key, 4 * count, 2).astype(np.uint64).reshape(-1, 2, 2)
    u, v = ((((quads[:, :, 0] << _HALF) | quads[:, :, 1]) >> np.uint64(11)) * 2.0**-53).T
    found = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
    return found.astype(dtype).reshape(shape)
