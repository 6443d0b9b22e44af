"""What the plan of a program is made for, and what it asks of the planner of einsums."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Program
from ..plan import Signature
from ..views import View
from .chains import order_of, parsed
from .groups import Contraction
from .operations import Value, itemsize
from .order import Order
from .request import PlanRequest


@dataclass(frozen=True, kw_only=True)
class ProgramRequest:
    """What the plan of a program is made for.

    ``strides``: bytes, of each input; ``written``: pairs of an input and the result that belongs in its memory.
    ``epilogues``: whether contractions do maps of their results (`epilogue`).
    """

    program: Program
    strides: tuple[tuple[int, ...], ...]
    written: tuple[tuple[int, int], ...] = ()
    threads: int = 1
    isa: str
    name: str = "program"
    layouts: str = "solve"
    epilogues: bool = True


class CallRequest:
    """A program's request as the builder and the executor read that of an einsum: one entry for each slot."""

    scaled, byteswapped, same, conj, constants, order = False, (), (), (), (), None

    def __init__(self, wanted: ProgramRequest, program: Program, fresh: list[Value]) -> None:
        self.program, self.threads, self.isa, self.layouts = wanted, wanted.threads, wanted.isa, wanted.layouts
        held = [var for var, _ in program.consts]
        consts = [(var.shape, var.dtype.name, View.whole(var.shape, var.dtype.itemsize).strides) for var in held]
        inputs = [(var.shape, var.dtype.name, s) for var, s in zip(program.inputs, wanted.strides)]
        shapes = [tuple(value.axes[i].size for i in value.term) for value in fresh]
        more = [(s, v.dtype, View.whole(s, itemsize(v.dtype)).strides) for s, v in zip(shapes[1:], fresh[1:])]
        slots = [*inputs, *consts, *more]
        first = (shapes[0], fresh[0].dtype) if fresh else ((), "bool")
        self.expr = Signature(
            text=wanted.name,
            shapes=tuple(shape for shape, _, _ in slots),
            output_shape=first[0],
            results=tuple((value.dtype, shape) for value, shape in zip(fresh, shapes)),
        )
        self.dtypes = tuple(dtype for _, dtype, _ in slots)
        self.strides = tuple(strides for _, _, strides in slots)
        self.dtype, self.accumulate = first[1], None
        self.out_strides = None


def einsum_request(step: Contraction, wanted: ProgramRequest, order: Order | None) -> PlanRequest:
    """What a contraction of a program asks for: what `compile` asks for the same einsum. ``order``: None for its own."""
    dtypes = tuple(place.dtype for place in step.inputs)
    expr = parsed(step.eqn.named["subscripts"], tuple(place.view.shape for place in step.inputs))
    first: dict[tuple, int] = {}
    same = tuple(first.setdefault((id(place.memory), place.view), at) for at, place in enumerate(step.inputs))
    return PlanRequest(
        expr=expr,
        dtypes=dtypes,
        strides=tuple(place.view.strides for place in step.inputs),
        out_strides=step.output.view.strides,
        dtype=step.output.dtype,
        threads=wanted.threads,
        isa=wanted.isa,
        order=order or order_of(expr),
        layouts=wanted.layouts,
        same=same if len(set(same)) < len(same) else (),
    )
