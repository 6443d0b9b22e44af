"""What a decided GEMM consists of: the tables of its dimensions, panels and outer loops.

Most products are drawn up more than once and run once. So a draft decides without tables, and those of the draft that
is taken are made when its problem is asked for.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import numpy as np

from ..kernels import tiles as tile_table
from ..kernels.cpu import abi
from ..kernels.cpu.units import ASK_TERMS, LINE
from ..kernels.gemm import GemmProblem, Operand
from ..kernels.isa import ISA
from ..plan import Axis, Index, Layout
from ..records import lazy
from .contraction import BinaryContraction
from .next_turn import NO_ROWS, AskedRows, asked_rows, rows_of
from .packing import PackedSide, kept_mode
from .shares import Share
from .sides import LEFT, OUT, RIGHT, ZERO, Dim, Panels, flat_table, learned, levels, ones, outer_loop, total
from .squares import Squares

BATCH_LOOPS = 2  # loops over the batch index, so that their tables are short
LEAST_EVEN = 8  # terms at equal distances: fewer take longer to begin than tables to read
FAR_BYTES = 4 << 20  # of panels of B that were packed before, from which on they come from memory
FAR_A_BYTES = 1 << 20  # of panels of A, from which on they come from beyond the cache of a core
PARTS_BYTES = 800  # of a column of C with parts of lines at both ends, from which on stores past the caches pay
PARTS_OF_BYTES = 16 << 20  # and of all of C: more is not in cache when the next column comes (one thread)
_NOWHERE = Operand(slot=0, offset=0)


class Decided(NamedTuple):
    """What was decided about a GEMM besides its dimensions: access modes, how tasks pack, blocks and strides."""

    a_mode: str
    b_mode: str
    a_stride: int
    a_nested: bool
    b_stride: int
    pack_mode: int
    b_pack_mode: int
    fetch_a: bool
    fetch_b: bool
    kc: int
    chunk: int
    across: tuple[int, int]
    stream: bool
    close: int
    blocks: tuple[int, int, int]
    in_turns: bool
    shares: tuple[Share, ...]
    left_layout: Layout | None
    pack_left: PackedSide | None
    pack_right: PackedSide | None

    @property
    def reads_panels(self) -> bool:
        """Whether both operands are panels where tiles read them."""
        return self.a_mode != "direct" and self.b_mode != "direct"


class GemmTables:
    """Dimensions and panels of a GEMM, with the tables that they have in each tensor, as they are asked for."""

    c: BinaryContraction
    isa: ISA
    item: int  # bytes of an element that is computed with
    items: tuple[int, int]  # bytes of an element of each operand, where it lies
    known: dict[int, Mapping[Index, Axis]]  # by tensor
    m_dims: list[Dim]  # all lists are fastest first
    n_dims: list[Dim]
    b_dims: list[Dim]
    k_dims: list[Dim]
    n_outer: list[Dim]
    k_outer: list[Dim]
    squares: Squares | None = None
    panels: Panels
    mv: int
    nr: int
    mr: int
    group: tuple[int, int] = (0, 0)  # panels that are unpacked together: beside each other in A, adjacent in C
    order: np.ndarray | None = None  # of the panels, where they are
    turn: tuple[int, int] = (0, 0)  # of `GemmProblem`

    @lazy
    def tm_a(self) -> np.ndarray:
        """(panels, lanes) offsets in A, whose layout is known."""
        return self._ordered(self.panels.offsets(LEFT))

    @lazy
    def tm_c(self) -> np.ndarray:
        """(panels, lanes) offsets in C."""
        return self._ordered(self.panels.offsets(OUT))

    @lazy
    def valid(self) -> np.ndarray:
        return self._ordered(self.panels.valid())

    def share_lines(self) -> np.ndarray:
        """Of each panel but the last one, whether its last lane and the first one of the next lie side by side in C: mostly in the
        same line, and if not, hardware asks for lines of both."""
        ends = self.tm_c[np.arange(len(self.valid)), self.valid - 1]
        return np.abs(self.tm_c[1:, 0] - ends[:-1]) < LINE

    @lazy
    def bytes_of_c(self) -> int:
        return total(self.m_dims) * self.n_total * total(self.n_outer) * total(self.b_dims) * self.item

    def reorder(self, order: np.ndarray) -> None:
        """Puts the panels in another order, in all tables."""
        self.order = order
        for table in ("tm_a", "tm_c", "valid"):
            self.__dict__.pop(table, None)

    def _ordered(self, table: np.ndarray) -> np.ndarray:
        return table if self.order is None else np.ascontiguousarray(table[self.order])

    @lazy
    def b_levels(self) -> list[list[Dim]]:
        """The loops over the batch, slow to fast."""
        return levels(self.b_dims[::-1], BATCH_LOOPS)

    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """(panels, columns) offsets in B, and the columns that exist in each panel; past them the last repeats."""
        nr, table = self.nr, flat_table(self.n_dims[::-1], RIGHT)
        n = len(table)
        panels = -(-n // nr)
        valid = np.full(panels, nr, np.int64)
        valid[-1] = n - (panels - 1) * nr
        return table[np.minimum(np.arange(panels * nr), n - 1)].reshape(panels, nr), valid

    def _modes(self, d: Decided) -> tuple[int, int]:
        """How A and B run where tasks pack them. Rows that lie in strides are cut alike everywhere."""
        left, right, cut = d.pack_mode, d.b_pack_mode, self.panels.cut
        if left == abi.PANEL_RUN and cut is not None and LEFT in cut.tables:
            left = kept_mode(left, self.tm_a, self.valid, self.items[LEFT])
        if right == abi.PANEL_RUN:
            right = kept_mode(right, *self.columns(), self.items[RIGHT])
        return left, right

    def _bytes_of_a(self) -> int:
        return total(self.m_dims) * total(self.k_dims) * total(self.k_outer) * total(self.b_dims) * self.item

    def _asks(self, d: Decided, even: int) -> tuple[AskedRows, ...]:
        """What a turn of the outer loops has of A, B and C that is asked for in the turn before, where a task has all of it at
        once; (): nothing."""
        k, (turns, panels, columns) = total(self.k_dims), d.blocks
        if not d.in_turns or turns < 2 or panels < self.panels.count or columns < self.n_total or d.across[0]:
            return ()
        if not d.reads_panels and (not even or even < k and even % ASK_TERMS):
            return ()
        if d.a_mode == "panels":
            left = (k * self.mr * self.item, self.panels.count, d.a_stride) if not d.a_nested else NO_ROWS
        else:
            left = rows_of((*self.m_dims, *self.k_dims), LEFT, self.items[LEFT])
        right = NO_ROWS if d.b_mode == "panels" else rows_of((*self.n_dims, *self.k_dims), RIGHT, self.items[RIGHT])
        return asked_rows((left, right, rows_of((*self.m_dims, *self.n_dims), OUT, self.item)), total(self.b_dims))

    @property
    def _in_parts(self) -> bool:
        """Whether columns of C begin and end within lines, and have few: past the caches each part of a line would go to
        memory by itself, where the next column soon has the rest."""
        ragged = any([dim.step(OUT) % LINE for dim in self.n_dims if dim.size > 1])
        return ragged and total(self.m_dims) * self.item < PARTS_BYTES and self.bytes_of_c <= PARTS_OF_BYTES

    def problem(self, decided: Decided, parallel: bool) -> GemmProblem:
        """The problem, its operands nowhere yet. Asked for twice, it is the same twice."""
        c, d = self.c, decided
        k_dims = self.k_dims
        if d.left_layout is not None:
            # The rest of panels is addressed by strides.
            self.learn(LEFT, d.left_layout, ("b_dims",) if d.a_mode == "panels" else ("b_dims", "m_dims", "k_dims"))
            k_dims = self.k_dims
        tm_a = ZERO
        if d.a_mode != "panels":
            tm_a = (self.tm_a if d.left_layout is None else self.panels.offsets(LEFT)).ravel()
        n_dims, k_dims, k_outer = self.n_dims[::-1], k_dims[::-1], self.k_outer[::-1]
        tm_c, valid = self.tm_c, self.valid
        pack_mode, b_pack_mode = self._modes(d)
        even = _even([t for t, mode in ((LEFT, d.a_mode), (RIGHT, d.b_mode)) if mode == "direct"], self.k_dims)
        asks = self._asks(d, even)
        if self._fills(d.a_mode):
            tm_c = tm_c[:, :1] + np.arange(self.mr) * self.item
            valid = np.full(len(tm_c), self.mr, np.int64)
        return GemmProblem(
            dtype=c.dtype,
            mv=self.mv,
            nr=self.nr,
            mr=self.mr,
            a=_NOWHERE,
            b=_NOWHERE,
            c=_NOWHERE,
            outer=self._outer(d.pack_left, d.pack_right),
            tm_a=tm_a,
            tm_c=tm_c.ravel(),
            valid=valid,
            run=self._runs(),
            tn_b=flat_table(n_dims, RIGHT),
            tn_c=flat_table(n_dims, OUT),
            tk_a=flat_table(k_dims, LEFT),
            tk_b=flat_table(k_dims, RIGHT),
            tko_a=flat_table(k_outer, LEFT) if d.pack_left is None else d.pack_left.turns,
            tko_b=flat_table(k_outer, RIGHT) if d.pack_right is None else d.pack_right.turns,
            a_mode=d.a_mode,
            b_mode=d.b_mode,
            a_source=c.left_dtype if d.a_mode == "pack" else "",
            b_source=c.right_dtype if d.b_mode == "pack" else "",
            a_stride=d.a_stride,
            a_nested=d.a_nested,
            b_stride=d.b_stride,
            pack_mode=pack_mode,
            b_pack_mode=b_pack_mode,
            fetch_a=d.fetch_a,
            fetch_b=d.fetch_b,
            far_a=d.a_mode == "panels" and self.isa.vector_bits == 512 and self._bytes_of_a() > FAR_A_BYTES,
            far_b=d.pack_right is not None and d.pack_right.nbytes > FAR_BYTES,
            kc=d.kc,
            even=even,
            asks=asks,
            chunk=d.chunk,
            turn=self.turn,
            across=d.across,
            stream=d.stream and not (d.in_turns and self._in_parts),
            close=d.close,
            blocks=d.blocks,
            shares=d.shares,
            lines=() if self.squares is None else self.squares.lines(self.items),
            conj_a=c.conj_left,
            conj_b=c.conj_right,
            accumulate=c.accumulate,
            parallel=parallel,
        )

    def learn(self, tensor: int, layout: Layout, groups: tuple[str, ...]) -> None:
        """A free tensor got its layout: dimensions made before, of ``groups`` and in the panels, know it now."""
        self.known[tensor] = axes = {axis.index: axis for axis in layout.axes}

        def new(dims: Sequence[Dim]) -> list[Dim]:
            return [learned(dim, tensor, axes[dim.indices[0]]) for dim in dims]

        for name in groups:
            setattr(self, name, new(getattr(self, name)))
        if tensor != LEFT:
            return
        p = self.panels
        lanes, cut, rest = p.lanes, p.cut, p.rest
        if "m_dims" in groups:
            lanes, rest, cut = tuple(new(lanes)), tuple(new(rest)), new([cut])[0] if cut else None
        elif not p.outer:
            return
        self.panels = Panels(
            width=p.width,
            box=p.box,
            lanes=lanes,
            cut=cut,
            tile=p.tile,
            rest=rest,
            run_last=p.run_last,
            outer=tuple(new(p.outer)),
        )

    def _outer(self, packed_left: PackedSide | None, packed_right: PackedSide | None) -> tuple:
        """Loops over batch, what was split off N, and off M: fastest last. Packed copies have strides of their own."""
        if not (self.b_dims or self.n_outer or self.panels.outer):  # as in most products
            return ()
        loops = []
        for level, dims in enumerate(levels(self.b_dims[::-1], BATCH_LOOPS)):  # they may know more than in `b_levels`
            steps = [None if side is None else side.batch_strides[level] for side in (packed_left, packed_right)]
            loops.append(outer_loop(dims, *steps))
        in_left, in_right = (None if side is None else side.outer_stride for side in (packed_left, packed_right))
        for dims, left, right in ((self.n_outer[::-1], None, in_right), (self.panels.outer, in_left, None)):
            if dims:
                loops.append(outer_loop(dims, left, right))
        return tuple(loops)

    # -- panels of C -----------------------------------------------------------------------------------------
    def adjacent(self, offsets: np.ndarray, item: int) -> np.ndarray:
        """Of each panel, whether its valid lanes are adjacent."""
        box = self.panels.box
        steps = offsets[:, 1:box] - offsets[:, : box - 1] == item
        return (steps | (np.arange(1, box) >= self.valid[:, None])).all(axis=1)

    @lazy
    def _run_in_c(self) -> int | None:
        return self.panels.run(OUT, self.item)

    def _runs(self) -> np.ndarray:
        """1 for panels whose lanes are contiguous in C."""
        run, panels = self._run_in_c, self.panels
        if run is None:
            return self.adjacent(self.tm_c, self.item).astype(np.int64)
        if max(panels.box, panels.last_valid) <= run:
            return ones(panels.count)
        return (self.valid <= run).astype(np.int64)

    def _fills(self, a_mode: str) -> bool:
        """Whether lanes that do not exist are stored besides: where panels of A have some, and C is an intermediate in the
        same panels, which nobody reads there. To store by mask takes longer."""
        cut, room = self.panels.cut, self.panels.width * self.item
        if a_mode != "panels" or cut is None or OUT not in cut.tables:  # what is not the plan's own has no such tables
            return False
        if len(cut.indices) > 1:  # short ones that are one in A: they are no block of C
            return False
        axes, index = self.known[OUT], cut.indices[0]
        inside = {dim.indices[0] for dim in self.panels.lanes}
        apart = [axes[index].outer, *[axis.stride for i, axis in axes.items() if i not in inside and i != index]]
        return axes[index].tile == self.panels.tile and min(apart) >= room and bool(self._runs().all())

    def stored(self, a_mode: str) -> tuple[int, int, int]:
        """Panels that are stored as whole vectors, those whose lanes are adjacent but not all there, and the lanes of
        the others."""
        if self._fills(a_mode):
            return self.panels.count, 0, 0
        run = self._run_in_c
        if run is None:
            adjacent, valid = self.adjacent(self.tm_c, self.item), self.valid
            whole = int(np.count_nonzero((valid == self.mr) & adjacent))
            return whole, int(np.count_nonzero(adjacent)) - whole, int(np.add.reduce(valid[~adjacent]))
        whole = part = scattered = 0
        for count, lanes in self.panels.filled:
            if lanes > run:
                scattered += count * lanes
            elif lanes == self.mr:
                whole += count
            else:
                part += count
        return whole, part, scattered

    def together(self) -> int:
        """Lanes of C that make up its fastest dimension, whole in each panel, where the next column begins behind them;
        0 where that is not so."""
        if not self.m_dims or not self.n_dims or self.n_dims[0].size < 2:
            return 0
        fast, next_column = self.m_dims[0], self.n_dims[0].stride(OUT)
        return fast.size if fast.stride(OUT) == self.item and next_column == fast.size * self.item else 0

    def chunk(self) -> int:
        """The runs that scattered lanes of C come in, in all panels, where they are moved as vectors; 1: one by one."""
        run, box, last = self._run_in_c, self.panels.box, self.panels.last_valid
        if run == 1 or run == box:
            return 1
        lanes = tile_table.elements(self.isa, self.c.dtype)
        sizes = [size for size in (lanes, lanes // 2, lanes // 4) if size > 1 and box % size == last % size == 0]
        found = next((size for size in sizes if self._in_runs(size)), 1)
        return tile_table.chunk(self.isa, self.c.dtype, self._whole_run(), found)

    def _whole_run(self) -> int:
        """Lanes of the fastest dimensions that are adjacent in C: each panel consists of runs of so many."""
        count = 1
        for dim in self.panels.lanes:
            if dim.stride(OUT) != count * self.item:
                break
            count *= dim.size
        return count

    def _in_runs(self, size: int) -> bool:
        """Whether lanes of C are adjacent in runs of ``size``."""
        if self._run_in_c is not None:
            return self._run_in_c % size == 0
        groups = self.tm_c[:, : self.panels.box].reshape(len(self.tm_c), -1, size)
        return bool((groups[:, :, 1:] - groups[:, :, :-1] == self.item).all())


def _even(tensors: Sequence[int], k_dims: Sequence[Dim]) -> int:
    """Terms that follow each other at one distance in each of ``tensors``, the fastest dimension first; 0: too few."""
    run, steps = 1, None
    for dim in k_dims:
        if dim.size == 1:
            continue
        here = [dim.stride(t) for t in tensors]
        if None in here or steps is not None and here != [step * run for step in steps]:
            break
        steps, run = steps or here, run * dim.size
    return run if tensors and run >= LEAST_EVEN else 0


def described(mode: str, source: str) -> str:
    """How a side is read, and what of, where the task widens it."""
    return f"{mode}:{source}" if mode == "pack" and source else mode
