"""Which neighbouring operations of a contraction are one pass over memory.

Products without a matrix in them (Hadamard, outer, scaling by a vector), sums, diagonals and casts move bytes and
little else: a value between two of them is written and read for nothing. `join` makes such neighbours one operation of
kind ``fused``: the product of all operands, summed over what the result does not have, in one set of loops. `joined`
plans it, by the same group as a map of a program.

Joined is what the roofline says takes less, by `GAIN` at least:

- never where it would compute at more points than the larger of both: an index that only one has, and sums;
- a matrix product stays what it is; one in which an operand has all indices is a sum of products, and may be joined;
- a complex tensor times a real one is worked on as real numbers, scaled results read alpha and beta, and what is in
  another byte order, or is conjugated after it is computed, is so on its way: none of these is joined;
- and only what `kernels.fused_products` has a kernel for.

A product of two operands that have the same indices, summed along rows that lie far apart, is such a pass by itself: a
matrix product of it has no matrix, and would go down the rows a column at a time.
"""

from __future__ import annotations

import sys
from collections import Counter
from math import prod
from typing import Mapping, Sequence

from .. import cost
from ..kernels.fused_products import CASTS, PRODUCTS, Product
from ..kernels.isa import ISA
from ..plan import Axis, Index
from .operations import Operation, OperationList, Value, itemsize
from .splitting import ROWS_BYTES, TILE

GAIN = 0.15  # of the predicted time of both
LEAST_GAIN = 1e-6  # seconds: what is in the L1 cache is read again for nothing
EPILOGUE_GAIN = 0.04  # of the predicted time of the product
LEAST_EPILOGUE = 4e-6  # seconds
LARGE_PROLOGUE = 1  # times the cache: what is smaller is read again for nothing
CROSSWISE = 6e-10  # seconds: of an element that a map reads along another index than it writes, beside its bytes
COLUMNS = 3e-7  # seconds: of each piece of the result of a sum that goes along faster indices of its operand
RUN = 16  # entries along which operands run together: below, a fused kernel gathers what others have loops for


# Products of corresponding elements that are summed: bytes along which rows run, and terms; bytes of both operands if they
# lie in different orders, for which the second would be copied (where they lie in one, `splitting.ROWS_BYTES`).
ROWS_RUN, ROWS_TERMS, CROSSED_BYTES = 64, 8192, 1 << 18


def join(listed: OperationList, machine: cost.Machine) -> None:
    """Joins operations of a list, none of which has a layout yet."""
    for operation in listed.operations:
        if operation.kind == "gemm" and adds_rows(operation, listed):
            operation.kind, operation.compute, operation.work = "fused", computed_in(operation), None
    if all([operation.kind == "gemm" for operation in listed.operations]):
        return
    makers = read_once(listed, LEAST_GAIN * machine.memory_bandwidth / 2)
    if makers:
        _Joining(listed, machine, makers).run()


