"""What `joining` finds, as the groups that programs are made of: a fused kernel, or the epilogue or prologue of a product.

A `FusedGroup` says what a Hadamard product, a scaling, a sum of products or a cast computes. It is planned as a map of
a program is, and by the same code it becomes the epilogue of the GEMM whose result it reads, or the prologue of the one
that reads what it computes.
"""

from __future__ import annotations

from typing import Mapping

from .. import cost
from ..kernels.epilogue import nested
from ..kernels.isa import ISA
from ..plan import Axis, Index
from ..views import View
from .epilogue import Fused, epilogue
from .groups import Contraction, FusedGroup, Member, Ref, Stored, fused_plan
from .operations import Operation, OperationList, Value, itemsize
from .parts import Part
from .places import MemoryView
from .staging import staged


def fused_part(operation: Operation, sizes: Mapping[Index, int], threads: int) -> Part:
    """The plan of a fused operation, whose values all have strided layouts."""
    return Part(plan=fused_plan(group_of(operation, sizes), threads))


def group_of(operation: Operation, sizes: Mapping[Index, int]) -> FusedGroup:
    """The loops of a product of all operands, summed over what the result does not have: kept indices, then these."""
    output = operation.output
    summed = dict.fromkeys(i for value in operation.inputs for i in value.term if i not in output.term)
    loops = (*output.term, *summed)
    group = FusedGroup(at=0, shape=tuple(sizes[i] for i in loops))
    compute = operation.compute or output.dtype
    ordered = sorted(operation.inputs, key=lambda value: (value.dtype, value.conj))  # as in `fused_products`
    refs = [_operand(group, value, loops, compute) for value in ordered]
    total = refs[0]
    for ref in refs[1:]:
        total = _member(group, "mul", (total, ref), compute)
    if output.dtype != compute:
        total = _member(group, "cast", (total,), output.dtype)
    reduce = ("any" if output.dtype == "bool" else "sum") if summed else ""
    group.axes = tuple(range(len(output.term), len(loops))) if summed else None
    group.stores.append(Stored(ref=total, place=_place(output, output.term), reduce=reduce))
    return group


def _operand(group: FusedGroup, value: Value, loops: tuple[Index, ...], compute: str) -> Ref:
    place = _place(value, loops, group.shape)
    group.inputs.append(place)
    ref = place if value.dtype == compute else _member(group, "cast", (place,), compute)
    return _member(group, "conj", (ref,), compute) if value.conj else ref


def _member(group: FusedGroup, op: str, args: tuple[Ref, ...], dtype: str) -> int:
    number = len(group.members)
    group.members[number] = Member(op=op, args=args, dtype=dtype)
    return number


def _place(value: Value, loops: tuple[Index, ...], shape: tuple[int, ...] = ()) -> MemoryView:
    """A value in loops, of which it may not have all."""
    axes = [value.axes.get(i) for i in loops]
    assert all(axis is None or axis.linear for axis in axes), "fused operands are strided"
    sizes = shape or tuple(axis.size for axis in axes)
    return MemoryView(value, View(sizes, tuple(0 if axis is None else axis.stride for axis in axes)))


def give_epilogue(maker: Operation, operation: Operation, listed: OperationList, machine: cost.Machine) -> bool:
    """Makes an operation on the result of a GEMM its epilogue, in the place of the operation, if it can be; both have
    their plans."""
    value, output = maker.output, operation.output
    if id(maker) in listed.epilogues or not all(i in value.axes and value.axes[i].linear for i in output.term):
        return False
    group = group_of(operation, listed.sizes)
    place = next(place for place in group.inputs if place.memory is value)
    if not nested(place.view.shape, place.view.strides, itemsize(value.dtype)):
        return False
    if _same_place(value.axes, output.axes) and value.dtype == output.dtype:
        value.source = output  # it is made where it is mapped
    contraction = Contraction(at=0, eqn=None, inputs=[], output=place, then=group)
    found = epilogue(contraction, maker, False, machine)
    if not isinstance(found, Fused):
        value.source = None
        return False
    if not found.stored:
        value.source = output  # which is never read: it has no memory of its own
    found.taken_by(maker, listed)
    listed.epilogues[id(maker)] = found
    maker.strand = operation.strand  # it reads what the operation reads
    listed.operations.remove(maker)
    listed.operations[listed.operations.index(operation)] = maker
    return True


def give_prologue(maker: Operation, operation: Operation, listed: OperationList, isa: ISA, machine: cost.Machine) -> None:
    """Makes an operation on an operand of a GEMM its prologue, if it can be and takes less so; both have their plans."""
    value = maker.output
    if operation.beside or not all(axis.linear for axis in value.axes.values()):
        return
    group = group_of(maker, listed.sizes)
    found = staged(group, group.stores[0].place, [operation], isa, machine)
    if isinstance(found, str):
        return
    _, before = found
    before.taken_by(operation, listed)
    listed.prologues[id(operation)] = before
    value.size = value.nbytes = 0  # it is nowhere as a whole
    listed.operations.remove(maker)


def _same_place(one: Mapping[Index, Axis], other: Mapping[Index, Axis]) -> bool:
    return all(one[i] == other[i] for i in other)
