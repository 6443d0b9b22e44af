"""The primitive table: `OPS` has one row per primitive, and a row holds everything that is known of it.

A new column is one more field of `Primitive`; `tests/test_ops.py` refuses a cell that is empty without saying why.

>>> from .avals import Aval
>>> a = Aval((3, 1), np.dtype("float32"))
>>> OPS["mul"].rule(a, Aval((4,), np.dtype("float32")))
(Aval(shape=(3, 4), dtype=dtype('float32')),)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from . import op_numpy, op_rules

KINDS = ("einsum", "map", "reduce", "view", "index", "shape", "control", "random")


@dataclass(frozen=True)
class Missing:
    """An empty cell, with the reason."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Primitive:
    """One row.

    ``kind``: what it is to a pass. ``operands``: how many, or None for any number. ``numpy(*arrays, **params)``: the
    definition. ``rule(*avals, **params)``: the result avals, or an error. ``cpu``: for maps, an expression in the
    operands ``a``, ``b``, ``c``, numbers (of the operands' dtype), Python's operators and the functions of
    `INSTRUCTIONS`; for reductions, what combines two values ``a`` and ``b``.
    """

    name: str
    kind: str
    operands: int | None
    numpy: Callable[..., Any]
    rule: op_rules.Rule
    cpu: str | Missing


