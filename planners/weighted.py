"""Weighted sums: products of a batch in which one side is a vector and the other a matrix, mostly of a few rows.

A GEMM has its lanes along the rows, or packs terms to put them there, and most lanes of its vectors are empty where rows
are less than half of one: it takes as long as for whole vectors. Small products one by one wait for the lines of each, where
these push each other out of the caches (`cache_sets`). A fused kernel multiplies corresponding elements and
adds them, along whatever runs in the larger operand. So what the layout solver left to a GEMM, because nothing else
reads these operands in place, is that where it has so few rows; and that or products that wait, where a fused kernel is
predicted to take much less.
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
from .parts import Part
from .splitting import SLENDER
from .unpacked import UnpackedPlan
from .unpacked_cost import small_waits

RUN = 8  # entries along which both operands run, at least: a fused kernel begins anew for each run,
LEAD, LEAST_SECONDS = 1.5, 1e-5  # times as long as the fused kernel, and so long, a GEMM is predicted to take where that decides
FEW_TERMS = 16  # unless there are no rows and so few terms: a GEMM begins anew for each product


def sum_weighted(listed: OperationList, isa: ISA) -> None:
    """Makes operations fused ones that are better so; all have their plans, and none has a prologue or an epilogue."""
    for operation in listed.operations:
        if operation.kind != "gemm" or not _may_be_weighted(operation, isa):
            continue
        certain = _is_gemm(operation) and _is_weighted(operation, listed, isa)
        if not certain and not _may_take_less(operation, isa):
            continue
        from ..kernels.fused import seconds  # these load what programs are made of
        from .groups import fused_plan
        from .joined import group_of

        before, operation.compute = operation.compute, computed_in(operation)
        group = group_of(operation, listed.sizes)
        problem = group.problem()
        if certain or LEAD * seconds(problem, isa.vector_bits) < operation.parts[0].times.total:
            plan = fused_plan(group, 1 if operation.alone else listed.request.threads, problem)
            operation.kind, operation.work, operation.parts = "fused", None, (Planned(part=Part(plan=plan)),)
        else:
            operation.compute = before


def _may_be_weighted(operation: Operation, isa: ISA) -> bool:
    """Whether it is a product of a vector and a matrix, of a batch or not, that a fused kernel can do."""
    if not streams(operation) or len(operation.parts) != 1:
        return False
    if not (_is_gemm(operation) or _waits(operation, isa)):
        return False
    values = (*operation.inputs, operation.output)
    return kernel_of(operation) in PRODUCTS and all([axis.linear for value in values for axis in value.axes.values()])


def _is_gemm(operation: Operation) -> bool:
    return operation.parts[0].part.plan.__class__ is GemmPlan


def _waits(operation: Operation, isa: ISA) -> bool:
    """Whether it is many small products that wait for their lines."""
    plan = operation.parts[0].part.plan
    return isinstance(plan, UnpackedPlan) and plan.family == "small" and small_waits(plan.problem, isa) > 0


def _may_take_less(operation: Operation, isa: ISA) -> bool:
    """Whether it has a batch, for which predictions are known to be near, and takes long enough to be worth another plan. Not of
    complex64 without masks, of which half lost."""
    if not isa.masks and computed_in(operation) == "complex64":
        return False
    batch = any([all([index in value.term for value in operation.inputs]) for index in operation.output.term])
    return batch and operation.parts[0].times.total > LEAST_SECONDS


def _is_weighted(operation: Operation, listed: OperationList, isa: ISA) -> bool:
    """Whether it is one whatever is predicted: operands run together, and rows are few beside the lanes of a GEMM."""
    larger, smaller = sorted(operation.inputs, key=lambda value: len(value.term), reverse=True)
    rows = set(larger.term) - set(smaller.term)
    if prod([listed.sizes[index] for index in rows]) > SLENDER * tile_table.elements(isa, computed_in(operation)):
        return False
    fast = by_stride(larger.axes)[0]
    run = _together(by_stride(larger.axes), by_stride(smaller.axes), set(operation.output.term))
    summed = prod([listed.sizes[index] for index in larger.term if index not in operation.output.term])
    least = RUN if rows or summed > FEW_TERMS else 2
    return fast not in rows and (not run or prod([listed.sizes[index] for index in run]) >= least)


def _together(one: list[str], other: list[str], kept: set[str]) -> list[str]:
    """The fastest indices of both that are the same, all of the result or all summed."""
    run = []
    for index, same in zip(one, other):
        if index != same or (index in kept) != (one[0] in kept):
            break
        run.append(index)
    return run