class _Joining:
    def __init__(self, listed: OperationList, machine: cost.Machine, makers: dict[int, Operation]) -> None:
        self.list, self.machine, self.makers = listed, machine, makers
        self.dropped: set[int] = set()

    def run(self) -> None:
        for operation in self.list.operations:
            while self._joined(operation):
                pass
        if self.dropped:
            self.list.drop(self.dropped)

    def _joined(self, operation: Operation) -> bool:
        """Whether an operation does one of those before it besides, from now on: the one that is worth most."""
        best, most = None, 0.0
        for value in operation.inputs:
            maker = self.makers.get(value.number)
            if maker is not None and value.constant == operation.output.constant:
                gain = self._gain(maker, operation)
                if gain > most:
                    best, most = maker, gain
        if best is None:
            return False
        value = best.output
        self.dropped |= {id(best), id(value)}
        operation.compute = _computed(best, operation)
        operation.inputs = (*best.inputs, *(x for x in operation.inputs if x is not value))
        operation.kind, operation.work = "fused", None
        return True

    def _gain(self, maker: Operation, operation: Operation) -> float:
        """Predicted seconds that both take less as one; 0 where they stay two."""
        if maker.kind == operation.kind == "gemm" or not (streams(operation) and streams(maker)):
            return 0.0
        inputs = [*maker.inputs, *(each for each in operation.inputs if each is not maker.output)]
        one = Operation("fused", tuple(inputs), operation.output, compute=_computed(maker, operation))
        if kernel_of(one) not in PRODUCTS or _is_product(one):
            return 0.0
        if self._points(inputs) > max(self._points(maker.inputs), self._points(operation.inputs)):
            return 0.0
        apart = self._seconds(maker) + self._seconds(operation)
        gain = apart - self._seconds(one)
        if gain <= max(GAIN * apart, LEAST_GAIN):
            return 0.0
        run, crosswise = self._runs(one)
        gain -= COLUMNS * self._columns(one) if sums(one) else CROSSWISE * crosswise
        if operation.kind == "fused" and sums(operation):
            gain += COLUMNS * self._columns(operation)
        return gain if gain > max(GAIN * apart, LEAST_GAIN) and run >= RUN else 0.0

    def _columns(self, one: Operation) -> int:
        """Pieces of the result that a sum along a slower index adds up row by row, one after the other."""
        known = max([value for value in one.inputs if value.axes], key=self.list.nbytes, default=one.output)
        pieces = self._points([one.output])
        for index in by_stride(known.axes or {}):
            if index not in one.output.term:
                return pieces if pieces < self._points([one.output]) else 0
            pieces //= self.list.sizes[index]
        return 0

    def _runs(self, one: Operation) -> tuple[int, int]:
        """Entries along which the operands of a fused kernel run together, and the elements of those that lie
        otherwise: its loops go as what is written, or where it sums, as an operand. What has no layout yet gets any."""
        known = [one.output, *one.inputs] if sums(one) else [one.output]
        found = [self._run(one, by_stride(value.axes)) for value in known if value.axes is not None]
        if found:
            return max(found, key=lambda each: (each[0], -each[1]))
        likely = max([value for value in one.inputs if value.axes], key=self.list.nbytes, default=None)
        free = min([self.list.sizes[index] for value in one.inputs for index in value.term], default=RUN)
        return free, self._run(one, by_stride(likely.axes))[1] if likely else 0

    def _run(self, one: Operation, order: list[Index]) -> tuple[int, int]:
        """Entries along which each operand runs, or is one element, in loops of this order, fastest first; and the
        elements of operands that lie otherwise, which go through scratch one box after the other."""
        if not order:
            return 1 << 40, 0
        near, run = order[0], 1
        known = [v for v in one.inputs if v.axes and _moves(v, near)]
        crosswise = [v for v in known if abs(v.axes[near].stride) != itemsize(v.dtype)]
        others = [v for v in one.inputs if not any([v is each for each in crosswise])]
        for index in order:
            if any([_moves(v, index) != _moves(v, near) for v in others]):
                break
            run *= self.list.sizes[index]
        return run, sum([self._points([v]) for v in crosswise])

    def _points(self, inputs: Sequence[Value]) -> int:
        return prod(map(self.list.sizes.__getitem__, set().union(*[value.term for value in inputs])))

    def _seconds(self, operation: Operation) -> float:
        flops, moved = self.list.work(operation)
        return cost.seconds(flops, moved, self.list.compute, self.machine)


def read_once(listed: OperationList, least: float) -> dict[int, Operation]:
    """By number of the value: what makes each intermediate of so many bytes at least that one operation reads, and
    nobody under another name."""
    makers = {
        operation.output.number: operation
        for operation in listed.operations
        if operation.output.kind == "arena" and listed.nbytes(operation.output) >= least
    }
    if makers and listed.request.same:  # else nothing is read twice
        readers = Counter([value.memory.number for operation in listed.operations for value in operation.inputs])
        makers = {number: maker for number, maker in makers.items() if readers[number] == 1}
    return makers


def mapped(listed: OperationList, machine: cost.Machine) -> list[tuple[Operation, Operation]]:
    """Products, and the operation on the result of each that had better be its epilogue: one that only it reads,
    element by element. All have their plans."""
    makers, found = read_once(listed, LEAST_EPILOGUE * machine.memory_bandwidth / 2), {}
    for operation in listed.operations if makers else ():
        if operation.kind in ("gemm", "sum"):
            continue
        values = [value for value in operation.inputs if value.number in makers]
        if not values or not streams(operation) or sums(operation) or kernel_of(operation) not in PRODUCTS:
            continue
        for value in values:
            maker = makers[value.number]
            if maker.kind != "gemm" or value.constant != operation.output.constant:
                continue
            times = [each.times.total for each in maker.parts if each.times is not None]
            if times and len(value.term) == len(operation.output.term):
                beside = sum([listed.nbytes(each) for each in operation.inputs if each is not value])
                gain = cost.seconds(*listed.work(operation), listed.compute, machine)
                gain -= beside / machine.bandwidth(beside)
                if gain > max(LEAST_EPILOGUE, EPILOGUE_GAIN * sum(times)):
                    found[operation.output.number] = maker, operation
    return list(found.values())


def mapped_before(listed: OperationList, machine: cost.Machine) -> list[tuple[Operation, Operation]]:
    """Operations element by element, and the product that alone reads what each makes, which may be a prologue of it: that
    is too large to stay in cache. All have their plans."""
    makers, found = read_once(listed, LARGE_PROLOGUE * machine.cache_bytes), []
    for operation in listed.operations if makers else ():
        for value in operation.inputs if operation.kind == "gemm" else ():
            maker = makers.get(value.number)
            if maker is None or maker.kind == "gemm" or value.constant or maker.strand != operation.strand:
                continue
            if streams(maker) and not sums(maker) and kernel_of(maker) in PRODUCTS:
                found.append((maker, operation))
    return found


