"""Weighted sums: products of a batch in which one side is a vector and the other a matrix of a few rows.

A GEMM has its lanes along the rows, or packs terms to put them there, and most lanes of its vectors are empty where rows
are less than half of one: it takes as long as for whole vectors. A fused kernel multiplies corresponding elements and
adds them, along whatever runs in the larger operand. So what the layout solver left to a GEMM, because nothing else
reads these operands in place, is that where it has so few rows.
"""

from __future__ import annotations

from math import prod

from ..kernels import tiles as tile_table
from ..kernels.fused_products import PRODUCTS
from ..kernels.isa import ISA
from .gemm import GemmPlan
from .joining import by_stride, computed_in, kernel_of, streams
from .memo import Planned
from .operations import Operation, OperationList
from .splitting import SLENDER

RUN = 8  # entries along which both operands run, at least: a fused kernel begins anew for each run,
FEW_TERMS = 16  # unless there are no rows and so few terms: a GEMM begins anew for each product


def sum_weighted(listed: OperationList, isa: ISA) -> None:
    """Makes operations fused ones that are better so; all have their plans, and none has a prologue or an epilogue."""
    for operation in listed.operations:
        if operation.kind == "gemm" and _is_weighted(operation, listed, isa):
            from .joined import fused_part  # loads what programs are made of

            operation.kind, operation.compute, operation.work = "fused", computed_in(operation), None
            threads = 1 if operation.alone else listed.request.threads
            operation.parts = (Planned(part=fused_part(operation, listed.sizes, threads)),)


def _is_weighted(operation: Operation, listed: OperationList, isa: ISA) -> bool:
    if not streams(operation) or len(operation.parts) != 1 or operation.parts[0].part.plan.__class__ is not GemmPlan:
        return False
    larger, smaller = sorted(operation.inputs, key=lambda value: len(value.term), reverse=True)
    rows = set(larger.term) - set(smaller.term)
    product = kernel_of(operation)
    if product not in PRODUCTS:
        return False
    if prod([listed.sizes[index] for index in rows]) > SLENDER * tile_table.elements(isa, product.compute):
        return False
    fast = by_stride(larger.axes)[0]
    run = _together(by_stride(larger.axes), by_stride(smaller.axes), set(operation.output.term))
    summed = prod([listed.sizes[index] for index in larger.term if index not in operation.output.term])
    least = RUN if rows or summed > FEW_TERMS else 2
    if fast in rows or run and prod([listed.sizes[index] for index in run]) < least:
        return False
    values = (*operation.inputs, operation.output)
    return all([axis.linear for value in values for axis in value.axes.values()])


def _together(one: list[str], other: list[str], kept: set[str]) -> list[str]:
    """The fastest indices of both that are the same, all of the result or all summed."""
    run = []
    for index, same in zip(one, other):
        if index != same or (index in kept) != (one[0] in kept):
            break
        run.append(index)
    return run
