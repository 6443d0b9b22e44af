"""What only `explain` and JSON show of a plan: made when somebody asks, from the values that steps read and write."""

from __future__ import annotations

from functools import lru_cache
from typing import Mapping, Sequence

from ..kernels.cpu import abi
from ..kernels.row import Row
from ..plan import Buffer, Index, Layout
from ..records import Later
from .operations import Value, itemsize


class PlanShown(Later):
    """All tensors of a plan; ``outputs``: names of results by number of the value, where they are not ``out``."""

    __slots__ = ("values", "outputs")

    def __init__(self, values: Sequence[Value], outputs: Mapping[int, str]) -> None:
        self.values, self.outputs = values, outputs

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple([_buffer(value, self.outputs) for value in self.values])


class StepShown(Later):
    """A step that reads all ``values`` but the last, which it writes; ``modes``: how it reads them. ``sizes`` are for
    its dimensions alone."""

    __slots__ = ("values", "sizes", "modes")

    def __init__(
        self, values: Sequence[Value], modes: tuple[str, ...] = (), sizes: Mapping[Index, int] | None = None
    ) -> None:
        self.values, self.modes, self.sizes = values, modes, sizes

    @property
    def expr(self) -> str:
        *terms, out = [term_text(value.term) for value in self.values]
        return ",".join(terms) + "->" + out

    @property
    def dims(self) -> dict:
        """Indices and sizes by dimension type: B in both inputs and the output, M and N in one input and the output, K
        summed; of more than two inputs what is in the output is B."""
        *terms, out = [value.term for value in self.values]
        if len(terms) > 2:
            terms = [tuple(dict.fromkeys([index for term in terms for index in term]))] * 2
        groups = _typed(terms[0], terms[-1] if len(terms) == 2 else (), out)
        return {kind: tuple([(index, self.sizes[index]) for index in indices]) for kind, indices in groups}

    @property
    def layouts(self) -> tuple[str, ...]:
        return described(self.values, self.modes)


class ProductShown(StepShown):
    """A step that is a whole product and packs nothing: also what is kept in a `Step` of other steps. ``position``: of
    values in the plan, by their ids."""

    __slots__ = ("read", "written", "position", "tile", "row")

    def __init__(
        self,
        read: tuple[Value, ...],
        written: Value,
        modes: tuple[str, ...],
        sizes: Mapping[Index, int],
        position: Mapping[int, int],
        tile: tuple[int, int],
        row: Row,
    ) -> None:
        self.read, self.written, self.modes, self.sizes = read, written, modes, sizes
        self.position, self.tile, self.row = position, tile, row

    @property
    def values(self) -> tuple[Value, ...]:
        return (*self.read, self.written)

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple([self.position[id(value)] for value in self.read])

    @property
    def output(self) -> int:
        return self.position[id(self.written)]

    @property
    def kernel(self) -> str:
        return self.row.kernels[abi.FN]

    @property
    def tasks(self) -> int:
        return self.row.tasks


def _buffer(value: Value, outputs: Mapping[int, str]) -> Buffer:
    if value.kind == "arena":
        name = f"t{value.memory.number}"
    else:
        name = f"in{value.slot}" if value.kind == "input" else outputs.get(value.number, "out")
    return Buffer(
        name=name,
        kind=value.kind,
        slot=value.slot,
        offset=value.offset,
        nbytes=value.nbytes,
        dtype=value.dtype,
        layout=_layout(value),
    )


def _layout(value: Value) -> Layout:
    axes = tuple([value.axes[i] for i in value.term])
    return Layout(kind=value.layout_kind, axes=axes, itemsize=itemsize(value.dtype), panel=value.panel)


def described(values: Sequence[Value], modes: tuple[str, ...]) -> tuple[str, ...]:
    """How values lie, and ``modes``."""
    return (*[_layout(value).describe() for value in values], *modes)


@lru_cache(maxsize=2048)
def _typed(
    left: tuple[Index, ...], right: tuple[Index, ...], out: tuple[Index, ...]
) -> tuple[tuple[str, tuple[Index, ...]], ...]:
    """Indices by dimension type, in the order in which the inputs name them."""
    groups: dict[str, list[Index]] = {"B": [], "M": [], "N": [], "K": []}
    for index in left:
        groups[("B" if index in right else "M") if index in out else "K"].append(index)
    for index in right:
        if index not in left:
            groups["N" if index in out else "K"].append(index)
    return tuple([(kind, tuple(indices)) for kind, indices in groups.items()])


@lru_cache(maxsize=2048)
def term_text(term: tuple[Index, ...]) -> str:
    """A term as it stands in the expression of a step."""
    return "".join([i if i.__class__ is str and len(i) == 1 else _name(str(i)) for i in term])


def _name(index: str) -> str:
    return index if len(index) == 1 else f"{{{index}}}"
