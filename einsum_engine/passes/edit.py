"""What passes share: a program copied equation by equation, with values replaced on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..ir import Atom, Const, Eqn, Program, Var
from ..ops import OPS

Pass = Callable[[Program], Program]


def renumbered(
    inputs: Sequence[Var], outputs: Sequence[Atom], eqns: Sequence[Eqn], consts: Iterable[tuple[Var, Const]]
) -> Program:
    """The program with values numbered from 0 as `Builder.finish` does, so that equal ones are equal. What has its
    numbers already is not made again."""
    consts = tuple(consts)
    order = [*inputs, *[var for var, _ in consts], *[var for eqn in eqns for var in eqn.outputs]]
    if [var.number for var in order] == list(range(len(order))):
        return Program(tuple(inputs), tuple(outputs), tuple(eqns), consts)
    fresh = {var.number: Var(number, var.shape, var.dtype) for number, var in enumerate(order)}

    def named(atoms: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([fresh[atom.number] if isinstance(atom, Var) else atom for atom in atoms])

    return Program(
        inputs=named(inputs),
        outputs=named(outputs),
        eqns=tuple([Eqn(e.op, named(e.inputs), named(e.outputs), e.params, e.where) for e in eqns]),
        consts=tuple([(fresh[var.number], const) for var, const in consts]),
    )


def has_regions(eqn: Eqn) -> bool:
    """Whether programs are among its parameters."""
    return bool(eqn.params) and any([isinstance(value, Program) for _, value in eqn.params])


def in_regions(eqn: Eqn, change: Pass) -> Eqn:
    """The equation with its programs changed."""
    if not has_regions(eqn):
        return eqn
    return replace(eqn, params=tuple((k, change(v) if isinstance(v, Program) else v) for k, v in eqn.params))


def with_params(eqn: Eqn, **params: Any) -> Eqn:
    """The equation with some parameters replaced."""
    return replace(eqn, params=tuple(sorted({**eqn.named, **params}.items())))


def _numbers(program: Program) -> int:
    """The first number that no value of a program has."""
    numbers = [var.number for var in program.inputs]
    numbers += [var.number for var, _ in program.consts]
    numbers += [var.number for eqn in program.eqns for var in eqn.outputs]
    return max(numbers, default=-1) + 1


class Rewriter:
    """The equations of a program to come. A value that was replaced is replaced wherever it is used later.

    ``defs``: number of a value -> the equation that makes it.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.eqns: list[Eqn] = []
        self.defs: dict[int, Eqn] = {}
        self._replaced: dict[int, Atom] = {}
        self._count: int | None = None  # the next new value's number

    def now(self, atom: Atom) -> Atom:
        """What stands for ``atom``."""
        return self._replaced.get(atom.number, atom) if isinstance(atom, Var) else atom

    def renamed(self, eqn: Eqn) -> Eqn:
        """The equation with operands replaced."""
        if not self._replaced:
            return eqn
        inputs = tuple([self.now(atom) for atom in eqn.inputs])
        return eqn if inputs == eqn.inputs else replace(eqn, inputs=inputs)

    def keep(self, eqn: Eqn) -> None:
        """Append an equation of the program, its operands being those of now."""
        self.eqns.append(eqn)
        for var in eqn.outputs:
            self.defs[var.number] = eqn

    def put(self, var: Var, atom: Atom) -> None:
        """``atom`` stands for ``var`` from here on."""
        if atom is not var and atom != var:
            self._replaced[var.number] = atom

    def var(self, shape: tuple[int, ...], dtype: np.dtype) -> Var:
        """A new value."""
        if self._count is None:
            self._count = _numbers(self.program)
        self._count += 1
        return Var(self._count - 1, shape, dtype)

    def emit(self, op: str, inputs: Sequence[Atom], where: str, **params: Any) -> tuple[Var, ...]:
        """Append a new equation; its results, by the primitive's rule."""
        outputs = []
        for aval in OPS[op].rule(*(atom.aval for atom in inputs), **params):
            outputs.append(self.var(aval.shape, aval.dtype))
        self.keep(Eqn(op, tuple(inputs), tuple(outputs), tuple(sorted(params.items())), where))
        return tuple(outputs)

    def finish(self) -> Program:
        """The program as it is now."""
        outputs = [self.now(atom) for atom in self.program.outputs]
        return renumbered(self.program.inputs, outputs, self.eqns, self.program.consts)
