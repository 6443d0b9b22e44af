"""What a structure means, with NumPy: the oracle of fused kernels, and a check of their rules."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from ..dtypes import as_numpy
from .fused_structure import COMPLEX, DIVISORS, INTEGERS, Node, Structure, constant

_UFUNCS = {
    **{name: getattr(np, name) for name in ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "sqrt")},
    **{name: getattr(np, name) for name in ("floor", "ceil", "trunc", "sign", "conj", "isnan", "isinf", "invert")},
    **{f"arc{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
    **{name: getattr(np, name) for name in ("exp2", "log2", "log10", "sinh", "cosh", "cbrt", "hypot", "copysign")},
    **{name: getattr(np, name) for name in ("heaviside", "nextafter", "signbit", "fmod", "gcd", "lcm", "bitwise_count")},
    **{"round": np.rint, "neg": np.negative, "abs": np.abs, "real": np.real, "imag": np.imag, "not": np.logical_not},
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "floordiv": np.floor_divide},
    **{"mod": np.mod, "pow": np.power, "min": np.minimum, "max": np.maximum, "eq": np.equal, "ne": np.not_equal},
    **{"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and},
    **{"or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift},
}
OWN = ("sigmoid", "erf", "rsqrt")  # functions that NumPy lacks
_REDUCE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_REDUCE |= {"any": np.logical_or, "all": np.logical_and}


def evaluate(structure: Structure, inputs: Sequence[np.ndarray], reduced: tuple[int, ...] = ()) -> list[np.ndarray]:
    """The outputs for arrays that broadcast against each other; reductions go over the axes ``reduced``, which stay as
    axes of one entry. Sums are in the dtype of the value. Rows run along the axes ``reduced``, too."""
    shape = np.broadcast_shapes(*(a.shape for a in inputs))

    def over(reduce: str, value: np.ndarray) -> np.ndarray:
        value = np.broadcast_to(value, shape)
        return _REDUCE[reduce].reduce(value, axis=reduced, keepdims=True, dtype=value.dtype)

    values = [np.asarray(a) for a in inputs]
    with np.errstate(all="ignore"):
        for node in structure.nodes:
            args = [values[a] for a in node.args]
            values.append(over(node.value, args[0]) if node.op == "over" else _apply(node, args))
        results = []
        for out in structure.outputs:
            value = np.broadcast_to(values[out.value], shape)
            if out.reduce:
                value = over(out.reduce, value)
            results.append(np.asarray(value))
    return results


def _apply(node: Node, args: list[np.ndarray]) -> np.ndarray:
    dtype = as_numpy(node.dtype)
    if node.op == "const":
        return np.asarray(constant(node.value, node.dtype), dtype)
    if node.op == "cast":
        return _cast(args[0], dtype)
    if node.op == "select":
        return np.where(*args)
    if node.op == "pow" and node.dtype in INTEGERS:
        return np.power(args[0], np.maximum(args[1], 0))
    if node.op == "abs" and args[0].dtype.name == "complex64":
        # the C library's hypot of float32 is not always exact where the result is a float
        return np.abs(args[0].astype(np.complex128)).astype(dtype)
    if node.op == "quotient":
        return np.true_divide(*args[:2])
    if node.op == "inverse":
        low, high = DIVISORS[8 * dtype.itemsize]
        return np.where((args[0] >= low) & (args[0] <= high), 1 / args[0], np.inf).astype(dtype)
    if node.op in OWN:
        return special(node.op, args[0]).astype(dtype)
    return np.asarray(_UFUNCS[node.op](*args)).astype(dtype, copy=False)


def _cast(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return (value.real if value.dtype.name in COMPLEX and dtype.kind not in "cb" else value).astype(dtype)


def special(op: str, x: np.ndarray) -> np.ndarray:
    """Functions that NumPy lacks, in extended precision where the machine has it."""
    wide = x.astype(np.longdouble)
    if op == "rsqrt":
        return 1 / np.sqrt(wide)
    if op == "sigmoid":
        return 1 / (1 + np.exp(-wide))
    return _erf(wide)


def _erf(x: np.ndarray) -> np.ndarray:
    """By its series ``2/sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (2n+1)!!``, whose terms are all of one sign."""
    size = np.minimum(np.abs(x), np.asarray(7, x.dtype))
    term = total = size
    for n in range(1, 400):
        term = term * (2 * size * size) / (2 * n + 1)
        total = total + term
    value = np.where(size >= 7, 1, 2 / np.sqrt(np.arccos(-np.ones((), x.dtype))) * np.exp(-size * size) * total)
    return np.copysign(value, x)
