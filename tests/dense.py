"""The oracle of random cases: products over the whole index space, then sums, without any einsum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

if TYPE_CHECKING:
    from random_cases import Case


def numpy_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def kind_of(dtype: np.dtype) -> str:
    """NumPy's kind letter; ``f`` for bfloat16, which NumPy calls V."""
    return "f" if dtype.kind == "V" else dtype.kind


@dataclass(frozen=True, kw_only=True)
class Expected:
    """``value`` in the dtype of the result or one that is more precise, and how far from it a result may be: None
    for exact dtypes."""

    value: np.ndarray
    bound: np.ndarray | None
    dtype: np.dtype


def expect(case: Case, arrays: Sequence[np.ndarray], out: np.ndarray | None = None) -> Expected:
    """The result of a case: products over the whole index space, then sums, without any einsum.

    Floats in longdouble, integers in their own width or a wider one; ``out`` holds what ``beta`` multiplies.
    """
    given = [array.dtype.newbyteorder("=") for array in arrays]
    options = case.keywords
    if "dtype" in options:
        dtype = numpy_dtype(options["dtype"])
    else:
        dtype = np.result_type(*given, *([] if out is None else [out.dtype.newbyteorder("=")]))
    exact = kind_of(dtype) in "biu"
    if "accumulate" in options and exact and out is None:
        wide = numpy_dtype(options["accumulate"])
        arrays, dtype = [_cast(array, dtype) for array in arrays], wide
    values = [_cast(array, dtype) for array in arrays]
    for position in options.get("conj", ()):
        values[position] = values[position].conj()
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(kind_of(dtype), dtype)
    with np.errstate(over="ignore"):  # integers wrap around
        value = _contract(case, [v.astype(wide) for v in values], dtype.kind == "b")
    alpha, beta = options.get("alpha", 1), options.get("beta", 0)
    if exact:
        if "alpha" in options:
            value = _scaled(value, alpha, beta, out, dtype)
        return Expected(value=value, bound=None, dtype=dtype)
    magnitude = _contract(case, [abs(v.astype(wide)) for v in values], False) * abs(alpha)
    value = value * alpha
    rounded = abs(value)
    if beta:
        old = beta * out.astype(wide)
        # A result that cannot be added to in place is rounded by itself before.
        rounded = rounded + abs(old) + abs(value + old)
        value, magnitude = value + old, magnitude + abs(old)
    return Expected(value=value, bound=_bound(case, rounded, magnitude, dtype), dtype=dtype)


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.asarray(array.astype(dtype))


def _contract(case: Case, values: Sequence[np.ndarray], boolean: bool) -> np.ndarray:
    sizes = case.sizes
    kept = "".join(dict.fromkeys(case.output))
    letters = kept + "".join(letter for letter in sizes if letter not in kept)
    mesh = {}
    for axis, letter in enumerate(letters):
        mesh[letter] = np.arange(sizes[letter]).reshape([-1 if a == axis else 1 for a in range(len(letters))])
    product = np.ones([sizes[letter] for letter in letters], values[0].dtype)
    for term, value in zip(case.inputs, values):
        # Fancy indexing takes diagonals, broadcasts and reorders axes, all at once.
        at = tuple(mesh[letter] if size != 1 else 0 for letter, size in zip(term, value.shape))
        product = product & value[at] if boolean else product * value[at]
    summed = tuple(range(len(kept), len(letters)))
    total = product.any(axis=summed) if boolean else product.sum(axis=summed, dtype=product.dtype)
    total = np.asarray(total if summed else product)
    if kept == case.output:
        return total
    spread = np.zeros([sizes[letter] for letter in case.output], total.dtype)
    spread[tuple(np.ix_(*map(np.arange, total.shape))[kept.index(letter)] for letter in case.output)] = total
    return spread


def _scaled(value: np.ndarray, alpha: int, beta: int, out: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """In whole numbers, wrapped around at the end."""
    total = value.astype(object) * alpha + (out.astype(object) * beta if beta else 0)
    bits = 8 * dtype.itemsize
    wrapped = np.asarray(total % (1 << bits), object).astype(np.uint64)
    return wrapped.astype(np.dtype(f"uint{bits}")).view(dtype).reshape(value.shape)


def _bound(case: Case, rounded: np.ndarray, magnitude: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """``4 (K + n + 2) eps |A||B|`` for the dtype that is computed in, and what is ``rounded`` to a narrower result."""
    sizes = case.sizes
    terms = math.prod(sizes[letter] for letter in sizes if letter not in case.output)
    half = dtype.itemsize == 2
    compute = np.dtype("float32") if half else dtype
    bound = 4 * (terms + len(case.inputs) + 2) * np.finfo(compute).eps * magnitude + np.finfo(compute).tiny
    if half:
        eps, tiny = (2.0**-7, 2.0**-126) if dtype.kind == "V" else (2.0**-10, 2.0**-14)
        bound = bound + eps * (rounded + tiny)
    return bound


def check(result: Any, expected: Expected) -> None:
    """AssertionError unless a result is right: values, dtype and shape."""
    assert isinstance(result, np.ndarray if expected.value.ndim else (np.generic, np.ndarray)), type(result)
    result = np.asarray(result)
    assert result.shape == expected.value.shape, f"shape {result.shape}, expected {expected.value.shape}"
    assert result.dtype.newbyteorder("=") == expected.dtype, f"dtype {result.dtype}, expected {expected.dtype}"
    if expected.bound is None:
        wrong = result != expected.value
    else:
        wide = {"f": np.longdouble}.get(kind_of(expected.dtype), np.clongdouble)
        # written so that NaN is wrong
        wrong = ~(abs(result.astype(wide) - expected.value) <= expected.bound)
        if expected.dtype.name == "float16":
            wrong &= ~(np.isinf(result) & (abs(expected.value) + expected.bound > 65500))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} elements are wrong; at {where}: {result[where]!r}, expected"
            f" {expected.value[where]!r}" + ("" if expected.bound is None else f" within {expected.bound[where]:.3g}")
        )
