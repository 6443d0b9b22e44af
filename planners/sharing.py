"""Common subexpressions: what is contracted twice in the same way from the same arrays is computed once.

Two values are equal where they are the same array, or come from equal values by the same operation on indices that
correspond; the names of the indices do not matter. Of equal results only the first is computed. Every other one is a
view of it: a `Value` with the same memory under its own indices (`Value.source`).

>>> from ..expr import parse
>>> from .order import Order
>>> from .operations import OperationList
>>> from .request import PlanRequest
>>> expr = parse("ab,bc,ad,dc->ac", [(2, 2)] * 4)
>>> request = PlanRequest(expr=expr, dtypes=("float64",) * 4, strides=((16, 8),) * 4, out_strides=None,
...     dtype="float64", isa="avx2", order=Order(path=((0, 1), (0, 1), (0, 1)), flops=0, largest=0, optimizer=""),
...     same=(0, 1, 0, 1))
>>> listed = OperationList(request, "float64")
>>> listed.build()
>>> len(listed.operations), share(listed), len(listed.operations)
(3, True, 2)
"""

from __future__ import annotations

from typing import Sequence

from ..plan import Axis, Index
from .layout import dense_axes
from .operations import Operation, OperationList, Value, itemsize

_SHARED = ("gemm", "mul", "sum")  # a copy is not worth it: packing does what most of them do, for nothing


def share(listed: OperationList) -> bool:
    """Drops the operations whose result another one of the list has; whether there were any.

    What is read under several names is laid out here, densely: the layout solver then reads it as it reads an operand.
    """
    return _Sharing(listed).run()


class _Sharing:
    def __init__(self, listed: OperationList):
        self.list = listed
        self.classes: dict[tuple, int] = {}  # what makes values equal -> number of their class
        # By class: its first value, and the order of its indices as numbers within the operation that made it.
        self.first: list[tuple[Value, tuple[int, ...]]] = []
        # By number of the value: its class, and its indices in the order in which the first value has them.
        self.known: dict[int, tuple[int, tuple[Index, ...]]] = {}

    def run(self) -> bool:
        for value in self.list.values:
            if value.kind == "input":
                self._operand(value)
        kept = [operation for operation in self.list.operations if not self._repeats(operation)]
        if len(kept) == len(self.list.operations):
            return False
        self.list.operations = _needed(kept)
        self._lay_out()
        return True

    def _operand(self, value: Value) -> None:
        layout = tuple((value.axes[i].size, value.axes[i].stride) for i in value.term)
        key = ("operand", self.list.request.same[value.slot], layout, value.swapped_bytes)
        self._classify(value, key, dict(zip(value.term, range(len(value.term)))))

    def _repeats(self, operation: Operation) -> bool:
        """Whether the result is a view of an earlier one, from now on."""
        output = operation.output
        if output.kind != "arena":
            return False
        # A product does not mind which operand comes first.
        orders = [operation.inputs] if len(operation.inputs) == 1 else [operation.inputs, operation.inputs[::-1]]
        key, numbers = min((self._key(operation, inputs) for inputs in orders), key=lambda pair: pair[0])
        first = self._classify(output, key, numbers)
        if first is output or operation.kind not in _SHARED:
            return False
        output.source, output.term = first, self.known[output.number][1]
        return True

    def _key(self, operation: Operation, inputs: Sequence[Value]) -> tuple[tuple, dict[Index, int]]:
        """What the result depends on, and the number of each index, by first occurrence.

        Conjugation counts where it is done, and where it is left to whoever reads the result.
        """
        numbers: dict[Index, int] = {}
        read = []
        for value in inputs:
            number, indices = self.known[value.number]
            read.append((number, value.conj, tuple([numbers.setdefault(i, len(numbers)) for i in indices])))
        sizes = tuple([self.list.sizes[i] for i in numbers])
        output = operation.output
        kept = tuple(sorted([numbers[i] for i in output.term]))
        return (operation.kind, output.dtype, output.conj, tuple(read), sizes, kept), numbers

    def _classify(self, value: Value, key: tuple, numbers: dict[Index, int]) -> Value:
        """Puts the value into its class; the first value of that."""
        number = self.classes.setdefault(key, len(self.first))
        if number == len(self.first):
            self.first.append((value, tuple([numbers[i] for i in value.term])))
        first, order = self.first[number]
        names = {n: index for index, n in numbers.items()}
        self.known[value.number] = number, tuple([names[n] for n in order])
        return first

    def _lay_out(self) -> None:
        """Axes of what is read under several names; forgets the values that nobody reads or writes any more."""
        operations = self.list.operations
        live = {value.number for operation in operations for value in (*operation.inputs, operation.output)}
        self.list.values = [value for value in self.list.values if value.kind == "input" or value.number in live]
        for value in self.list.values:
            first = value.source
            if first is None:
                continue
            if first.axes is None:
                first.axes = dense_axes(first.term[::-1], self.list.sizes, itemsize(first.dtype))
            strides = [first.axes[index].stride for index in first.term]
            value.axes = {i: Axis.strided(i, self.list.sizes[i], s) for i, s in zip(value.term, strides)}


def _needed(operations: Sequence[Operation]) -> list[Operation]:
    """Those whose results are read, or are the output; in the same order."""
    needed: list[Operation] = []
    read: set[int] = set()
    for operation in reversed(operations):
        if operation.output.kind == "output" or operation.output.number in read:
            needed.append(operation)
            read.update(value.memory.number for value in operation.inputs)
    return needed[::-1]
