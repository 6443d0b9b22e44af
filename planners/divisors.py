"""Divisions by what stays the same for many elements side by side, or repeats itself: a number, a column, a row of three.

A division of float64 takes a processor as long as ten products, of float32 as six. Where the inverse of the divisor is known,
three products and a test of several vectors at once have the same bits (`kernels/cpu/quotient.py`). So inverses are a
value of their own, with the divisor's shape, made once.
"""

from __future__ import annotations

from math import prod
from typing import Any, Iterable

from ..dtypes import name_of
from ..ir import Atom, Eqn, Literal, Program, Var
from ..kernels.fused_structure import DIVISORS, FLOATS, LONG, cost_of
from .groups import FusedGroup, Member, Scheduled

Schedule = Any  # `fusion.Schedule`, which imports this module

LEAST_BYTES = 32 << 10  # of the quotient: the step of the inverse takes about what is gained on half of that
RUN_BYTES = 2 << 10  # of elements side by side with the same divisors, at least: a row has to be several times four vectors
PERIOD_BYTES = 96  # of divisors that are repeated: three vectors, in registers, have whole numbers of what divides this


def stays(eqn: Eqn) -> bool:
    """Whether an equation divides by what is worth an inverse."""
    if eqn.op != "div" or any([name_of(atom.dtype) not in FLOATS for atom in eqn.inputs]):
        return False
    shape, divisor = eqn.outputs[0].shape, eqn.inputs[1]
    item = divisor.dtype.itemsize
    if prod(shape) * item < LEAST_BYTES:
        return False
    if isinstance(divisor, Literal):
        low, high = DIVISORS[8 * item]
        return low <= divisor.value <= high
    sizes = (1,) * (len(shape) - len(divisor.shape)) + divisor.shape
    moving = [axis for axis, size in enumerate(sizes) if size > 1]
    count = 1
    if moving and moving[-1] == len(shape) - 1 and PERIOD_BYTES % (item * sizes[-1]) == 0:
        count = sizes[moving.pop()]
    axis = max(moving, default=-1) + 1
    return count < prod(shape[axis:]) and prod(shape[axis:]) * item >= RUN_BYTES


def wanted(program: Program) -> set[int]:
    """Values, by number, that are worth an inverse."""
    found = (eqn.inputs[1] for eqn in program.eqns if stays(eqn))
    return {atom.number for atom in found if isinstance(atom, Var)}


def invert(schedule: Schedule, made: Iterable[Var]) -> None:
    """Inverses of what is there from now on: before the steps that divide begin, which what they divide may be part of."""
    for divisor in made:
        if divisor.number in schedule.inverted and not schedule.is_number(divisor):
            var = Var(next(schedule.extra), divisor.shape, divisor.dtype)
            schedule.computed(var, "inverse", (divisor,))
            schedule.inverses[divisor.number] = var


def quotient(schedule: Schedule, eqn: Eqn) -> tuple[str, tuple[Atom, ...]]:
    """The operation of a map, and what it is applied to: of a division, that which is in its place, if any."""
    if not stays(eqn):
        return eqn.op, eqn.inputs
    dividend, divisor = eqn.inputs
    if isinstance(divisor, Literal):
        return "quotient", (dividend, divisor, Literal.of(1 / divisor.value, divisor.dtype))
    inverse = schedule.inverses.get(divisor.number)
    return (eqn.op, eqn.inputs) if inverse is None else ("quotient", (dividend, divisor, inverse))


def divide(steps: list[Scheduled]) -> None:
    """Beside long functions, which are bound by products, quotients are divided, whose unit has nothing to do there."""
    groups = [step for step in steps if isinstance(step, FusedGroup)]
    if not any(member.op in ("quotient", "inverse") for group in groups for member in group.members.values()):
        return
    for group in groups:
        if any(cost_of(group.members[number].op) >= LONG for number in group.used()):
            group.members |= {number: divided(member) for number, member in group.members.items()}
    read = {id(place.memory) for group in groups for place in group.needed()}
    for group in groups:
        inverses = {number for number, member in group.members.items() if member.op == "inverse"}
        group.stores = [s for s in group.stores if s.ref not in inverses or id(s.place.memory) in read]


def divided(member: Member) -> Member:
    """A member, or the division that it is in place of."""
    if member.op != "quotient":
        return member
    return Member(op="div", args=member.args[:2], dtype=member.dtype)
