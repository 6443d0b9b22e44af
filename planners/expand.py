"""Primitives that are others put together, so that the fuser sees those.

- ``argmax``, ``argmin``: the extreme value, and the least index at which it is, or at which a NaN is;
- ``random_normal``: two uniform numbers, by Box and Muller;
- reductions of float16 and bfloat16: those of float32, rounded once;
- an ``iota`` that is too long for a constant: the sum of two short ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import count
from math import pi
from typing import Any

import numpy as np

from ..dtypes import name_of
from ..ir import Atom, Eqn, Literal, Program, Var
from ..kernels.fused_structure import STORED
from ..op_rules import INDEX
from ..ops import OPS
from ..views import View

LONGEST_IOTA = 1 << 16  # elements: a longer one is not kept as a constant


@lru_cache(maxsize=256)
def expanded(program: Program) -> Program:
    """The program with such primitives replaced.

    >>> from ..ir import Aval, Builder
    >>> build = Builder()
    >>> x = build.input(Aval((2, 3), np.dtype("float32")))
    >>> found = expanded(build.finish([x], build.emit("argmax", (x,), axis=1)))
    >>> print(*(eqn.op for eqn in found.check().eqns))
    reduce_max access eq isnan logical_or iota access select reduce_min cast
    """
    if not any(_expands(eqn) for eqn in program.eqns):
        return program
    numbers = [var.number for var in (*program.inputs, *(var for var, _ in program.consts))]
    numbers += [var.number for eqn in program.eqns for var in eqn.outputs]
    build = Build(1 + max(numbers, default=-1))
    for eqn in program.eqns:
        build.where = eqn.where
        if _expands(eqn):
            _EXPANSIONS[eqn.op](build, eqn)
        else:
            build.eqns.append(eqn)
    return replace(program, eqns=tuple(build.eqns))


def _expands(eqn: Eqn) -> bool:
    if eqn.op == "iota":
        return eqn.named["size"] > LONGEST_IOTA
    if eqn.op in _REDUCTIONS:
        return name_of(eqn.inputs[0].dtype) in STORED
    return eqn.op in _EXPANSIONS


class Build:
    """Equations one after the other; numbers of new values follow those of the program."""

    def __init__(self, first: int) -> None:
        self.eqns: list[Eqn] = []
        self.where = ""
        self._numbers = count(first)

    def __call__(self, op: str, *inputs: Atom, out: Var | None = None, **params: Any) -> Var:
        """The result of a primitive; ``out``: the value that it is."""
        (aval,) = OPS[op].rule(*(atom.aval for atom in inputs), **params)
        var = out or Var(next(self._numbers), aval.shape, aval.dtype)
        self.eqns.append(Eqn(op, inputs, (var,), tuple(sorted(params.items())), self.where))
        return var

    def along(self, atom: Var, axis: int, shape: tuple[int, ...]) -> Var:
        """A value without ``axis``, or of one axis (-1: itself), as one of this shape."""
        view = View.whole(atom.shape).expand((axis,)).broadcast(shape)
        return self("access", atom, view=view)


def _extreme(build: Build, eqn: Eqn) -> None:
    (x,), (var,), axis = eqn.inputs, eqn.outputs, eqn.named["axis"]
    axis %= max(len(x.shape), 1)
    if x.dtype.name in STORED:
        x = build("cast", x, dtype=np.dtype("float32"))
    top = build("reduce_max" if eqn.op == "argmax" else "reduce_min", x, axes=(axis,))
    found = build("eq", x, build.along(top, axis, x.shape))
    if x.dtype.kind in "fc":
        found = build("logical_or", found, build("isnan", x))
    size = x.shape[axis]
    # as wide as the values, so that a vector has as many of both
    kind = np.dtype("int32") if x.dtype.itemsize < 8 and size < 2**31 else INDEX
    places = build("iota", size=size, dtype=kind) if size <= LONGEST_IOTA else _long_iota(build, size, kind)
    strides = tuple(int(at == axis) for at in range(len(x.shape)))
    places = build("access", places, view=View(x.shape, strides))
    places = build("select", found, places, Literal.of(size, kind))
    if kind == INDEX:
        build("reduce_min", places, out=var, axes=(axis,))
    else:
        build("cast", build("reduce_min", places, axes=(axis,)), out=var, dtype=INDEX)


def _long_iota(build: Build, size: int, dtype: np.dtype, out: Var | None = None) -> Var:
    """Rows of a power of two entries: what a row begins with, plus a place in it."""
    width = 1 << ((size - 1).bit_length() + 1) // 2
    rows = -(-size // width)
    low, high = (build("iota", size=n, dtype=INDEX) for n in (width, rows))
    high = build("mul", high, Literal.of(width, INDEX))
    wide = build("add", build.along(high, 1, (rows, width)), build.along(low, 0, (rows, width)))
    flat = build("access", wide, view=View((size,), (1,)))
    return build("cast", flat, out=out, dtype=np.dtype(dtype))


def _iota(build: Build, eqn: Eqn) -> None:
    _long_iota(build, eqn.named["size"], np.dtype(eqn.named["dtype"]), eqn.outputs[0])


def _normal(build: Build, eqn: Eqn) -> None:
    """The same operations in the same order as `op_numpy.random_normal`."""
    (key,), (var,) = eqn.inputs, eqn.outputs
    kind = np.dtype("float64")
    pairs = build("random_uniform", key, shape=(*var.shape, 2), dtype=kind, stream=2)
    whole = View.whole(pairs.shape)
    u, v = (build("access", pairs, view=whole.index((..., at))) for at in (0, 1))
    radius = build("sqrt", build("mul", Literal.of(-2, kind), build("log1p", build("neg", u))))
    angle = build("cos", build("mul", Literal.of(2 * pi, kind), v))
    build("cast", build("mul", radius, angle), out=var, dtype=var.dtype)


def _reduction(build: Build, eqn: Eqn) -> None:
    (x,), (var,) = eqn.inputs, eqn.outputs
    wide = build(eqn.op, build("cast", x, dtype=np.dtype("float32")), axes=eqn.named["axes"])
    build("cast", wide, out=var, dtype=var.dtype)


_REDUCTIONS = ("sum", "prod", "reduce_max", "reduce_min", "any", "all")
_EXPANSIONS = {
    "argmax": _extreme,
    "argmin": _extreme,
    "random_normal": _normal,
    "iota": _iota,
    **{name: _reduction for name in _REDUCTIONS},
}
