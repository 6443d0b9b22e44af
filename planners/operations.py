"""From the outline of a contraction to operations on single-assignment values, before any layout is chosen.

Each value is produced once and consumed at most once, unless `sharing` finds that it is the value of others too.
Operations: ``copy`` (cast, permutation, diagonal, scaling),
``sum`` (indices that occur in one operand only), ``mul`` (no summed index) and ``gemm`` (summed indices); `joining`
makes ``fused`` ones of them: the product of several operands, summed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Mapping

from .. import cost
from ..kernels import isa as isa_table
from ..plan import Axis, Index, linear_axes
from ..views import dense_strides
from . import shared_lines
from .elements import REAL_PART, itemsize
from .layout import dense_axes
from .outline import REMEMBERED, Asked, Outline, outlined
from .request import PlanRequest
from .splitting import LEAST_OPERANDS, ROWS_BYTES, SLENDER, SumCut, cut, pieces_of_a_line, pieces_of_k, pieces_of_tiles
from .turned import LEAST_BYTES as LEAST_TURNED
from .turned import term_of_product

PARTS = "\x00parts"  # index of the real and imaginary part, where a complex tensor is worked on as a real one
_size = attrgetter("size")


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of the plan. ``axes`` is None while its layout is free; ``conj``: to be conjugated when read; ``size``: bytes
    of its elements, gaps of its layout not counted, and ``nbytes`` with them, 0 where these are not yet known.

    ``source``: the value whose memory it is, under other indices, where it has none of its own; it starts ``shift``
    bytes behind the first element of that.
    """

    number: int
    term: tuple[Index, ...]
    dtype: str
    kind: str  # input, output, arena
    size: int = 0
    axes: Mapping[Index, Axis] | None = None
    conj: bool = False
    slot: int = -1
    swapped_bytes: bool = False
    constant: bool = False  # depends on constant operands alone
    offset: int = 0
    nbytes: int = 0
    layout_kind: str = "strided"
    panel: int = 0
    source: Value | None = None
    shift: int = 0

    @property
    def memory(self) -> Value:
        """The value whose memory this one is read from: mostly itself."""
        return self if self.source is None else self.source.memory

    def real_view(self, parts: bool) -> tuple[tuple[Index, ...], Mapping[Index, Axis] | None]:
        """Term and axes; with ``parts`` of a complex tensor as a real one that has the index PARTS besides."""
        if not parts or self.dtype not in REAL_PART:
            return self.term, self.axes
        axis = Axis.strided(PARTS, 2, itemsize(self.dtype) // 2)
        return (*self.term, PARTS), {**self.axes, PARTS: axis}


@dataclass(eq=False, slots=True)
class Operation:
    """One step: ``kind``, the values read and the value written; ``more``: further values that it writes; ``beside``:
    that its epilogue reads; ``compute``: of a ``fused`` one, the dtype in which it multiplies and adds."""

    kind: str
    inputs: tuple[Value, ...]
    output: Value
    scaled: bool = False
    more: tuple[Value, ...] = ()
    beside: tuple[Value, ...] = ()
    compute: str = ""
    tail: tuple[Index, Index, int] | None = None  # of a sum cut into pieces: `contraction.BinaryContraction.tail`
    strand: int = 0  # 0: all threads share it; else it is one of a strand's, which one thread does (`strands`)
    alone: bool = False  # one thread does it, whatever the others do (`strands.leave_alone`)
    parts: tuple = ()  # what the planner of its kind decided: `planners.memo.Planned`, one after the other
    work: tuple[int, int] | None = None  # what `OperationList.work` found

    @property
    def mixed(self) -> bool:
        """A complex tensor times a real one: done on real numbers, the complex one having an index more."""
        return len(self.inputs) == 2 and not self.compute and self.inputs[0].dtype != self.inputs[1].dtype

    @property
    def outputs(self) -> tuple[Value, ...]:
        """All values that are written."""
        return (self.output, *self.more)

    @property
    def constant(self) -> bool:
        """Computed once: it reads constants alone. What is written to the caller's memory is written each time."""
        return self.output.constant


class OperationList:
    """Builds the operations of a request, in execution order."""

    def __init__(self, request: PlanRequest, compute: str):
        self.request, self.compute = request, compute
        self.values: list[Value] = []
        self.operations: list[Operation] = []
        self.drawn = self.operations  # those of the outline: where they are others, they are another list
        self.outline: Outline | None = None
        self.epilogues: dict[int, Any] = {}  # id of a product -> `epilogue.Fused`, where it has one
        self.prologues: dict[int, Any] = {}  # and `staging.Staged`
        self.sizes = dict(request.expr.sizes)
        if 1 in self.sizes.values():
            self.sizes = {i: s for i, s in self.sizes.items() if s != 1}
        self.out_term = tuple(dict.fromkeys([i for i in request.expr.output if i in self.sizes]))

    @property
    def given(self) -> bool:
        """Whether the output is memory that the caller gives, with strides and perhaps a beginning of its own."""
        return self.request.out_strides is not None

    def build(self) -> None:
        request, expr, size = self.request, self.request.expr, self.sizes.__getitem__
        placed = list(map(_placed, expr.inputs, expr.shapes, request.strides))
        outline = self.outline = self._outline(tuple([term for term, _ in placed]))
        values = self.values = [
            Value(number, term, dtype, kind, math.prod(map(size, term)) * item, None, conj, number, swapped, constant)
            for number, (term, dtype, kind, item, conj, swapped, constant) in enumerate(outline.values)
        ]
        for value, (_, axes) in zip(values, (*placed, self._placed_output())):
            value.axes = axes
        self.operations = self.drawn = [
            Operation(kind, tuple(map(values.__getitem__, inputs)), values[output], scaled)
            for kind, inputs, output, scaled, _ in outline.operations
        ]
        if max([value.size for value in values]) >= shared_lines.LEAST_BYTES:  # smaller products gain by neither
            self._divide(outline)

    def _outline(self, terms: tuple[tuple[Index, ...], ...]) -> Outline:
        request = self.request
        asked = Asked(
            request.dtypes,
            request.dtype,
            self.compute,
            request.conj,
            request.byteswapped,
            request.constants,
            request.scaled,
        )
        found = outlined if len(terms) <= REMEMBERED else outlined.__wrapped__
        return found(terms, self.out_term, request.order.path, asked)

    def _placed_output(self) -> tuple[tuple[Index, ...], Mapping[Index, Axis]]:
        request = self.request
        shape, strides = request.expr.output_shape, request.out_strides
        if strides is None:
            strides = dense_strides(shape, itemsize(request.dtype))
        return _placed(request.expr.output, shape, strides)

    def drop(self, numbers: set[int]) -> None:
        """Forgets the operations and values with these ids."""
        self.operations = [operation for operation in self.operations if id(operation) not in numbers]
        self.values = [value for value in self.values if id(value) not in numbers]

    # -- work ------------------------------------------------------------------------------------------------
    def nbytes(self, value: Value) -> int:
        """Bytes of the elements of a value, gaps of its layout not counted."""
        return value.size

    def work(self, operation: Operation) -> tuple[int, int]:
        """Flops of an operation, and bytes of its distinct elements."""
        if operation.work is None:
            operation.work = self._work(operation)
        return operation.work

    def rooflines(self, machine: cost.Machine) -> dict[int, float]:
        """Predicted seconds of each operation on one thread, by its id."""
        return {id(each): cost.seconds(*self.work(each), self.compute, machine) for each in self.operations}

    def _work(self, operation: Operation) -> tuple[int, int]:
        inputs, kind = operation.inputs, operation.kind
        moved = sum(map(_size, inputs), operation.output.size)
        if kind == "copy":
            return 0, moved
        indices = {*inputs[0].term, *inputs[-1].term}
        if len(inputs) > 2:
            indices.update(*[value.term for value in inputs[1:-1]])
        points = math.prod(map(self.sizes.__getitem__, indices))
        if operation.tail is not None:
            piece, index, more = operation.tail
            points += points // (self.sizes[piece] * self.sizes[index]) * more
        if kind == "sum":
            return points, moved
        if kind == "fused":
            times = len(inputs) - 1
            adds = any([i not in operation.output.term for i in indices])
            return times * cost.contraction_flops(points, self.compute, False) + adds * points, moved
        return cost.contraction_flops(points, self.compute, kind == "gemm"), moved

    # -- large products --------------------------------------------------------------------------------------
    def _divide(self, outline: Outline) -> None:
        """Products of large operands that do better as one with an index more, and a sum of what that makes, or with a result in
        another order, and a copy of that."""
        operations = self.operations
        self.operations = []
        for operation, (*_, term) in zip(operations, outline.operations):
            parts, rest = self._divided(operation, term)
            if parts is not None:
                behind = operation.output
                self.values.insert(self.values.index(behind) if behind.kind == "arena" else len(self.values), parts)
                self.operations.append(Operation("gemm", operation.inputs, parts, tail=operation.tail))
                operation.kind, operation.inputs, operation.tail = rest, (parts,), None
                operation.work = 0, parts.size + behind.size  # what is added there is among the product's flops
            self.operations.append(operation)
        for number, value in enumerate(self.values):
            value.number = number

    def _divided(self, operation: Operation, term: tuple[Index, ...]) -> tuple[Value | None, str]:
        """What the product of an operation makes where the rest is an operation of its own, and what kind that is; else None."""
        if operation.kind != "gemm" or operation.mixed:
            return None, ""
        if max([value.size for value in operation.inputs]) >= shared_lines.LEAST_BYTES:
            parts = self._in_lines(operation, term) or self._in_pieces(operation, term) or self._along_lines(*operation.inputs, term)
            if parts is not None:
                return parts, "sum"
        return self._turned(operation), "copy"

    def _in_pieces(self, operation: Operation, term: tuple[Index, ...]) -> Value | None:
        """The result of a product of two operands whose long sum is cut into pieces for the threads; None where that does
        not pay."""
        x, y = operation.inputs
        if x.size + y.size < LEAST_OPERANDS:
            return None
        free = not x.kind == y.kind == "input"
        if free and self.request.layouts != "solve":  # asked for by name
            return None
        item = itemsize(x.dtype)
        axes = [dense_axes(v.term[::-1], self.sizes, item) if v.axes is None else v.axes for v in (x, y)]
        chosen = pieces_of_k(*axes, term, itemsize=item, threads=self.request.threads, free=free)
        return None if chosen is None else self._cut(operation, chosen, term)

    def _in_lines(self, operation: Operation, term: tuple[Index, ...]) -> Value | None:
        """The result of a product of corresponding elements whose rows are less than a line, or that lie along different
        terms, with some terms beside them that are added later; None where that does not pay, or no fused kernel is to do
        it (`joining.adds_rows`, `weighted`)."""
        x, y = operation.inputs
        known = x.kind == y.kind == "input" and x.dtype == y.dtype and not (x.swapped_bytes or y.swapped_bytes)
        if not known or not self.request.fuse or x.size + y.size < LEAST_OPERANDS:
            return None
        item, chosen, first = itemsize(x.dtype), None, ()
        if term and x.size + y.size >= ROWS_BYTES:
            chosen = pieces_of_a_line(x.axes, y.axes, term, itemsize=item)
        if chosen is None and (chosen := pieces_of_tiles(x.axes, y.axes, term, rows=self._few(x))):
            first = chosen.whole
        if chosen is None:
            return None
        parts = self._cut(operation, chosen, term)
        larger = max((x.axes, y.axes), key=len)
        order = sorted(larger, key=lambda i: (i not in first, abs(larger[i].stride)))
        parts.axes = dense_axes([i for i in order if i in parts.term], self.sizes, item)
        return parts

    def _few(self, value: Value) -> float:
        """Rows that are few beside a vector of elements of a value."""
        return SLENDER * isa_table.get(self.request.isa).vector_bits / (8 * itemsize(value.dtype))

    def _cut(self, operation: Operation, chosen: SumCut, term: tuple[Index, ...]) -> Value:
        """The result of a product whose sum is cut, and the cut of what it reads."""
        x, y = operation.inputs
        if not chosen.index:
            return self._value((*chosen.whole, *term), x, y)
        piece = f"{chosen.index}'"
        for value in self.values:  # also what the operands are made from
            if chosen.index in value.term and value.axes is not None:
                value.axes = cut(value.axes, chosen, piece)
                value.term = tuple(value.axes)
            elif chosen.index in value.term:
                value.term = (piece, *value.term)
        self.sizes[piece], self.sizes[chosen.index] = chosen.count, chosen.length
        if chosen.tail:
            operation.tail = piece, chosen.index, chosen.tail
        return self._value((*chosen.whole, piece, *term), x, y)

    def _along_lines(self, x: Value, y: Value, term: tuple[Index, ...]) -> Value | None:
        """The result of a product of large operands whose lanes run along a sum; None without a gain."""
        small, large = sorted((x, y), key=self.nbytes)
        if large.kind != "input" or self.request.layouts != "solve" or not self.request.fuse:
            return None
        order = sorted(large.term, key=lambda i: abs(large.axes[i].stride))
        axes = small.axes
        if axes is None:  # free: it lies as the large one does, where it has no index of its own
            if not large.axes.keys() >= set(small.term):
                return None
            axes = dense_axes((i for i in order if i in small.term), self.sizes, itemsize(x.dtype))
        summed = shared_lines.lanes_of_sum(axes, large.axes, term, x.dtype, isa_table.get(self.request.isa))
        if not summed:
            return None
        kept = (*summed, *term)
        order = [i for i in order if i in kept] + [i for i in kept if i not in large.term]
        lanes = self._value(kept, x, y)
        lanes.axes = dense_axes(order, self.sizes, itemsize(x.dtype))
        return lanes

    def _turned(self, operation: Operation) -> Value | None:
        """What a product stores that is turned round afterwards; None where that does not pay."""
        (x, y), out, request = operation.inputs, operation.output, self.request
        if not (x.kind == y.kind == "input" and out.kind == "output") or out.dtype != x.dtype:
            return None
        if request.layouts != "solve" or not request.fuse or max(x.size, y.size, out.size) < LEAST_TURNED:
            return None
        lanes = isa_table.get(request.isa).vector_bits // (8 * itemsize(x.dtype))
        term = term_of_product(x.axes, y.axes, out.axes, itemsize(x.dtype), lanes)
        if term is None:
            return None
        found = self._value(term, x, y)
        found.axes = dense_axes(term[::-1], self.sizes, itemsize(x.dtype))
        return found

    def _value(self, term: tuple[Index, ...], x: Value, y: Value) -> Value:
        """What a product of two values makes that are of one dtype."""
        size = math.prod(map(self.sizes.__getitem__, term)) * itemsize(x.dtype)
        return Value(-1, term, x.dtype, "arena", size, constant=x.constant and y.constant)


@lru_cache(maxsize=1024)
def _placed(
    term: tuple[Index, ...], shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[Index, ...], Mapping[Index, Axis]]:
    """Indices and axes of an operand or of the result; a repeated index is a diagonal, and one of size 1 is none.

    Axes are one object for all that lies so: where an expression comes with other sizes, most of its tensors have the
    shapes that they had."""
    if 0 not in shape and 1 not in shape and len(set(term)) == len(term):
        return term, linear_axes(term, shape, strides)
    axes: dict[Index, Axis] = {}
    for index, size, stride in zip(term, shape, strides):
        if size != 1:
            stride += axes[index].stride if index in axes else 0
            axes[index] = Axis.strided(index, size, stride)
    return tuple(axes), axes
