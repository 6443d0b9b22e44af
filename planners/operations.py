"""From a contraction path to operations on single-assignment values, before any layout is chosen.

Each value is produced once and consumed at most once, unless `sharing` finds that it is the value of others too.
Operations: ``copy`` (cast, permutation, diagonal, scaling),
``sum`` (indices that occur in one operand only), ``mul`` (no summed index) and ``gemm`` (summed indices); `joining`
makes ``fused`` ones of them: the product of several operands, summed.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Mapping, NamedTuple

from .. import cost
from ..kernels import isa as isa_table
from ..kernels.tiles import COMPLEX
from ..plan import Axis, Index, linear_axes
from ..views import dense_strides
from . import shared_lines
from .layout import dense_axes
from .request import PlanRequest
from .splitting import LEAST_TERMS, cut, pieces_of_k

PARTS = "\x00parts"  # index of the real and imaginary part, where a complex tensor is worked on as a real one
_REMEMBERED = 64  # steps up to which what they are is kept
REAL_PART = {"complex64": "float32", "complex128": "float64"}


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
    offset: int = 0
    nbytes: int = 0
    swapped_bytes: bool = False
    layout_kind: str = "strided"
    panel: int = 0
    constant: bool = False  # depends on constant operands alone
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
    strand: int = 0  # 0: all threads share it; else it is one of a strand's, which one thread does (`strands`)
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
        self.epilogues: dict[int, Any] = {}  # id of a product -> `epilogue.Fused`, where it has one
        self.prologues: dict[int, Any] = {}  # and `staging.Staged`
        self.sizes = dict(request.expr.sizes)
        if 1 in self.sizes.values():
            self.sizes = {i: s for i, s in self.sizes.items() if s != 1}
        self.out_term = tuple(dict.fromkeys([i for i in request.expr.output if i in self.sizes]))

    def new(self, term: tuple[Index, ...], dtype: str, kind: str = "arena", **more) -> Value:
        size = math.prod(map(self.sizes.__getitem__, term)) * itemsize(dtype)
        value = Value(len(self.values), term, dtype, kind, size, **more)
        self.values.append(value)
        return value

    def apply(self, kind: str, inputs: tuple[Value, ...], output: Value, **more) -> Value:
        if self.request.constants:
            output.constant = output.kind == "arena" and all([v.constant for v in inputs])
        self.operations.append(Operation(kind, inputs, output, **more))
        return output

    def build(self) -> None:
        operands = self._operands()
        output = self._output()
        compute = self.compute
        current = [v if v.dtype == compute and not v.swapped_bytes else self._cast(v) for v in operands]
        path = self.request.order.path
        found = pairs if len(path) <= _REMEMBERED else pairs.__wrapped__
        for pair in found(tuple([value.term for value in current]), self.out_term, path):
            current.append(self._pair(current[pair.first], current[pair.second], pair))
        self._finish(current[-1], output)

    def drop(self, numbers: set[int]) -> None:
        """Forgets the operations and values with these ids."""
        self.operations = [operation for operation in self.operations if id(operation) not in numbers]
        self.values = [value for value in self.values if id(value) not in numbers]

    # -- values ----------------------------------------------------------------------------------------------
    def _operands(self) -> list[Value]:
        request, expr = self.request, self.request.expr
        for slot, (dtype, *placed) in enumerate(zip(request.dtypes, expr.inputs, expr.shapes, request.strides)):
            term, axes, elements = _placed(*placed)
            conj = slot in request.conj and dtype in COMPLEX
            value = Value(slot, term, dtype, "input", elements * itemsize(dtype), axes, conj, slot)
            value.swapped_bytes, value.constant = slot in request.byteswapped, slot in request.constants
            self.values.append(value)
        return self.values[:]

    def _output(self) -> Value:
        request = self.request
        shape, strides = request.expr.output_shape, request.out_strides
        if strides is None:
            strides = dense_strides(shape, itemsize(request.dtype))
        axes = _placed(request.expr.output, shape, strides)[1]
        return self.new(self.out_term, request.dtype, kind="output", axes=axes, slot=len(request.expr.inputs))

    def _cast(self, value: Value) -> Value:
        """The operand in the compute dtype; a real one stays real beside complex ones."""
        wanted = self.compute if value.dtype in REAL_PART else REAL_PART.get(self.compute, self.compute)
        if same_bits(value.dtype, wanted) and not value.swapped_bytes:
            value.dtype = wanted
            return value
        conj, value.conj = value.conj, False
        return self.apply("copy", (value,), self.new(value.term, wanted, conj=conj))

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
        moved = operation.output.size + sum([value.size for value in inputs])
        if kind == "copy":
            return 0, moved
        indices = {*inputs[0].term, *inputs[-1].term}
        if len(inputs) > 2:
            indices.update(*[value.term for value in inputs[1:-1]])
        points = math.prod(map(self.sizes.__getitem__, indices))
        if kind == "sum":
            return points, moved
        if kind == "fused":
            times = len(inputs) - 1
            adds = any([i not in operation.output.term for i in indices])
            return times * cost.contraction_flops(points, self.compute, False) + adds * points, moved
        return cost.contraction_flops(points, self.compute, kind == "gemm"), moved

    # -- operations ------------------------------------------------------------------------------------------
    def _lone(self, value: Value, kept: tuple[Index, ...]) -> Value:
        """Sums the indices that nobody else needs: all but ``kept``."""
        if len(kept) == len(value.term):
            return value
        return self.apply("sum", (value,), self.new(kept, value.dtype, conj=value.conj))

    def _pair(self, x: Value, y: Value, pair: "Pair") -> Value:
        kind, term = pair.kind, pair.term
        if len(pair.kept_first) < len(x.term):
            x = self._lone(x, pair.kept_first)
        if len(pair.kept_second) < len(y.term):
            y = self._lone(y, pair.kept_second)
        if x.dtype != y.dtype:
            conj = x.conj or y.conj  # of a complex tensor times a real one: of the product as well
            x.conj = y.conj = False
            return self.apply(kind, (x, y), self.new(term, self.compute, conj=conj))
        found = None
        if kind == "gemm" and max(x.size, y.size) >= shared_lines.LEAST_BYTES:  # smaller ones gain by neither
            found = self._in_pieces(x, y, term) or self._along_lines(x, y, term)
        return found or self.apply(kind, (x, y), self.new(term, x.dtype))

    def _in_pieces(self, x: Value, y: Value, term: tuple[Index, ...]) -> Value | None:
        """A product of two operands whose long sum is cut into pieces for the threads; None where that does not pay."""
        item = itemsize(x.dtype)
        if not x.kind == y.kind == "input" or x.size * y.size < LEAST_TERMS * item * item:
            return None
        chosen = pieces_of_k(x.axes, y.axes, term, itemsize=item, threads=self.request.threads)
        if chosen is None:
            return None
        index, count = chosen
        piece = f"{index}'"
        for value in (x, y):
            value.axes = cut(value.axes, index, piece, count)
            value.term = tuple(value.axes)
        self.sizes[piece], self.sizes[index] = count, self.sizes[index] // count
        parts = self.apply("gemm", (x, y), self.new((piece, *term), x.dtype))
        return self.apply("sum", (parts,), self.new(term, x.dtype))

    def _along_lines(self, x: Value, y: Value, term: tuple[Index, ...]) -> Value | None:
        """A product of large operands as one whose lanes run along a sum, and a sum of these; None without a gain."""
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
        lanes = self.new(kept, x.dtype, axes=dense_axes(order, self.sizes, itemsize(x.dtype)))
        return self.apply("sum", (self.apply("gemm", (x, y), lanes),), self.new(term, x.dtype))

    def _finish(self, value: Value, output: Value) -> None:
        """Writes the output with the last operation itself where that needs no cast, scaling or conjugation."""
        value = self._lone(value, tuple([i for i in value.term if i in output.term]))
        last = self.operations[-1] if self.operations else None
        direct = (
            last is not None
            and last.output is value
            and same_bits(output.dtype, value.dtype)
            and not value.conj
            and not self.request.scaled
        )
        if direct:
            output.dtype = value.dtype
            last.output = output
            output.constant = False
            self.values.remove(value)
        else:
            self.apply("copy", (value,), output, scaled=self.request.scaled)


class Pair(NamedTuple):
    """A step of a path: the numbers of two tensors (operands, then products in order), the indices that each keeps,
    those of their product, and its kind."""

    first: int
    second: int
    kept_first: tuple[Index, ...]
    kept_second: tuple[Index, ...]
    term: tuple[Index, ...]
    kind: str


@lru_cache(maxsize=256)
def pairs(terms: tuple[tuple[Index, ...], ...], out: tuple[Index, ...], path: tuple) -> tuple[Pair, ...]:
    """The steps of a path, without sizes: an expression comes again with others.

    >>> pairs((("i", "j"), ("j", "k")), ("i",), ((0, 1),))
    (Pair(first=0, second=1, kept_first=('i', 'j'), kept_second=('j',), term=('i',), kind='gemm'),)
    """
    uses = Counter(chain(out, *terms))
    made, left, found = list(terms), list(range(len(terms))), []
    for group in path:
        if len(group) == 1:  # nothing is computed, but it is the last one now
            left.append(left.pop(group[0]))
            continue
        at, behind = sorted(group)
        second, first = left.pop(behind), left.pop(at)
        x, y = made[first], made[second]
        uses.subtract(x + y)
        kept_x = tuple([i for i in x if uses[i] > 0 or i in y])
        kept_y = tuple([i for i in y if uses[i] > 0 or i in x])
        both = dict.fromkeys(kept_x + kept_y)
        term = tuple([i for i in both if uses[i] > 0])
        found.append(Pair(first, second, kept_x, kept_y, term, "mul" if len(term) == len(both) else "gemm"))
        uses.update(term)
        left.append(len(made))
        made.append(term)
    return tuple(found)


@lru_cache(maxsize=1024)
def _placed(
    term: tuple[Index, ...], shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[Index, ...], Mapping[Index, Axis], int]:
    """Indices and axes of an operand or of the result, and how many elements it has; a repeated index is a diagonal, and
    one of size 1 is none.

    Axes are one object for all that lies so: where an expression comes with other sizes, most of its tensors have the
    shapes that they had."""
    if 0 not in shape and 1 not in shape and len(set(term)) == len(term):
        return term, linear_axes(term, shape, strides), math.prod(shape)
    axes: dict[Index, Axis] = {}
    for index, size, stride in zip(term, shape, strides):
        if size != 1:
            stride += axes[index].stride if index in axes else 0
            axes[index] = Axis.strided(index, size, stride)
    return tuple(axes), axes, math.prod([axis.size for axis in axes.values()])


def same_bits(a: str, b: str) -> bool:
    """Kernels treat both alike: equal, or integers of one width (wrap-around does not know signs)."""
    return a == b or (a.lstrip("u") == b.lstrip("u") and "int" in a and "int" in b)


@cache
def itemsize(dtype: str) -> int:
    """Bytes of one element of a dtype by NumPy name."""
    sizes = {"bool": 1, "float16": 2, "bfloat16": 2}
    if dtype in sizes:
        return sizes[dtype]
    digits = "".join(ch for ch in dtype if ch.isdigit())
    return int(digits) // 8
