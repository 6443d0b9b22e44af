"""Plans the steps without a matrix product: copy, sum and element-wise product over a nest of loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from ..kernels import nest as nest_family
from ..kernels.cpu import abi
from ..kernels.gemm import Operand
from ..kernels.nest import Lowered, NestProblem
from ..kernels.row import Row
from ..plan import Axis, Index
from ..records import changed, quick
from .layout import dense_axes
from .operations import PARTS, REAL_PART, Operation, Value

_WORDS = ((abi.OUT_SLOT, abi.OUT_OFFSET), (abi.A_SLOT, abi.A_OFFSET), (abi.B_SLOT, abi.B_OFFSET))


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class NestPlan:
    """A nest problem, lowered; its operands get their places when the arena is laid out."""

    problem: NestProblem
    lowered: Lowered

    @property
    def temporary_bytes(self) -> int:
        return self.lowered.temp_bytes

    def rows(self, places: Mapping[str, Operand]) -> list[Row]:
        """Step rows with operands at ``places`` (``out``, ``a``, ``b``, ``temp``)."""
        out = []
        for row, names in zip(self.lowered.rows, self.lowered.operands):
            words = dict(row.words)
            for (slot, offset), name in zip(_WORDS, names):
                if name:
                    words[slot] = places[name].slot
                    words[offset] = words.get(offset, 0) + places[name].offset
            out.append(changed(row, words=words))
        return out


def natural_axes(value: Value, output: Value, sizes: Mapping[Index, int], item: int) -> dict[Index, Axis]:
    """Contiguous layout of a free operand: the order of the output, summed indices slowest."""
    summed = [i for i in value.term if i not in output.axes]
    kept = sorted((i for i in value.term if i in output.axes), key=lambda i: -abs(output.axes[i].stride))
    return dense_axes(reversed(summed + kept), sizes, item)


def plan_nest(operation: Operation, sizes: Mapping[Index, int], threads: int) -> NestPlan:
    """The nest of a copy, sum or element-wise product whose tensors all have strided layouts."""
    values = (operation.output, *operation.inputs)
    views = [value.real_view(operation.mixed) for value in values]
    indices = dict.fromkeys(i for term, _ in views[1:] for i in term)
    dims = tuple(
        (2 if i == PARTS else sizes[i], *(_stride(axes, i) for _, axes in views), *(0,) * (3 - len(views)))
        for i in indices
    )
    dtypes = [REAL_PART.get(v.dtype, v.dtype) if operation.mixed else v.dtype for v in values]
    first = operation.inputs[0]
    problem = NestProblem(
        op=operation.kind,
        dims=dims,
        out=dtypes[0],
        a=dtypes[1],
        b=dtypes[2] if len(dtypes) == 3 else "",
        conj_a=first.conj and operation.kind != "sum",
        conj_b=len(values) == 3 and values[2].conj,
        swap_a=first.swapped_bytes,
        scaled=operation.scaled,
    )
    return lowered(problem, threads)


def lowered(problem: NestProblem, threads: int) -> NestPlan:
    """The plan of a nest problem."""
    return NestPlan(problem=problem, lowered=nest_family.lower(problem, threads))


def _stride(axes: Mapping[Index, Axis], index: Index) -> int:
    axis = axes.get(index)
    if axis is None:
        return 0
    assert axis.linear, "nests have strided operands"
    return axis.stride