def give_products(listed: OperationList, isa: ISA, machine: cost.Machine) -> None:
    """Makes operations the prologues and epilogues of products. What may be an epilogue is none; a product has its prologue
    before its epilogue, which goes by its blocks."""
    if all([operation.kind == "gemm" for operation in listed.operations]):
        return
    behind, before = mapped(listed, machine), mapped_before(listed, machine)
    if not (behind or before):
        return
    from .joined import give_epilogue, give_prologue  # loads what programs are made of

    epilogues = {id(operation) for _, operation in behind}
    for maker, operation in before:
        if id(maker) not in epilogues:
            give_prologue(maker, operation, listed, isa, machine)
    for maker, operation in behind:
        give_epilogue(maker, operation, listed, machine)


def streams(operation: Operation) -> bool:
    """Whether it is a product of all operands, summed, that a fused kernel may do."""
    if operation.mixed or operation.scaled or operation.output.conj or operation.tail is not None:
        return False
    if any([value.swapped_bytes for value in operation.inputs]):
        return False
    if operation.kind == "gemm":
        one, two = operation.inputs[0].term, operation.inputs[1].term
        if len(operation.output.term) >= max(len(one), len(two)):
            return False
        return set(one) <= set(two) or set(two) <= set(one)
    return True


def kernel_of(operation: Operation) -> Product:
    """What the fused kernel of an operation would do."""
    inputs = tuple(sorted([value.dtype for value in operation.inputs]))
    conj = sum([value.conj for value in operation.inputs])
    return Product(inputs, computed_in(operation), operation.output.dtype, sums(operation), conj)


def sums(operation: Operation) -> bool:
    """Whether an input has an index that the result has not."""
    kept = operation.output.term
    return any([index not in kept for value in operation.inputs for index in value.term])


def _is_product(one: Operation) -> bool:
    """Whether it is a product of two operands, without a cast, that is summed: how these are computed is `adds_rows`'s."""
    return len(one.inputs) == 2 and sums(one) and {value.dtype for value in one.inputs} == {one.output.dtype}


def adds_rows(operation: Operation, listed: OperationList) -> bool:
    """Whether a product is one of corresponding elements that no other kernel sums well: of rows of both that lie apart, or
    of operands in different orders, where batched products are too long, or no vectors."""
    (one, two), kept = operation.inputs, operation.output.term
    if not kept or len(kept) == len(one.term) or set(one.term) != set(two.term):
        return False
    known = [value for value in (one, two) if value.axes is not None]
    if not known or not streams(operation) or kernel_of(operation) not in PRODUCTS:
        return False
    orders = [by_stride(value.axes) for value in known]
    crossed = orders[0][0] != orders[-1][0]
    if one.size + two.size < (CROSSED_BYTES if crossed else ROWS_BYTES):
        return False
    if not crossed:
        return orders[0][0] in kept and _run_of_rows(known, orders, kept, listed.sizes) >= ROWS_RUN
    fast = [order[0] for order in orders]
    if len(known) == 2 and (fast[0] in kept) != (fast[1] in kept) and min(map(listed.sizes.__getitem__, fast)) >= TILE:
        return True  # tiles of one operand are turned round
    terms = prod([listed.sizes[index] for index in one.term if index not in kept])
    return len(kept) == 1 or terms > ROWS_TERMS


def _run_of_rows(known: list[Value], orders: list[list[Index]], kept: Sequence[Index], sizes: Mapping[Index, int]) -> int:
    """Bytes along which rows of the result lie side by side in all operands that are ``known``."""
    run = 1
    for index, other in zip(orders[0], orders[-1]):
        apart = [abs(value.axes[index].stride) != run * itemsize(value.dtype) for value in known]
        if index != other or index not in kept or any(apart):
            break
        run *= sizes[index]
    return run * itemsize(known[0].dtype)


def _moves(value: Value, index: Index) -> bool:
    """Whether a value has several entries along an index."""
    return index in value.term and (value.axes is None or value.axes[index].stride != 0)


def by_stride(axes: Mapping[Index, Axis]) -> list[Index]:
    """Indices, those whose entries lie nearest first."""
    return sorted(axes, key=lambda index: abs(axes[index].stride) or sys.maxsize)


def _computed(maker: Operation, operation: Operation) -> str:
    """The dtype in which both compute; empty where they do in several."""
    computed = maker if operation.kind == "copy" else operation
    alike = computed_in(maker) == maker.output.dtype == computed_in(computed)
    return computed_in(computed) if alike and not maker.kind == operation.kind == "copy" else ""


def computed_in(operation: Operation) -> str:
    """In which an operation computes; a copy in the wider of both dtypes."""
    source, target = operation.inputs[0].dtype, operation.output.dtype
    if operation.kind == "copy" and (target, source) in CASTS:
        return source
    return operation.compute or target
