"""Equations whose results nobody reads go; inputs, results and carried values of branches and loops likewise.

Every primitive is pure, so what is not read was not run for anything: not even for the error of an index out of range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ir import Atom, Eqn, Program, Var
from .edit import renumbered, with_params


def dead(program: Program) -> Program:
    """The program without what does not lead to an output. Its inputs and outputs stay."""
    live = _numbers(program.outputs)
    kept: list[Eqn] = []
    for eqn in reversed(program.eqns):
        if not any(var.number in live for var in eqn.outputs):
            continue
        if eqn.op == "cond":
            eqn = _cond(eqn, live)
        elif eqn.op == "while":
            eqn = _while(eqn, live)
        kept.append(eqn)
        live |= _numbers(eqn.inputs)
    consts = [(var, const) for var, const in program.consts if var.number in live]
    return renumbered(program.inputs, program.outputs, kept[::-1], consts)


def part(program: Program, inputs: Sequence[int], outputs: Sequence[int]) -> Program:
    """The program of some inputs, on which alone they depend, and outputs."""
    chosen = replace(program, outputs=tuple(program.outputs[at] for at in outputs))
    found = dead(chosen)
    return renumbered([found.inputs[at] for at in inputs], found.outputs, found.eqns, found.consts)


def inputs_of(program: Program, outputs: Sequence[int]) -> set[int]:
    """Positions of the inputs on which these outputs depend."""
    live = _numbers([program.outputs[at] for at in outputs])
    for eqn in reversed(program.eqns):
        if any(var.number in live for var in eqn.outputs):
            live |= _numbers(eqn.inputs)
    return {at for at, var in enumerate(program.inputs) if var.number in live}


def _numbers(atoms: Sequence[Atom]) -> set[int]:
    return {atom.number for atom in atoms if isinstance(atom, Var)}


def _cond(eqn: Eqn, live: set[int]) -> Eqn:
    true, false = eqn.named["true"], eqn.named["false"]
    outputs = [at for at, var in enumerate(eqn.outputs) if var.number in live]
    inputs = sorted(inputs_of(true, outputs) | inputs_of(false, outputs))
    eqn = with_params(eqn, true=part(true, inputs, outputs), false=part(false, inputs, outputs))
    operands = (eqn.inputs[0], *(eqn.inputs[1 + at] for at in inputs))
    return replace(eqn, inputs=operands, outputs=tuple(eqn.outputs[at] for at in outputs))


def _while(eqn: Eqn, live: set[int]) -> Eqn:
    test, body, count = eqn.named["test"], eqn.named["body"], eqn.named["carried"]
    carried = {at for at, var in enumerate(eqn.outputs) if var.number in live}
    while True:  # a carried value is needed by who reads it, by the test, or by the next turn of one that is needed
        needed = inputs_of(test, [0]) | inputs_of(body, sorted(carried))
        more = {at for at in needed if at < count} - carried
        if not more:
            break
        carried |= more
    outputs = sorted(carried)
    inputs = [*outputs, *(at for at in sorted(needed) if at >= count)]
    eqn = with_params(eqn, test=part(test, inputs, [0]), body=part(body, inputs, outputs), carried=len(outputs))
    operands = tuple(eqn.inputs[at] for at in inputs)
    return replace(eqn, inputs=operands, outputs=tuple(eqn.outputs[at] for at in outputs))