# Functions that the text of a map may use: what a kernel generator has to provide, with their meaning.
INSTRUCTIONS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {
        **{name: getattr(np, name) for name in ("exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "tanh")},
        **{name: getattr(np, name) for name in ("exp2", "log2", "log10", "sinh", "cosh", "cbrt", "hypot")},
        **{f"arc{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
        **{name: getattr(np, name) for name in ("floor", "ceil", "trunc", "rint", "sign", "conj", "isfinite")},
        **{name: getattr(np, name) for name in ("copysign", "signbit", "heaviside", "fmod", "nextafter")},
        **{name: getattr(np, name) for name in ("gcd", "lcm", "bitwise_count")},
        "abs": np.absolute,
        "pow": np.power,
        "min": np.minimum,
        "max": np.maximum,
        "floordiv": np.floor_divide,
        "mod": np.remainder,
        "select": np.where,
        "erf": op_numpy.erf,
        "real": op_numpy.real,
        "imag": op_numpy.imag,
        "lnot": np.logical_not,
        "truth": lambda x: x.astype(bool),
        "shl": np.left_shift,
        "shr": np.right_shift,
    }
)

# name: NumPy's ufunc, text
_UFUNCS: dict[str, tuple[np.ufunc, str]] = {
    "add": (np.add, "a + b"),
    "sub": (np.subtract, "a - b"),
    "mul": (np.multiply, "a * b"),
    "div": (np.true_divide, "a / b"),
    "floordiv": (np.floor_divide, "floordiv(a, b)"),
    "mod": (np.remainder, "mod(a, b)"),
    "pow": (np.power, "pow(a, b)"),
    "neg": (np.negative, "-a"),
    "abs": (np.absolute, "abs(a)"),
    "sign": (np.sign, "sign(a)"),
    "eq": (np.equal, "a == b"),
    "ne": (np.not_equal, "a != b"),
    "lt": (np.less, "a < b"),
    "le": (np.less_equal, "a <= b"),
    "gt": (np.greater, "a > b"),
    "ge": (np.greater_equal, "a >= b"),
    "exp": (np.exp, "exp(a)"),
    "log": (np.log, "log(a)"),
    "log1p": (np.log1p, "log1p(a)"),
    "expm1": (np.expm1, "expm1(a)"),
    "sqrt": (np.sqrt, "sqrt(a)"),
    "sin": (np.sin, "sin(a)"),
    "cos": (np.cos, "cos(a)"),
    "tan": (np.tan, "tan(a)"),
    "tanh": (np.tanh, "tanh(a)"),
    "exp2": (np.exp2, "exp2(a)"),
    "log2": (np.log2, "log2(a)"),
    "log10": (np.log10, "log10(a)"),
    "sinh": (np.sinh, "sinh(a)"),
    "cosh": (np.cosh, "cosh(a)"),
    "arcsin": (np.arcsin, "arcsin(a)"),
    "arccos": (np.arccos, "arccos(a)"),
    "arctan": (np.arctan, "arctan(a)"),
    "arctan2": (np.arctan2, "arctan2(a, b)"),
    "arcsinh": (np.arcsinh, "arcsinh(a)"),
    "arccosh": (np.arccosh, "arccosh(a)"),
    "arctanh": (np.arctanh, "arctanh(a)"),
    "cbrt": (np.cbrt, "cbrt(a)"),
    "hypot": (np.hypot, "hypot(a, b)"),
    "copysign": (np.copysign, "copysign(a, b)"),
    "signbit": (np.signbit, "signbit(a)"),
    "heaviside": (np.heaviside, "heaviside(a, b)"),
    "nextafter": (np.nextafter, "nextafter(a, b)"),
    "fmod": (np.fmod, "fmod(a, b)"),
    "gcd": (np.gcd, "gcd(a, b)"),
    "lcm": (np.lcm, "lcm(a, b)"),
    "bitwise_count": (np.bitwise_count, "bitwise_count(a)"),
    "floor": (np.floor, "floor(a)"),
    "ceil": (np.ceil, "ceil(a)"),
    "trunc": (np.trunc, "trunc(a)"),
    "round": (np.rint, "rint(a)"),
    "min": (np.minimum, "min(a, b)"),
    "max": (np.maximum, "max(a, b)"),
    "conj": (np.conjugate, "conj(a)"),
    "isnan": (np.isnan, "a != a"),
    "isinf": (np.isinf, "(a == a) & lnot(isfinite(a))"),
    "isfinite": (np.isfinite, "isfinite(a)"),
    "logical_and": (np.logical_and, "truth(a) & truth(b)"),
    "logical_or": (np.logical_or, "truth(a) | truth(b)"),
    "logical_xor": (np.logical_xor, "truth(a) ^ truth(b)"),
    "logical_not": (np.logical_not, "lnot(a)"),
    "bit_and": (np.bitwise_and, "a & b"),
    "bit_or": (np.bitwise_or, "a | b"),
    "bit_xor": (np.bitwise_xor, "a ^ b"),
    "bit_not": (np.invert, "~a"),
    "shl": (np.left_shift, "shl(a, b)"),
    "shr": (np.right_shift, "shr(a, b)"),
}

_NO_WORK = Missing("moves no element by itself: a table of offsets, or a copy along one")
_NOT_SCALAR = Missing("not an expression of one element: its kernel is written by hand")
_PAIR = Missing("an index travels with the value: two values are carried")
_PROGRAMS = Missing("rows of the step table: its programs hold the text")


def _rows() -> list[Primitive]:
    rows = [
        Primitive(name=name, kind="map", operands=f.nin, numpy=f, rule=op_rules.elementwise(f), cpu=text)
        for name, (f, text) in _UFUNCS.items()
    ]

    def row(name: str, kind: str, operands: int | None, rule: Any, cpu: str | Missing, numpy: Any = None) -> None:
        meaning = numpy or getattr(op_numpy, name)
        rows.append(Primitive(name=name, kind=kind, operands=operands, numpy=meaning, rule=rule, cpu=cpu))

    row("erf", "map", 1, op_rules.floating, "erf(a)")
    row("sigmoid", "map", 1, op_rules.floating, "select(a < 0, exp(-abs(a)), 1) / (1 + exp(-abs(a)))")
    row("rsqrt", "map", 1, op_rules.floating, "1 / sqrt(a)")
    row("select", "map", 3, op_rules.select, "select(a, b, c)")
    row("real", "map", 1, op_rules.component, "real(a)")
    row("imag", "map", 1, op_rules.component, "imag(a)")
    row("cast", "map", 1, op_rules.cast, Missing("a conversion between the dtypes of operand and result"))

    neutral, strict = op_rules.reduction(empty=True), op_rules.reduction(empty=False)
    logical = op_rules.reduction(empty=True, result=op_rules.BOOL)
    row("sum", "reduce", 1, neutral, "a + b", op_numpy.reduction(np.sum))
    row("prod", "reduce", 1, neutral, "a * b", op_numpy.reduction(np.prod))
    row("reduce_max", "reduce", 1, strict, "max(a, b)", op_numpy.reduction(np.max))
    row("reduce_min", "reduce", 1, strict, "min(a, b)", op_numpy.reduction(np.min))
    row("any", "reduce", 1, logical, "truth(a) | truth(b)", op_numpy.reduction(np.any))
    row("all", "reduce", 1, logical, "truth(a) & truth(b)", op_numpy.reduction(np.all))
    row("argmax", "reduce", 1, op_rules.arg_reduction, _PAIR)
    row("argmin", "reduce", 1, op_rules.arg_reduction, _PAIR)
    row("einsum", "einsum", None, op_rules.einsum, Missing("the kernel families of contractions"))

    row("access", "view", 1, op_rules.access, _NO_WORK)
    row("copy", "view", 1, op_rules.copy, "a")
    row("assign", "view", 2, op_rules.assign, _NO_WORK)
    row("gather", "index", None, op_rules.gather, _NO_WORK)
    row("scatter", "index", None, op_rules.scatter, _NO_WORK)
    row("scatter_add", "index", None, op_rules.scatter, "a + b")
    row("concatenate", "shape", None, op_rules.concatenate, _NO_WORK)
    row("pad", "shape", 2, op_rules.pad, _NO_WORK)
    row("iota", "shape", 0, op_rules.iota, _NOT_SCALAR)
    row("sort", "shape", 1, op_rules.sort, _NOT_SCALAR)
    row("argsort", "shape", 1, op_rules.argsort, _NOT_SCALAR)
    row("cond", "control", None, op_rules.cond, _PROGRAMS)
    row("while", "control", None, op_rules.while_, _PROGRAMS, op_numpy.while_)
    row("random_bits", "random", 1, op_rules.random_bits, _NOT_SCALAR)
    row("random_uniform", "random", 1, op_rules.random_uniform, _NOT_SCALAR)
    row("random_normal", "random", 1, op_rules.random_float, _NOT_SCALAR)
    return rows


OPS: MappingProxyType[str, Primitive] = MappingProxyType({row.name: row for row in _rows()})

# Primitives whose result is operand 0 with some elements replaced: what may be done in its memory.
WRITES = ("assign", "scatter", "scatter_add")

# NumPy's ufunc -> row with its meaning.
BY_UFUNC: MappingProxyType[np.ufunc, str] = MappingProxyType({f: name for name, (f, _) in _UFUNCS.items()})
