"""The fused kernels of einsums: a product of a few operands, stored or summed, with casts at both ends.

Programs have structures of their own, which are compiled when they come. Those of einsums are this table, so that
warm-up compiles them as it does all kernels of einsums: planners join what has a row, and leave the rest in steps.
"""

from __future__ import annotations

from itertools import product
from typing import Iterator, NamedTuple

from .fused_structure import Graph, Structure, name
from .tiles import COMPLEX, DTYPES

MAPS = (2, 3, 4)  # operands of a product that is stored, all of one dtype
SUMS = (2, 3)  # of one that is summed; of two it is mostly a matrix product
MOST_CAST = 3  # operands where some are cast
CONJUGATED = ((2, 1, False), (2, 1, True), (3, 1, False), (3, 2, False), (3, 1, True), (3, 2, True))  # of so many, so many; summed
CASTS = (("float16", "float32"), ("bfloat16", "float32"), ("float32", "float64"))  # stored in, computed in


class Product(NamedTuple):
    """``inputs``: dtypes as they are stored, sorted; ``compute``: in which they are multiplied and added; ``output``:
    in which the result is stored, that of ``compute`` where it is ``summed``; ``conj``: so many of the last are conjugated."""

    inputs: tuple[str, ...]
    compute: str
    output: str
    summed: bool
    conj: int = 0

    def structure(self) -> Structure:
        """What the kernel computes.

        >>> Product(("float16", "float32"), "float32", "float16", False).structure().text()
        'float16 float32; cast 0 float32; mul 2 1 float32; cast 3 float16; -> 4'
        """
        graph, boolean = Graph(self.inputs), self.compute == "bool"
        total = self._operand(graph, 0)
        for number in range(1, len(self.inputs)):
            total = graph.op("and" if boolean else "mul", total, self._operand(graph, number))
        total = graph.cast(total, self.output)
        return graph.structure((total, "any" if boolean else "sum") if self.summed else total)

    def _operand(self, graph: Graph, number: int) -> int:
        value = graph.cast(number, self.compute)
        return graph.op("conj", value) if number >= len(self.inputs) - self.conj else value


def _products() -> Iterator[Product]:
    for dtype in DTYPES:
        yield from (Product((dtype,) * count, dtype, dtype, False) for count in MAPS)
        yield from (Product((dtype,) * count, dtype, dtype, True) for count in SUMS)
    for dtype, (count, conj, summed) in product(COMPLEX, CONJUGATED):
        yield Product((dtype,) * count, dtype, dtype, summed, conj)
    for (stored, compute), count in product(CASTS, range(1, MOST_CAST + 1)):
        for casts in range(count + 1):
            inputs = (stored,) * casts + (compute,) * (count - casts)
            yield Product(inputs, compute, stored, False)
            if casts:
                yield Product(inputs, compute, compute, False)
                yield Product(inputs, compute, compute, True)


PRODUCTS = frozenset(_products())


def names() -> tuple[str, ...]:
    """Of all kernels of the table, and of those that add up what tasks have of a sum."""
    sums = [_share(dtype) for dtype in sorted({each.output for each in PRODUCTS if each.summed})]
    return tuple(name(each) for each in (*(each.structure() for each in sorted(PRODUCTS)), *sums))


def _share(dtype: str) -> Structure:
    """The sum of results that tasks have each for itself, in the dtype that they are stored in (`fused.lower`)."""
    return Graph((dtype,)).structure((0, "any" if dtype == "bool" else "sum"))
