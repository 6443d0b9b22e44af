"""Maps of a program as nodes of a fused kernel: which primitive on which dtypes is which operation there.

float16 and bfloat16 are computed in float32 and rounded after every operation, as NumPy does.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import name_of
from ..errors import EngineValueError
from ..kernels.fused_structure import INTEGERS, REDUCTIONS, STORED, Graph
from .request import NotLowered

# Primitives whose operation has another name.
_NAMES = {"bit_and": "and", "bit_or": "or", "bit_xor": "xor", "bit_not": "invert"}
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_OF_BOOL = {"add": "or", "mul": "and"}  # what NumPy's arithmetic is on bool
_ROUNDING = ("floor", "ceil", "trunc", "round")


def apply(graph: Graph, op: str, args: list[int], dtype: str) -> int:
    """The value of primitive ``op``, of ``dtype``, on values of a graph; `NotLowered` where kernels have none."""
    given = [graph.dtype(a) for a in args]
    if op == "cast":
        return graph.cast(args[0], dtype)
    if op == "copy":
        return args[0]
    if any(name in STORED for name in given):
        if op == "nextafter":
            raise NotLowered(f"there is no kernel for {op} of {given[0]}: it is not that of float32, rounded")
        args = [graph.cast(a, "float32") if name in STORED else a for a, name in zip(args, given)]
        wide = "float32" if dtype in STORED else dtype
        return graph.cast(apply(graph, op, args, wide), dtype)
    try:
        return _plain(graph, op, args, given[0])
    except EngineValueError as error:
        raise NotLowered(f"there is no kernel for {op} of {', '.join(given)} ({error})") from None


def _plain(graph: Graph, op: str, args: list[int], dtype: str) -> int:
    if op in _LOGICAL:
        return graph.op(_LOGICAL[op], *(graph.cast(a, "bool") for a in args))
    if op == "logical_not":
        return graph.op("not", graph.cast(args[0], "bool"))
    if dtype == "bool" and op in _OF_BOOL:
        return graph.op(_OF_BOOL[op], *args)
    whole = dtype in INTEGERS or dtype == "bool"
    if (op in _ROUNDING and whole) or (op == "abs" and dtype == "bool") or (op in ("conj", "real") and whole):
        return args[0]
    if op in ("conj", "real") and not dtype.startswith("complex"):
        return args[0]
    if op == "imag" and not dtype.startswith("complex"):
        return graph.const(0, dtype)
    if op in ("isnan", "isinf") and whole:
        return graph.const(False, "bool")
    if op == "isfinite":
        if whole:
            return graph.const(True, "bool")
        return graph.op("not", graph.op("or", graph.op("isnan", args[0]), graph.op("isinf", args[0])))
    return graph.op(_NAMES.get(op, op), *args)


def literal(graph: Graph, value: np.generic) -> int:
    """A scalar of a program as a constant of the graph."""
    name = name_of(value.dtype)
    if name in STORED:
        return graph.cast(graph.const(float(value), "float32"), name)
    return graph.const(value.item(), name)


def reduced(graph: Graph, op: str, value: int) -> tuple[int, str]:
    """The value that is reduced, and the kernel's name of the reduction `op`."""
    name = {"reduce_max": "max", "reduce_min": "min"}.get(op, op)
    dtype = graph.dtype(value)
    if name in ("any", "all"):
        return graph.cast(value, "bool"), name
    if dtype == "bool" and name in ("max", "min"):
        return value, {"max": "any", "min": "all"}[name]
    if dtype not in REDUCTIONS[name]:
        raise NotLowered(f"there is no kernel for {op} of {dtype}")
    return value, name


