"""The plan: frozen data that says how a contraction runs, step by step.

A `Plan` is printable, comparable and JSON-serialisable; no algorithm lives here. Planners build plans,
the executor lowers them to the native step table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, ClassVar, Iterable, Mapping, NamedTuple, Sequence

from .records import quick

Index = str | int


class Axis(NamedTuple):
    """How one index of a tensor maps to memory: the table ``T[i] = (i // tile) * outer + (i % tile) * stride``.

    A linear axis has ``tile == size`` (the first term vanishes). All strides are in bytes. This is one term of
    the sum of tables that addresses an element; a layout is separable because it is such a sum.
    """

    index: Index
    size: int
    stride: int
    tile: int
    outer: int = 0

    @property
    def linear(self) -> bool:
        return self.tile >= self.size

    @property
    def place(self) -> tuple[int, int, int]:
        """All but the index and its size."""
        return self.stride, self.tile, self.outer

    def renamed(self, index: Index) -> "Axis":
        """The same for another index."""
        return Axis(index, self.size, self.stride, self.tile, self.outer)

    @classmethod
    def strided(cls, index: Index, size: int, stride: int) -> "Axis":
        return cls(index, size, stride, size or 1)


def linear_axes(indices: Iterable[Index], sizes: Sequence[int], strides: Iterable[int]) -> dict[Index, Axis]:
    """Linear axes by index, of sizes that are not 0: as many `Axis.strided`, made without a call for each.

    >>> linear_axes("ij", (2, 3), (24, 8))["j"]
    Axis(index='j', size=3, stride=8, tile=3, outer=0)
    """
    indices = tuple(indices)
    return dict(zip(indices, map(tuple.__new__, repeat(Axis), zip(indices, sizes, strides, sizes, repeat(0)))))


class Layout(NamedTuple):
    """Where the elements of one tensor live: a byte offset and one `Axis` per index.

    ``kind`` is ``"strided"`` (any strides, also 0 and negative) or ``"fbl"``: panels of ``panel`` lanes in which
    a microkernel reads its operand without packing; ``"nested"``: the same, panels of one block of K beside each other.
    """

    kind: str
    axes: tuple[Axis, ...]
    itemsize: int
    panel: int = 0

    def describe(self) -> str:
        """A short name for `explain`: ``C``, ``F``, ``fbl32``, ``nested32`` or ``strided``."""
        if self.panel:
            return f"{self.kind}{self.panel}"
        if _is_contiguous(self.axes, self.itemsize):
            return "C"
        if _is_contiguous(self.axes[::-1], self.itemsize):
            return "F"
        return "strided"


def _is_contiguous(axes: tuple[Axis, ...], itemsize: int) -> bool:
    expected = itemsize
    for axis in reversed(axes):
        size = axis.size
        if size == 1:
            continue
        if axis.tile < size or axis.stride != expected:
            return False
        expected *= size
    return True


@quick
@dataclass(frozen=True, kw_only=True)
class Signature:
    """What the plan of a program takes and gives, in the place of an `Expr`.

    ``shapes``: of what comes before the first result: inputs, constants, the other results. ``results``: dtype and
    shape of each result that has memory of its own.
    """

    text: str
    shapes: tuple[tuple[int, ...], ...]
    output_shape: tuple[int, ...]
    results: tuple[tuple[str, tuple[int, ...]], ...]
    indices: tuple = ()

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """One entry for each slot before the first result."""
        return self.shapes

    @property
    def eq(self) -> str:
        return self.text


class Buffer(NamedTuple):
    """One tensor at run time. ``kind``: ``input``, ``output`` or ``arena`` (intermediates).

    ``slot`` selects the base address (operand number, output, arena), ``offset`` is in bytes from it. Buffers of one
    name are one tensor under other indices, which are in the same order.
    """

    name: str
    kind: str
    slot: int
    offset: int
    nbytes: int
    dtype: str
    layout: Layout


@quick
@dataclass(frozen=True, kw_only=True)
class Step:
    """One kernel invocation.

    ``expr`` is the einsum of this step; ``dims`` maps the dimension types ``B M N K`` to ``((index, size), ...)``;
    ``inputs`` and ``output`` are positions in ``Plan.buffers``; ``args`` holds what the kernel row's lowering needs
    (a `kernels.row.Row`), with operands at ``places`` (its words from ``OUT_SLOT`` to ``B_OFFSET``) where it says so.
    ``seconds`` is the cost model's prediction; ``once``: depends on constants alone, runs once.
    ``block``: which of how many blocks of rows it does, of those that the steps around it do in turn. ``depth``: the
    branches and loops that it is in; steps of family ``control`` decide which step is next.
    """

    LATER: ClassVar[tuple[str, ...]] = ("expr", "kernel", "tile", "inputs", "output", "dims", "layouts", "tasks")

    number: int
    expr: str
    family: str
    kernel: str
    tile: tuple[int, ...]
    inputs: tuple[int, ...]
    output: int
    dims: Mapping[str, tuple[tuple[Index, int], ...]]
    layouts: tuple[str, ...]
    flops: int
    bytes_moved: int
    seconds: float
    tasks: int
    once: bool = False
    block: tuple[int, int] = (0, 1)
    depth: int = 0
    args: Any = field(repr=False, compare=False, default=None)
    places: tuple[int, ...] = field(repr=False, compare=False, default=())


@quick
@dataclass(frozen=True, kw_only=True)
class Plan:
    """A contraction or a program, ready to be lowered: order, layouts, buffers and kernels.

    ``request`` is the `planners.request.PlanRequest` that it was made for. ``expr``: the `Expr`, or the `Signature` of
    a program, whose ``path`` is empty.

    ``flops``, ``bytes_moved`` and ``seconds`` are sums over the steps: one turn of every loop, both ways of a branch.
    ``call_seconds``: predicted time of a call besides its steps.

    ``constant_bytes``, a part of the arena, is what steps on constant operands leave for all calls. The arena ends with the
    scratch memory of workers, ``worker_scratch`` bytes from one to the next.

    ``storage``: of a program, where its values live (`storage.StorageTable`).

    ``peak_bytes == output_bytes + arena_bytes + table_bytes``: what a call holds beyond its inputs.
    """

    LATER: ClassVar[tuple[str, ...]] = ("buffers",)

    expr: Any
    path: tuple[tuple[int, ...], ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    dtype: str
    compute_dtype: str
    isa: str
    threads: int
    flops: int
    bytes_moved: int
    output_bytes: int
    arena_bytes: int
    table_bytes: int
    constant_bytes: int = 0
    worker_scratch: int = 0
    call_seconds: float = 0.0
    request: Any = field(repr=False, default=None)
    storage: Any = field(repr=False, compare=False, default=None)

    @property
    def peak_bytes(self) -> int:
        """Bytes that a call needs beyond its inputs; the output counts 0 when the caller passes ``out=``."""
        return self.output_bytes + self.arena_bytes + self.table_bytes

    @property
    def seconds(self) -> float:
        """Predicted time of one call, in seconds."""
        return self.call_seconds + sum([step.seconds for step in self.steps])
