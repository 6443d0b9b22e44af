"""Plans the steps without a matrix product: copy, sum and element-wise product over a nest of loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Sequence

from ..kernels.gemm import Operand
from ..kernels.isa import ISA
from ..kernels.row import Row
from ..plan import Axis, Index
from .operations import Operation, Value


@dataclass(frozen=True, kw_only=True, eq=False)
class NestPlan:
    """``rows(places, temporary)``: the step rows for the places of output and inputs."""

    rows: Callable[[Sequence[Operand], Operand], list[Row]]
    temporary_bytes: int = 0


def natural_axes(value: Value, output: Value, sizes: Mapping[Index, int], item: int) -> dict[Index, Axis]:
    """Contiguous layout of a free operand: the order of the output, summed indices slowest."""
    summed = [i for i in value.term if i not in output.axes]
    kept = sorted((i for i in value.term if i in output.axes), key=lambda i: -abs(output.axes[i].stride))
    axes: dict[Index, Axis] = {}
    stride = item
    for index in reversed(summed + kept):
        axes[index] = Axis.strided(index, sizes[index], stride)
        stride *= sizes[index]
    return axes


def plan_nest(operation: Operation, sizes: Mapping[Index, int], isa: ISA, threads: int) -> NestPlan:
    raise NotImplementedError
