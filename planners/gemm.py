"""Plans one contraction with summed dimensions as a GEMM: sides, tile, panels, access modes, tasks.

Decisions go backwards through the tree: the layout of the output is known (the caller's, or what its consumer asked
for), an input is known or *free*. A free operand gets the layout that the kernel reads without packing: panels
(FBL) on a large lanes side, K-major rows else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from .. import cost
from ..kernels import tiles as tile_table
from ..kernels.cpu import abi
from ..kernels.gemm import GemmProblem, lower
from ..kernels.isa import ISA
from ..kernels.row import Row
from ..machine_memory import last_cache
from ..plan import Index, Layout
from ..records import forget, lazy, quick
from .across import group_of, in_groups, lanes_along_a
from .cache_sets import columns_apart
from .contraction import BinaryContraction, slow_to_fast
from .gemm_access import FAR_BYTES, FAR_COLUMNS, KC, L1_BYTES, GemmAccess
from .gemm_tables import Decided, GemmTables, described
from .gemm_work import IN_PLACE_BYTES, GemmWork
from .layout import fbl_layout, row_layout
from .operations import itemsize
from .packing import PackedSide, pack_side
from .ragged import in_turn, turn_of, whole_groups
from .runs import packed_rows
from .shares import PACKED_COLUMNS, Share, uneven_shares
from .sides import (
    LEFT,
    OUT,
    RIGHT,
    Dim,
    flat_table,
    fused_dims,
    leading,
    make_panels,
    split_long,
    total,
)
from .squares import squares_of_k
from .tasks import gemm_blocks, most_panels
from .tile_choice import MOST_COLUMNS, choose_tile, most_columns

TABLE_ENTRIES = 8192  # entries of a table of N or K; what is more goes to outer loops
INNER_ROWS = 4096  # rows of the inner lanes side; more are looped outside
STREAM_BYTES = 4 << 20  # results larger than this are stored past the caches
AGAIN_BYTES, AGAIN_SHARE = 32 << 20, 16  # intermediates larger than this, or than this part of the last cache


@quick
@dataclass(frozen=True, kw_only=True, eq=False)
class GemmPlan:
    """Everything decided about one GEMM; the places of its operands are filled in when the arena is laid out.

    ``left_layout``, ``right_layout``: layouts given to free operands; ``pack_left``, ``pack_right``: packing steps to
    run before; ``work``: what the product costs. Left is the lanes side: the second operand where ``swapped``.
    ``describe``: how the operands are read, the first one first. ``asked``: what it was planned from, for ``threads``.
    """

    asked: BinaryContraction
    isa: ISA
    threads: int
    work: GemmWork
    parallel: bool
    swapped: bool
    left_layout: Layout | None
    right_layout: Layout | None
    pack_left: PackedSide | None
    pack_right: PackedSide | None
    describe: tuple[str, str]
    machine: cost.Machine

    @lazy
    def drawn(self) -> tuple[GemmTables, Decided]:
        """What the problem is made of. `row` drops it, and it is planned again for those that ask then."""
        return _Planner(self.asked, self.isa, self.threads, self.swapped, self.machine).plan().drawn

    @lazy
    def problem(self) -> GemmProblem:
        return self._problem()

    def _problem(self) -> GemmProblem:
        tables, decided = self.drawn
        return tables.problem(decided, self.parallel)

    @lazy
    def tile(self) -> tuple[int, int]:
        """Lanes and columns of C in registers."""
        return self.work.mr, self.work.nr

    @lazy
    def row(self) -> Row:
        """The row of the product, its operands nowhere yet."""
        # Of a product that is its own step nobody asks for its problem again: neither that is kept, nor what it is made of,
        # which is most of what there is to keep of a product. The collector goes through all that is kept.
        row = lower(self.__dict__.get("problem") or self._problem())
        row.packed, row.nbytes  # before the copies that have operands
        self.__dict__.pop("drawn", None)
        return row


def plan_gemm(c: BinaryContraction, isa: ISA, threads: int, machine: cost.Machine) -> GemmPlan:
    """Chooses how to run ``c`` on ``machine``; every size, stride and dtype is served."""
    swapped = c.lanes_on_right
    asked = c.swapped if swapped else c
    plan = _Planner(asked, isa, threads, swapped, machine).plan()
    forget(asked)  # its fused dimensions, which the plan has as it needs them
    return plan


class _Planner(GemmAccess):
    def __init__(self, c: BinaryContraction, isa: ISA, threads: int, swapped: bool, machine: cost.Machine):
        self.c, self.isa, self.threads, self.swapped = c, isa, threads, swapped
        self.machine, self.in_flight = machine, machine.in_flight
        self.item = tile_table.ITEMSIZE[c.dtype]  # of what is computed with; operands may hold narrower elements
        self.sources = c.left_dtype or c.dtype, c.right_dtype or c.dtype  # by tensor, as the next
        self.items = itemsize(self.sources[LEFT]), itemsize(self.sources[RIGHT])
        self.known = {OUT: c.out}
        if c.left is not None:
            self.known[LEFT] = c.left
        if c.right is not None:
            self.known[RIGHT] = c.right

    # -- dimensions ------------------------------------------------------------------------------------------
    def _dims(self, indices: Sequence[Index], tensors: Sequence[int], order_by: int) -> list[Dim]:
        """Fastest first by the stride in ``order_by``, fused where possible, long ones split."""
        if not indices:
            return []
        layouts = self.known
        known = [(t, layouts[t]) for t in tensors if t in layouts]
        ordered: Sequence[Index] = indices
        if known:
            ordered = slow_to_fast(indices, layouts.get(order_by) or known[0][1])
        near = self.c.near_right
        if near and RIGHT in tensors and RIGHT not in layouts and (LEFT not in tensors or LEFT not in layouts):
            ordered = sorted(ordered, key=near.__contains__)  # stable
        whole = len(known) == len(tensors)
        dims = fused_dims(ordered, self.c.sizes, known, whole)
        return (split_long(dims) if whole else dims)[::-1]

    def _find_dims(self) -> None:
        c, order = self.c, self._k_order()
        if len(self.known) < 3:
            self.b_dims = self._dims(c.batch, (LEFT, RIGHT, OUT), OUT)
            self.m_dims = self._dims(c.m, (LEFT, OUT), OUT)
            self.n_dims = self._dims(c.n, (RIGHT, OUT), OUT)
            self.k_dims = self._dims(c.k, (LEFT, RIGHT), order)
            return
        self.b_dims, self.m_dims, self.n_dims, self.k_dims = [split_long(dims)[::-1] for dims in c.dims]
        if order != LEFT and len(self.k_dims) > 1:
            self.k_dims = self._dims(c.k, (LEFT, RIGHT), order)

    def plan(self) -> GemmPlan:
        c = self.c
        self._find_dims()
        self.k_total = total(self.k_dims)
        self.k_outer: list[Dim] = []
        self.n_outer: list[Dim] = []
        if c.left is not None and c.right is not None:
            self._find_squares()
            self._split_off()
            self._columns_along_b()
        self.n_total = total(self.n_dims)
        run = across = self._along_a() if c.across else None
        if c.left is not None and across is None:
            self._rows_along_a()
            items, block = (self.items[LEFT], self.item), tile_table.elements(self.isa, c.dtype)
            self.m_dims, run = packed_rows(self.m_dims, items, INNER_ROWS, block)
        along_a = across is not None
        contiguous = along_a or (bool(self.m_dims) and self.m_dims[0].stride(OUT) == self.item)
        work = tuple([dim.size for dim in self.m_dims]), self.n_total, self.k_total
        together, goes_on = self._together() if c.left is None and contiguous else (1, 0)
        past = (streams := self._stream(self._kc)) and not along_a
        self.apart = columns_apart(self.n_dims if streams else (), self.isa, self.k_total)
        close = self.together() if past else 0
        in_c = {"together": together, "goes_on": goes_on, "in_flight": self.in_flight, "there": self._lanes_there()}
        in_c["anywhere"] = anywhere = past and contiguous and c.anywhere
        most = most_columns(c.dtype, self.apart, self.k_total) if past else MOST_COLUMNS
        if along_a:
            self._cut(run, ((self.mv, self.nr), False))  # the tile that the groups are for
        elif not self._cut_in_place(run, (*work, contiguous), close, anywhere):
            self._cut(run, choose_tile(self.isa, c.dtype, *work, contiguous, most=most, close=bool(close), **in_c))
        if self.nr > FAR_COLUMNS and not along_a and self._streams_b():
            self._cut(run, choose_tile(self.isa, c.dtype, *work, contiguous, most=FAR_COLUMNS, **in_c))
        if (tile := self._tile_of_c()) is not None:
            self._cut(run, (tile, False))
        self.mr, self.close = self.panels.width, close if close and self.panels.box % close == 0 else 0
        if across is not None:
            self.order = in_groups(total(self.panels.rest), self.panels.cuts, across.size, self.group)
        self.column_block = self._in_column_blocks()
        a_mode = self._a_mode()
        self.in_rows = self._in_rows(a_mode)
        if self.in_rows and self.n_total == 1 and (self.mv, 1) in tile_table.tiles(self.isa, c.dtype):
            self.nr = 1  # tiles with an idle column are stored through the stack
        b_mode = self._b_mode(a_mode)
        self._batch_along(a_mode, b_mode)
        carries = past and tile_table.carries(self.isa, c.dtype, (self.mv, self.nr))
        if carries and a_mode == "pack" and self._pack_mode() == abi.PANEL_RUN:
            self._turn(b_mode)
        return self._decided(a_mode, b_mode)

    def _batch_along(self, a_mode: str, b_mode: str) -> None:
        """Loops first over the batch index along which an operand runs, A before B, that a step packs across it."""
        side = LEFT if a_mode == "prepack" and self._runs_across() else RIGHT
        if side == LEFT or b_mode == "prepack" and self._pack_right_mode() == abi.PANEL_RUN:
            self.b_dims = sorted(self.b_dims, key=lambda dim: dim.stride(side) != self.items[side])  # stable

    def _turn(self, b_mode: str) -> None:
        """Puts panels in groups of whole runs of C, where tasks can have whole groups."""
        self.turn = turn_of(self.panels, self.item, self.mr * self._kc * self.item)
        if not self.turn[0]:
            return
        ends = [end for share in self._shares(self._kc, "pack", b_mode) for end in share[:2]]
        if whole_groups(self.turn, (*ends, self._blocks(self._kc, "pack", b_mode)[1]), self.panels.count):
            self.reorder(in_turn(self.panels, self.turn))
        else:
            self.turn = 0, 0

    def _cut(self, run: Dim | None, chosen: tuple[tuple[int, int], bool]) -> None:
        """Cuts the rows into panels of the chosen tile."""
        (self.mv, self.nr), extend = chosen
        self.panels = make_panels(self.m_dims, self.mv * tile_table.elements(self.isa, self.c.dtype), extend, run, INNER_ROWS)

    def _lanes_there(self) -> int:
        """Lanes of the panels in which an A from memory lies: whole runs of its fastest dimension, one for each term, all of
        which find room in L1; else 0."""
        if LEFT not in self.known or self.c.left_dtype or self.c.constant_left or not self.m_dims:
            return 0
        lanes, item = self.m_dims[0], self.item
        panel = lanes.size * item
        if lanes.stride(LEFT) != item or panel * self.k_total > L1_BYTES:
            return 0
        if total(self.m_dims) * self.k_total * item * total(self.b_dims) < FAR_BYTES:
            return 0
        return lanes.size if any(dim.stride(LEFT) == panel for dim in self.k_dims) else 0

    def _cut_in_place(self, run: Dim | None, work: tuple, close: int, anywhere: bool) -> bool:
        """Cuts the rows for a B that is read in place, where that has tiles of its own and panels are few enough for it."""
        if self.isa.repeats and not self._follows_apart():
            return False
        most = tile_table.most_in_place(self.c.dtype)
        how = {"most": most, "close": bool(close), "anywhere": anywhere, "in_place": True, "in_flight": self.in_flight}
        chosen = choose_tile(self.isa, self.c.dtype, *work, **how)
        if self.isa.repeats and chosen[0][0] == 1:  # too few multiply-adds under way
            return False
        self._cut(run, chosen)
        return self._reads_b_in_place()

    def _together(self) -> tuple[int, int]:
        """How many of the fastest dimensions of the rows are one run in C, and of how many entries of the next one pieces
        are that go on with that run, as in a panel of C's reader: 0 where there are none. Those of a free operand stay
        apart. One that is known would have to be packed.
        """
        count, run = 1, self.m_dims[0].size * self.item
        while count < len(self.m_dims) and self.m_dims[count].stride(OUT) == run:
            run *= self.m_dims[count].size
            count += 1
        if count == len(self.m_dims):
            return count, 0
        axis = self.known[OUT][self.m_dims[count].indices[0]]
        return count, axis.tile if axis.stride == run and not axis.linear else 0

    def _along_a(self) -> Dim | None:
        """The dimension of panels that are adjacent in C, where lanes run along A; None where that is not to be had."""
        c, lanes = self.c, tile_table.elements(self.isa, self.c.dtype)
        if c.left is None or c.left_dtype or c.constant_left or c.accumulate or self.k_total > KC[self.item]:
            return None
        dims = lanes_along_a(self.m_dims, self.k_dims, self.items[LEFT], self.item, lanes)
        if dims is None:
            return None
        rows = tuple([dim.size for dim in dims])
        (mv, nr), _ = choose_tile(self.isa, c.dtype, rows, self.n_total, self.k_total, True, True, in_flight=self.in_flight)
        if not nr:  # A would be read again and again
            return None
        self.group = group_of(-(-dims[0].size // (mv * lanes)), dims[1].size, mv * lanes * nr * self.item, lanes)
        if not self.group[0]:
            return None
        self.m_dims, self.mv, self.nr = dims, mv, nr
        return dims[1]

    def _split_off(self) -> None:
        """Slow dimensions of a long N become outer loops, of a long K an outer loop over K: tables stay short."""
        if total(self.n_dims) > TABLE_ENTRIES:
            keep = leading(self.n_dims, TABLE_ENTRIES)
            self.n_dims, self.n_outer = self.n_dims[:keep], self.n_dims[keep:]
        if total(self.k_dims) > TABLE_ENTRIES:
            keep = leading(self.k_dims, TABLE_ENTRIES)
            self.k_dims, self.k_outer = self.k_dims[:keep], self.k_dims[keep:]

    def _find_squares(self) -> None:
        """Orders K by squares where both operands are to be packed, along different summed indices. With lanes on the other
        side than the output suggests, what that saves would be predicted too high: packing element by element is not always
        as slow as it is then weighed."""
        if len(self.k_dims) < 2 or self.c.flip:
            return
        sizes = {"items": self.items, "item": self.item, "most": KC[self.item], "entries": TABLE_ENTRIES}
        found = squares_of_k(self.k_dims, total(self.n_dims), **sizes)
        if found is not None:
            self.squares, self.k_dims, self.k_outer = found, [found.row, found.across], list(found.turns)

    def _k_order(self) -> int:
        """Sum in the order in which an operand that must be packed along K runs."""
        c = self.c
        for tensor, axes in ((LEFT, c.left), (RIGHT, c.right)):
            if axes is not None and self.items[tensor] in [abs(axes[i].stride) for i in c.k]:
                return tensor
        return LEFT if c.left is not None else RIGHT

    # -- what comes of it ------------------------------------------------------------------------------------
    def _decided(self, a_mode: str, b_mode: str) -> GemmPlan:
        c, item = self.c, self.item
        left_layout = right_layout = pack_left = pack_right = None
        a_stride = b_stride = 0
        nested = self._nested() if a_mode == "free" else None
        if a_mode == "free":
            left_layout = fbl_layout(self.panels, self.b_dims, self.k_dims, item, nested)
            a_mode, a_stride = "panels", (self.k_total if nested is None else nested.terms) * self.mr * item
        elif a_mode == "direct-free":
            left_layout = row_layout(self.b_dims, self.k_dims, self.m_dims, item)
            a_mode = "direct"
        if b_mode == "direct-free":
            right_layout = row_layout(self.b_dims, self.k_dims, self.n_dims, item)
            self.learn(RIGHT, right_layout, ("b_dims", "n_dims", "k_dims"))
            b_mode = self._b_mode_known(a_mode)
        if a_mode == "prepack":
            pack_left = self._prepack_left()
            a_mode, a_stride = "panels", pack_left.stride
        if b_mode == "prepack":
            pack_right = self._prepack_right()
            b_mode, b_stride = "panels", pack_right.stride
        kc = self._terms_of_a_block(nested)
        decided = Decided(
            a_mode=a_mode,
            b_mode=b_mode,
            a_stride=a_stride,
            a_nested=nested is not None,
            b_stride=b_stride,
            pack_mode=self._pack_mode() if a_mode == "pack" else abi.LANES_RUN,
            b_pack_mode=self._pack_right_mode() if b_mode == "pack" else abi.LANES_RUN,
            fetch_a=self.in_rows or a_mode == "pack" and self._fetches(LEFT, self.n_total),
            fetch_b=bool(self.column_block) or b_mode == "pack" and self._fetches(RIGHT, self.panels.count * self.mr),
            kc=kc,
            chunk=self.chunk(),
            across=self.group,
            stream=self._stream(kc) and self.nr <= self.apart,
            close=self.close,
            blocks=self._blocks(kc, a_mode, b_mode),
            in_turns=self._in_turns and kc >= self.k_total,
            shares=self._shares(kc, a_mode, b_mode),
            left_layout=left_layout,
            pack_left=pack_left,
            pack_right=pack_right,
        )
        modes = described(a_mode, c.left_dtype), described(b_mode, c.right_dtype)
        plan = GemmPlan(
            asked=c,
            isa=self.isa,
            threads=self.threads,
            machine=self.machine,
            work=self._work(decided),
            parallel=self._parallel,
            swapped=self.swapped,
            left_layout=left_layout,
            right_layout=right_layout,
            pack_left=pack_left,
            pack_right=pack_right,
            describe=modes[::-1] if self.swapped else modes,
        )
        plan.__dict__["drawn"] = self, decided
        return plan

    def _work(self, d: Decided) -> GemmWork:
        p, item = self.panels, self.item
        far = d.b_mode == "direct" and self.n_total * self.k_total * item > IN_PLACE_BYTES and not (self._narrow or self.column_block)
        if far:
            along = flat_table(self.k_dims[::-1], RIGHT)
            far = len(along) < 2 or along[1] - along[0] != item
        stored = self.stored(d.a_mode)
        modes = d.pack_mode if d.a_mode == "pack" else None, d.b_pack_mode if d.b_mode == "pack" else None
        return GemmWork(
            dtype=self.c.dtype,
            mv=self.mv,
            nr=self.nr,
            mr=self.mr,
            outer=self._outer_total,
            panels=p.count,
            rows=sum([count * lanes for count, lanes in p.filled]),
            columns=self.n_total,
            k=self.k_total,
            kc=d.kc,
            chunk=d.chunk,
            blocks=d.blocks,
            stored=stored,
            crowded=stored[2] > 0 and self._crowded(),
            far_b=far,
            waits_b=self._waits_for_b() if d.b_mode == "direct" and not far else 0.0,
            narrow=d.b_mode == "direct" and self._narrow,
            in_place=d.b_mode == "direct",
            across=self.group[1],
            close=self.close > 0,
            pack_modes=modes,
            pack_runs=tuple([0 if mode is None else self._packed_run(side, mode) for side, mode in enumerate(modes)]),
            paged=tuple([mode is not None and self._paged(side, mode) for side, mode in enumerate(modes)]),
        )

    # -- packing steps ---------------------------------------------------------------------------------------
    def _prepack_left(self) -> PackedSide:
        across = self._runs_across()
        return pack_side(
            lanes=self.tm_a,
            valid=self.valid,
            batch=[flat_table(dims, LEFT) for dims in self.b_levels],
            across=across,
            tk=flat_table(self.k_dims[::-1], LEFT),
            tko=flat_table(self.k_outer[::-1], LEFT),
            source=self.sources[LEFT],
            dtype=self.c.dtype,
            mode=abi.PANEL_RUN if across else self._pack_mode(),
            outer=flat_table(self.panels.outer, LEFT),
            threads=self.threads,
            parallel=self._parallel,
        )

    def _prepack_right(self) -> PackedSide:
        mode = self._pack_right_mode()
        lanes, valid = self.columns()
        return pack_side(
            lanes=lanes,
            valid=valid,
            batch=[flat_table(dims, RIGHT) for dims in self.b_levels],
            across=mode == abi.PANEL_RUN,
            tk=flat_table(self.k_dims[::-1], RIGHT),
            tko=flat_table(self.k_outer[::-1], RIGHT),
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
    def _blocks(self, kc: int, a_mode: str, b_mode: str) -> tuple[int, int, int]:
        if self.column_block:
            return 1, self.panels.count, self.column_block.columns
        together = self._in_one_line() if self._parallel else 1
        share, panels, columns = gemm_blocks(
            outer=-(-self._outer_total // together),
            panels=self.panels.count,
            columns=self.n_total,
            nr=self.nr,
            panel_bytes=self.mr * kc * self.item,
            column_bytes=self.n_total * kc * self.item if b_mode == "panels" else 0,
            grain=self._grain(a_mode),
            most_columns=self._most_columns(kc) if b_mode == "pack" else 0,
            threads=self.threads if self._parallel else 1,
            goes_on=a_mode == "pack" and self._goes_on(),
            packed_columns=PACKED_COLUMNS if a_mode == "pack" else 0,
            in_turns=self._in_turns,
            brief=(self._seconds, self.share_lines()) if self._brief else None,
        )
        return min(self._outer_total, share * together), panels, columns

    def _shares(self, kc: int, a_mode: str, b_mode: str) -> tuple[Share, ...]:
        """Of unequal size, where a large product has one outer iteration, and tasks do not pack B."""
        if not self._parallel or self._brief or self._outer_total > 1 or b_mode == "pack" or self.column_block:
            return ()
        panel_bytes = self.mr * kc * self.item
        return uneven_shares(
            panels=self.panels.count,
            columns=self.n_total,
            nr=self.nr,
            grain=self._grain(a_mode),
            most=most_panels(panel_bytes, self.n_total * kc * self.item if b_mode == "panels" else 0),
            threads=self.threads,
            panel_bytes=panel_bytes,
            packs=a_mode == "pack",
        )

    def _stream(self, kc: int) -> bool:
        """C is written once, and is larger than what its reader could find in cache: a step may in the last one, of which the
        machine's other cores have theirs."""
        found = max(STREAM_BYTES, min(AGAIN_BYTES, last_cache() // AGAIN_SHARE)) if self.c.again else STREAM_BYTES
        return kc >= self.k_total and self.bytes_of_c > found
