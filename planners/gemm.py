"""Plans one contraction with summed dimensions as a GEMM: sides, tile, panels, access modes, tasks.

Decisions go backwards through the tree: the layout of the output is known (the caller's, or what its consumer asked
for), an input is known or *free*. A free operand gets the layout that the kernel reads without packing: panels
(FBL) on a large lanes side, K-major rows else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

import numpy as np

from ..kernels import tiles as tile_table
from ..kernels.cpu import abi
from ..kernels.cpu.storage import STORAGES
from ..kernels.gemm import GemmProblem, Operand, lower
from ..kernels.isa import ISA
from ..kernels.row import Row
from ..plan import Index, Layout
from ..records import lazy, quick
from .contraction import BinaryContraction
from .layout import fbl_layout, row_layout
from .packing import PACK_BYTES, PackedSide, pack_side
from .sides import (
    LEFT,
    OUT,
    RIGHT,
    ZERO,
    Dim,
    flat_table,
    fuse,
    join_rows,
    learned,
    leading,
    levels,
    make_dim,
    make_panels,
    outer_loop,
    run_dim,
    split_long,
    total,
)
from .splitting import TASKS_PER_THREAD
from .tasks import gemm_blocks
from .tile_choice import choose_tile

BATCH_LOOPS = 2  # loops over the batch index, so that their tables are short
TABLE_ENTRIES = 8192  # entries of a table of N or K; what is more goes to outer loops
INNER_ROWS = 4096  # rows of the inner lanes side; more are looped outside
L1_BYTES = 24 << 10
B_PACK_BYTES = 512 << 10  # of packed B per task, in L2 beside packed A
IN_PLACE_BYTES = 256 << 10  # of a B that is read in place however it runs
MOST_STREAMS = 16  # rows of B that are read in place side by side
KC = {1: 1024, 2: 768, 4: 384, 8: 256, 16: 192}  # K block by item size: a B panel stays in L1
STREAM_BYTES = 4 << 20  # results larger than this are stored past the caches


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class GemmPlan:
    """Everything decided about one GEMM; the places of its operands are filled in when the arena is laid out.

    ``left_layout``, ``right_layout``: layouts given to free operands; ``pack_left``, ``pack_right``: packing steps to
    run before. Left is the lanes side: the second operand where ``swapped``.
    """

    problem: GemmProblem
    swapped: bool
    left_layout: Layout | None
    right_layout: Layout | None
    pack_left: PackedSide | None
    pack_right: PackedSide | None
    describe: tuple[str, str]

    @lazy
    def row(self) -> Row:
        """The row of the product, its operands nowhere yet."""
        return lower(self.problem)


def plan_gemm(c: BinaryContraction, isa: ISA, threads: int) -> GemmPlan:
    """Chooses how to run ``c``; every size, stride and dtype is served."""
    swapped = _lanes_on_right(c) != (c.flip and bool(c.m) and bool(c.n))
    if swapped:
        c = c.swapped()
    return _Planner(c, isa, threads, swapped).plan()


def _lanes_on_right(c: BinaryContraction) -> bool:
    """The store side gets the lanes: the side that holds the fastest dimension of the output."""
    strides = {i: abs(c.out[i].stride) for i in (*c.m, *c.n)}
    if not c.n or not c.m:
        return not c.m
    rows, columns = (min((strides[i] for i in side), default=0) for side in (c.m, c.n))
    return columns < rows


class _Planner:
    def __init__(self, c: BinaryContraction, isa: ISA, threads: int, swapped: bool):
        self.c, self.isa, self.threads, self.swapped = c, isa, threads, swapped
        self.item = tile_table.ITEMSIZE[c.dtype]  # of what is computed with; operands may hold narrower elements
        self.sources = {LEFT: c.left_dtype or c.dtype, RIGHT: c.right_dtype or c.dtype}
        self.items = {t: STORAGES[name].itemsize for t, name in self.sources.items()}
        axes = {LEFT: c.left, RIGHT: c.right, OUT: c.out}
        self.known = {t: a for t, a in axes.items() if a is not None}

    # -- dimensions ------------------------------------------------------------------------------------------
    def _dims(self, indices: Sequence[Index], tensors: Sequence[int], order_by: int) -> list[Dim]:
        """Fastest first by the stride in ``order_by``, fused where possible, long ones split."""
        if not indices:
            return []
        known = [t for t in tensors if t in self.known]
        by = order_by if order_by in self.known else (known[0] if known else None)
        ordered = list(indices)
        if by is not None and len(ordered) > 1:
            axes = self.known[by]
            ordered.sort(key=lambda i: -abs(axes[i].stride))
        if RIGHT in tensors and RIGHT not in self.known and LEFT not in known:
            ordered.sort(key=lambda i: i in self.c.near_right)  # stable
        dims = [make_dim(i, self.c.sizes[i], {t: self.known[t][i] for t in known}) for i in ordered]
        if len(known) == len(tensors):
            dims = split_long(fuse(dims))
        return dims[::-1]

    def plan(self) -> GemmPlan:
        c = self.c
        self.m_dims = self._dims(c.m, (LEFT, OUT), OUT)
        self.n_dims = self._dims(c.n, (RIGHT, OUT), OUT)
        self.b_dims = self._dims(c.batch, (LEFT, RIGHT, OUT), OUT)
        self.k_dims = self._dims(c.k, (LEFT, RIGHT), self._k_order())
        self.k_total = total(self.k_dims)
        self.k_outer: list[Dim] = []
        self.n_outer: list[Dim] = []
        if c.left is not None and c.right is not None:
            self._split_off()
        self.n_total = total(self.n_dims)
        if c.left is not None:
            self.m_dims = join_rows(self.m_dims, self.items[LEFT], INNER_ROWS)
        contiguous = bool(self.m_dims) and self.m_dims[0].stride(OUT) == self.item
        rows = tuple([dim.size for dim in self.m_dims])
        (self.mv, self.nr), extend = choose_tile(self.isa, c.dtype, rows, self.n_total, self.k_total, contiguous)
        width = self.mv * tile_table.elements(self.isa, c.dtype)
        run = None if c.left is None else run_dim(self.m_dims, self.items[LEFT])
        self.panels = make_panels(self.m_dims, width, extend, run, INNER_ROWS)
        self.mr = self.panels.width
        self.tm_a = None if c.left is None else self.panels.offsets(LEFT)
        self.tm_c, self.valid = self.panels.offsets(OUT), self.panels.valid()
        a_mode = self._a_mode()
        b_mode = self._b_mode(a_mode)
        return self._assemble(a_mode, b_mode)

    def _split_off(self) -> None:
        """Slow dimensions of a long N become outer loops, of a long K an outer loop over K: tables stay short."""
        keep = leading(self.n_dims, TABLE_ENTRIES)
        self.n_dims, self.n_outer = self.n_dims[:keep], self.n_dims[keep:]
        keep = leading(self.k_dims, TABLE_ENTRIES)
        self.k_dims, self.k_outer = self.k_dims[:keep], self.k_dims[keep:]

    def _k_order(self) -> int:
        """Sum in the order in which an operand that must be packed along K runs."""
        c = self.c
        for tensor, axes in ((LEFT, c.left), (RIGHT, c.right)):
            if axes is not None and any(abs(axes[i].stride) == self.items[tensor] for i in c.k):
                return tensor
        return LEFT if c.left is not None else RIGHT

    # -- operand A -------------------------------------------------------------------------------------------
    @lazy
    def _lanes_contiguous(self) -> bool:
        """Whether the lanes of every panel are adjacent in a left operand whose layout is known."""
        known = self.panels.runs(LEFT, self.items[LEFT])
        return bool(self._adjacent(self.tm_a, self.items[LEFT]).all()) if known is None else known

    def _adjacent(self, offsets: np.ndarray, item: int) -> np.ndarray:
        """Of each panel, whether its valid lanes are adjacent."""
        box = self.panels.box
        steps = offsets[:, 1:box] - offsets[:, : box - 1] == item
        return (steps | (np.arange(1, box) >= self.valid[:, None])).all(axis=1)

    def _a_mode(self) -> str:
        """``direct``, ``pack`` (in the task), ``panels`` (already there) or ``prepack`` (a step before)."""
        c, item = self.c, self.item
        rows = self.panels.padded
        if c.left is None:
            small = rows * self.k_total * item <= 2 * L1_BYTES or self.panels.count == 1
            if not c.panels_left or c.only_panels:
                return "free" if c.panels_left else "direct-free"
            return "direct-free" if small and len(self.panels.lanes) + (self.panels.cut is not None) <= 1 else "free"
        column_panels = -(-self.n_total // self.nr)
        if c.constant_left and (c.left_dtype or not self._lanes_contiguous):
            return "prepack"
        if self._lanes_contiguous and not c.left_dtype:
            footprint = self.panels.count * self.mr * self.k_total * item
            if column_panels <= 2 or footprint <= L1_BYTES:
                return "direct"
            return "prepack" if c.constant_left else "pack"
        if self._runs_across():
            return "prepack"
        return "pack"

    def _runs_across(self) -> bool:
        """Whether A is contiguous along the batch."""
        return any(d.stride(LEFT) == self.items[LEFT] and d.size >= 4 for d in self.b_dims)

    def _pack_mode(self) -> int:
        if self._lanes_contiguous or self._lane_run() >= 4:
            return abi.LANES_RUN
        if self._along_k(LEFT) and self.k_dims[0].size >= 4:
            return abi.K_RUN
        if self.panels.run_last is not None:
            return abi.PANEL_RUN
        return abi.SCATTERED

    def _lane_run(self) -> int:
        """Lanes that are adjacent in A, in every panel."""
        fast = self.panels.lanes[0] if self.panels.lanes else self.panels.cut
        return fast.size if fast is not None and fast.stride(LEFT) == self.items[LEFT] else 1

    # -- operand B -------------------------------------------------------------------------------------------
    def _b_mode(self, a_mode: str) -> str:
        """``direct``, ``pack`` (by the task), ``prepack`` (a step before) or ``direct-free`` (rows of its own)."""
        return "direct-free" if self.c.right is None else self._b_mode_known(a_mode)

    def _b_mode_known(self, a_mode: str) -> str:
        if self._reads_b_in_place():
            return "direct"
        return "pack" if self._packs_b(a_mode) else "prepack"

    def _reads_b_in_place(self) -> bool:
        """Where B is read once or twice, in few streams that a prefetcher follows, or is in cache anyway."""
        footprint = self.n_total * self.k_total * self.item
        if self.c.right_dtype:
            return False
        if footprint <= L1_BYTES // 2 and not self.c.constant_right:
            return True
        if self.panels.count * total(self.panels.outer) > 3:
            return False
        streams = self.k_total // self.k_dims[0].size if self._along_k(RIGHT) else self.k_total
        return footprint <= IN_PLACE_BYTES or streams <= MOST_STREAMS

    def _along_k(self, tensor: int) -> bool:
        return bool(self.k_dims) and self.k_dims[0].stride(tensor) == self.items[tensor]

    def _packs_b(self, a_mode: str) -> bool:
        """Each element of B is packed by one task only, into L2, and never goes through memory as a copy."""
        if self.c.constant_right or self.panels.outer or self._pack_right_mode() == abi.PANEL_RUN:
            return False
        kc = self._kc()
        if self.panels.count * self.mr * kc * self.item > PACK_BYTES:
            return False
        wanted = TASKS_PER_THREAD * self.threads if self._parallel else 1
        outer = total(self.b_dims) * total(self.n_outer)
        if a_mode == "pack":  # a task has all columns, so that A is packed once too
            return self.n_total <= self._most_columns(kc) and outer >= wanted
        return outer * (self.n_total // self.nr) >= wanted

    def _most_columns(self, kc: int) -> int:
        """Columns of B that a task may pack."""
        columns = B_PACK_BYTES // (kc * self.item)
        return max(self.nr, columns - columns % self.nr)

    # -- assembly --------------------------------------------------------------------------------------------
    def _assemble(self, a_mode: str, b_mode: str) -> GemmPlan:
        c, item = self.c, self.item
        left_layout = right_layout = pack_left = pack_right = None
        a_stride = b_stride = 0
        if a_mode == "free":
            left_layout = fbl_layout(self.panels, self.b_dims, self.k_dims, self.item)
            a_mode, a_stride = "panels", self.k_total * self.mr * item
            self._learn(LEFT, left_layout, ("b_dims",))  # the rest is addressed by strides
        elif a_mode == "direct-free":
            left_layout = row_layout(self.b_dims, self.k_dims, self.m_dims, item)
            a_mode = "direct"
            self._learn(LEFT, left_layout, ("b_dims", "m_dims", "k_dims"))
        if b_mode == "direct-free":
            right_layout = row_layout(self.b_dims, self.k_dims, self.n_dims, item)
            self._learn(RIGHT, right_layout, ("b_dims", "n_dims", "k_dims"))
            b_mode = self._b_mode_known(a_mode)
        if left_layout is not None and a_mode == "direct":
            self.tm_a = self.panels.offsets(LEFT)
        self.b_levels = levels(self.b_dims[::-1], BATCH_LOOPS)
        n_dims = self.n_dims[::-1]
        tables = {
            "tn_b": flat_table(n_dims, RIGHT),
            "tn_c": flat_table(n_dims, OUT),
            "tk_a": flat_table(self.k_dims[::-1], LEFT),
            "tk_b": flat_table(self.k_dims[::-1], RIGHT),
            "tko_a": flat_table(self.k_outer[::-1], LEFT),
            "tko_b": flat_table(self.k_outer[::-1], RIGHT),
        }
        if a_mode == "prepack":
            pack_left = self._prepack_left(tables)
            a_mode, a_stride, tables["tko_a"] = "panels", pack_left.stride, pack_left.turns
        if b_mode == "prepack":
            pack_right = self._prepack_right(tables)
            b_mode, b_stride, tables["tko_b"] = "panels", pack_right.stride, pack_right.turns
        outer = self._outer(pack_left, pack_right)
        kc = self._kc()
        nowhere = Operand(slot=0, offset=0)
        problem = GemmProblem(
            dtype=c.dtype,
            mv=self.mv,
            nr=self.nr,
            mr=self.mr,
            a=nowhere,
            b=nowhere,
            c=nowhere,
            outer=outer,
            tm_a=ZERO if a_mode == "panels" else self.tm_a.ravel(),
            tm_c=self.tm_c.ravel(),
            valid=self.valid,
            run=self._runs(),
            a_mode=a_mode,
            b_mode=b_mode,
            a_source=c.left_dtype if a_mode == "pack" else "",
            b_source=c.right_dtype if b_mode == "pack" else "",
            a_stride=a_stride,
            b_stride=b_stride,
            pack_mode=self._pack_mode() if a_mode == "pack" else abi.LANES_RUN,
            b_pack_mode=self._pack_right_mode() if b_mode == "pack" else abi.LANES_RUN,
            kc=kc,
            chunk=self._chunk(),
            stream=self._stream(kc),
            blocks=self._blocks(kc, a_mode, b_mode),
            conj_a=c.conj_left,
            conj_b=c.conj_right,
            accumulate=c.accumulate,
            parallel=self._parallel,
            **tables,
        )
        return GemmPlan(
            problem=problem,
            swapped=self.swapped,
            left_layout=left_layout,
            right_layout=right_layout,
            pack_left=pack_left,
            pack_right=pack_right,
            describe=(_described(a_mode, c.left_dtype), _described(b_mode, c.right_dtype)),
        )

    def _learn(self, tensor: int, layout: Layout, groups: tuple[str, ...]) -> None:
        """A free tensor got its layout: dimensions made before, of ``groups`` and in the panels, know it from now on."""
        self.known[tensor] = axes = {axis.index: axis for axis in layout.axes}

        def new(dims: Sequence[Dim]) -> list[Dim]:
            return [learned(dim, tensor, axes[dim.indices[0]]) for dim in dims]

        for name in groups:
            setattr(self, name, new(getattr(self, name)))
        if tensor == LEFT:
            p = self.panels
            if "m_dims" in groups:
                lanes, rest, (cut,) = tuple(new(p.lanes)), tuple(new(p.rest)), new([p.cut]) if p.cut else (None,)
                p = replace(p, lanes=lanes, cut=cut, rest=rest)
            self.panels = replace(p, outer=tuple(new(p.outer))) if p.outer else p

    # -- outer loops -----------------------------------------------------------------------------------------
    def _outer(self, packed_left: PackedSide | None, packed_right: PackedSide | None) -> tuple:
        """Loops over batch, what was split off N, and off M: fastest last. Packed copies have strides of their own."""
        loops = []
        for level, dims in enumerate(self.b_levels):
            steps = [None if side is None else side.batch_strides[level] for side in (packed_left, packed_right)]
            loops.append(outer_loop(dims, *steps))
        in_left, in_right = (None if side is None else side.outer_stride for side in (packed_left, packed_right))
        for dims, left, right in ((self.n_outer[::-1], None, in_right), (self.panels.outer, in_left, None)):
            if dims:
                loops.append(outer_loop(dims, left, right))
        return tuple(loops)

    # -- packing steps ---------------------------------------------------------------------------------------
    def _prepack_left(self, tables: dict) -> PackedSide:
        across = self._runs_across()
        return pack_side(
            lanes=self.tm_a,
            valid=self.valid,
            batch=[flat_table(dims, LEFT) for dims in self.b_levels],
            across=across,
            tk=tables["tk_a"],
            tko=tables["tko_a"],
            source=self.sources[LEFT],
            dtype=self.c.dtype,
            mode=abi.PANEL_RUN if across else self._pack_mode(),
            outer=flat_table(self.panels.outer, LEFT),
            threads=self.threads,
            parallel=self._parallel,
        )

    def _prepack_right(self, tables: dict) -> PackedSide:
        n, nr = self.n_total, self.nr
        panels, mode = -(-n // nr), self._pack_right_mode()
        valid = np.full(panels, nr, np.int64)
        valid[-1] = n - (panels - 1) * nr
        return pack_side(
            lanes=tables["tn_b"][np.minimum(np.arange(panels * nr), n - 1)].reshape(panels, nr),
            valid=valid,
            batch=[flat_table(dims, RIGHT) for dims in self.b_levels],
            across=mode == abi.PANEL_RUN,
            tk=tables["tk_b"],
            tko=tables["tko_b"],
            source=self.sources[RIGHT],
            dtype=self.c.dtype,
            mode=mode,
            outer=flat_table(self.n_outer[::-1], RIGHT),
            threads=self.threads,
            parallel=self._parallel,
        )

    def _pack_right_mode(self) -> int:
        item = self.items[RIGHT]
        if self.n_dims and self.n_dims[0].stride(RIGHT) == item:
            return abi.LANES_RUN
        if self._along_k(RIGHT) and self.k_dims[0].size >= 4:
            return abi.K_RUN
        if any(d.stride(RIGHT) == item for d in self.b_dims):
            return abi.PANEL_RUN
        return abi.SCATTERED

    # -- tasks -----------------------------------------------------------------------------------------------
    def _kc(self) -> int:
        limit = KC[self.item]
        turn = total(self.k_dims)
        return -(-turn // -(-turn // limit))

    def _seconds(self) -> float:
        work = self.panels.padded * self.n_total * total(self.n_outer) * self.k_total * total(self.b_dims)
        return work / (2e10 if self.item <= 4 else 1e10)

    @lazy
    def _parallel(self) -> bool:
        return self.threads > 1 and self._seconds() > 4e-5

    def _blocks(self, kc: int, a_mode: str, b_mode: str) -> tuple[int, int, int]:
        return gemm_blocks(
            outer=total(self.b_dims) * total(self.n_outer) * total(self.panels.outer),
            panels=self.panels.count,
            columns=self.n_total,
            nr=self.nr,
            panel_bytes=self.mr * kc * self.item,
            grain=self._grain(a_mode),
            most_columns=self._most_columns(kc) if b_mode == "pack" else 0,
            threads=self.threads if self._parallel else 1,
        )

    def _grain(self, a_mode: str) -> int:
        """Panels that are packed together: a whole run, or the transposed group where the run is long."""
        if a_mode != "pack" or self._pack_mode() != abi.PANEL_RUN:
            return 1
        run = self.panels.run_last.size
        return run if run < 64 else 32

    def _stream(self, kc: int) -> bool:
        """C is written once, and is larger than what its reader could find in cache."""
        elements = total(self.m_dims) * self.n_total * total(self.n_outer) * total(self.b_dims)
        return kc >= self.k_total and elements * self.item > STREAM_BYTES

    def _chunk(self) -> int:
        """The longest vector run that scattered lanes of C come in, in all panels; 1 if there is none."""
        if self.panels.runs(OUT, self.item) is not None:
            return 1
        lanes, box = tile_table.elements(self.isa, self.c.dtype), self.panels.box
        for size in (lanes, lanes // 2, lanes // 4):
            if size > 1 and box % size == 0 and self.panels.last_valid % size == 0:
                groups = self.tm_c[:, :box].reshape(len(self.tm_c), -1, size)
                if (groups[:, :, 1:] - groups[:, :, :-1] == self.item).all():
                    return size
        return 1

    def _runs(self) -> np.ndarray:
        """1 for panels whose lanes are contiguous in C."""
        known = self.panels.runs(OUT, self.item)
        if known is None:
            return self._adjacent(self.tm_c, self.item).astype(np.int64)
        return np.full(len(self.valid), 1) if known else (self.valid <= 1).astype(np.int64)


def _described(mode: str, source: str) -> str:
    """How a side is read, and what of, where the task widens it."""
    return f"{mode}:{source}" if mode == "pack" and source else mode
