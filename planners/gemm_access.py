"""How a GEMM reads its operands: in place, packed by its tasks, or packed by a step before."""

from __future__ import annotations

import math
import sys

from .. import cost
from ..kernels.cpu import abi, cores
from ..kernels.cpu.units import LINE, PAGE
from ..kernels.isa import ISA
from ..kernels import tiles as tile_table
from ..kernels.tiles import follows
from ..machine_memory import block_bytes
from ..records import lazy
from .cache_sets import line_cycles
from .column_blocks import LONG_ROW, ColumnBlocks
from .gemm_tables import LEAST_EVEN
from .gemm_work import IN_PLACE_BYTES
from .layout import BlocksOfK, blocks_of_k
from .packing import PACK_BYTES
from .sides import LEFT, OUT, RIGHT, Dim, run_along, total
from .splitting import TASKS_PER_THREAD
from .tasks import grain_of

L1_BYTES = block_bytes(24 << 10, level=1)
TURN_PACK_BYTES = block_bytes(1 << 20, level=2)  # of packed A, where a turn of the outer loops asks for what the next one packs
B_PACK_BYTES = block_bytes(512 << 10, level=2)  # of packed B per task, in L2 beside packed A
MOST_STREAMS = 16  # rows of B that are read in place side by side
WORTH_PACKING = 64  # times that a small B is used in a long product, from which on its columns are packed side by side
LONG_WORK, LONG_READ = 4e7, 2e7  # a long one: terms times bytes of an element (4 to 8), bytes of A that few columns read
BRIEF_SECONDS = 2e-4  # of each thread that shares a product, up to which packing for all in a step costs more than it saves
BRIEF_LEFT, BRIEF_PANELS, BRIEF_TERMS = 128 << 10, 10, 32  # bytes of operands that it reads in place then: of lanes,
BRIEF_USES, BRIEF_RIGHT = 12, {abi.K_RUN: 512 << 10, abi.LANES_RUN: 208 << 10}  # and of columns, for so many panels of lanes
FAR_COLUMNS = 8  # of a tile that reads B from memory: more are streams that hardware loses
FEW_PANELS = 8  # of columns, for which packing an A that runs along its lanes and comes from memory does not pay
FAR_BYTES = 1 << 20
NEAR_PANELS, NEAR_COLUMNS = 6, 64  # and one from cache, where its rows are asked for (docs/performance.md#rows-near),
NEAR_FILLED, NEAR_ITEM = 0.7, 8  # of the lanes of its panels, at least: others are read by mask; bytes of an element, at most
NARROW_BYTES = 1280  # of the rows of both operands, up to which none of them is packed (docs/performance.md#narrow-rows),
ADJACENT, ADJACENT_PANELS = 8, 4  # if tiles read so many columns of a row together, or so few tiles read it
FEW_LANES = 8  # which find room in a cache set
# K block by item size: a B panel stays in L1.
KC = {item: block_bytes(terms, level=1) for item, terms in {1: 1024, 2: 768, 4: 384, 8: 256, 16: 192}.items()}
LONG_SUM, LEAST_RUN = 128, 4  # terms from which on packing B costs more than storing C anywhere; columns that are moved together
SUM_PER_COLUMN = 4  # terms for each column, of which there are two at least, from which on packing A does
FETCHED_BYTES = 1 << 20  # operands smaller than this are in cache, or soon will be
FETCHED_FOR = 16  # lanes of the other side from which on asking for a line early is cheap beside using it
FETCHED_BELOW = 256  # columns from which on packing A waits for less than asking costs beside so many tiles
FETCHED_ROWS = 512  # bytes from one row to the next up to which hardware follows
FETCHED_RUN = 2 << 10  # bytes of a row that comes from memory, up to which hardware finds it too late to be of use
SHORTEST_RUN = 128  # bytes of a row: shorter ones that lie side by side are one stream, which hardware follows
ROWS_AT_ONCE = 8  # of an A from memory that few columns read in place: streams that hardware follows
SET_LINES = 8  # of L1, in each of the sets that a page has
STORES_COUNT = 512  # terms of a sum up to which it matters how long its stores take
PEAK_SHARE = 0.75  # that a product of some microseconds has of the machine's peak, in the middle
MOVED = 20  # bytes that are copied in cache while an element is packed or stored, in the middle
FEW_COLUMNS = 4  # with which memory bounds a product
NEAR_BYTES = 4 << 20  # smaller operands are read again from the caches
NESTED_BYTES = 8 << 20  # of a free A in panels, from which on these are nested in blocks of K
NESTED_COLUMNS = 64  # with more of them the product takes so long that it waits for nothing


def block_of_k(terms: int, item: int) -> int:
    """Terms of a block of K, all of about one length.

    >>> block_of_k(1000, 8), block_of_k(256, 8)
    (250, 256)
    """
    return -(-terms // -(-terms // KC[item]))


class GemmAccess(ColumnBlocks):
    """What is decided about each operand, from sizes and strides; dimensions and panels are known."""

    machine: cost.Machine
    in_rows: bool  # of an A that few columns read from memory

    # -- order ------------------------------------------------------------------------------------------------
    def _rows_along_a(self) -> None:
        """Rows in the order in which A runs, where a long sum of few columns stores little of C."""
        if len(self.m_dims) < 2 or self.k_total < SUM_PER_COLUMN * max(self.n_total, 2):
            return
        dims = sorted(self.m_dims, key=lambda dim: abs(dim.stride(LEFT) or sys.maxsize))
        run = run_along(dims, LEFT, self.items[LEFT])
        if run == total(dims) or run * self.item >= SHORTEST_RUN:
            self.m_dims = dims

    def _columns_along_b(self) -> None:
        """Columns begin with the dimension along which B runs, where B would be packed element by element. A long sum
        stores few columns of C, and little depends on which are beside each other."""
        if self.k_total < LONG_SUM or self._pack_right_mode() != abi.SCATTERED:
            return
        runs = [d for d in self.n_dims if d.stride(RIGHT) == self.items[RIGHT] and d.size >= LEAST_RUN]
        self.n_dims = runs + [d for d in self.n_dims if d not in runs]

    # -- operand A -------------------------------------------------------------------------------------------
    @lazy
    def _lanes_contiguous(self) -> bool:
        """Whether the lanes of every panel are adjacent in a left operand whose layout is known."""
        item = self.items[LEFT]
        run = self.panels.run(LEFT, item)
        if run is None:  # the first two mostly tell, without a table of all
            return self._lane_step() == item and bool(self.adjacent(self.tm_a, item).all())
        return max(lanes for count, lanes in self.panels.filled if count) <= run

    def _a_mode(self) -> str:
        """``direct``, ``pack`` (in the task), ``panels`` (already there) or ``prepack`` (a step before)."""
        c, item = self.c, self.item
        rows = self.panels.padded
        if c.left is None:
            small = rows * self.k_total * item <= 2 * L1_BYTES or self.panels.count == 1
            if not c.panels_left or c.only_panels:
                return "free" if c.panels_left else "direct-free"
            small = small and not self.column_block
            return "direct-free" if small and len(self.panels.lanes) + (self.panels.cut is not None) <= 1 else "free"
        if self.group[0]:
            return "direct"
        if self.column_block or self._asks_for_columns():
            return "prepack"
        column_panels = -(-self.n_total // self.nr)
        if c.constant_left and (c.left_dtype or not self._lanes_contiguous):
            return "prepack"
        if self._lanes_contiguous and not c.left_dtype:
            footprint = self.panels.count * self.mr * self.k_total * item
            if column_panels <= 2 or footprint <= L1_BYTES or self._asks_near(column_panels) or self._narrow:
                return "direct"
            if self._brief and self._pays_in_place(footprint, column_panels):
                return "direct"  # tasks that share it would all pack it
            whole = footprint * total(self.panels.outer) * total(self.b_dims)
            if column_panels <= FEW_PANELS and whole >= FAR_BYTES and not (c.constant_left or self._has_far_rows()):
                return "direct"
            return "prepack" if c.constant_left else "pack"
        if self._runs_across():
            return "prepack"
        return "pack"

    def _asks_near(self, column_panels: int) -> bool:
        """Whether A is read in place for more columns, by tiles that ask for its rows before their use."""
        if column_panels > NEAR_PANELS or self.n_total > NEAR_COLUMNS:
            return False
        return cores.here().rows_near > 0 and self.isa.vector_bits == 512 and self._reads_well()

    def _pays_in_place(self, footprint: int, column_panels: int) -> bool:
        """Whether tasks that share a brief product read A in place: one that stays in the second cache, for few panels of
        columns. Behind few terms a tile's loads meet the stores of the one before, which keep them waiting where both lie at
        the same place of a page; rows of A and columns of C are often as far apart."""
        if footprint > BRIEF_LEFT or column_panels > BRIEF_PANELS * self.threads:
            return False
        return self.k_total >= BRIEF_TERMS and self._reads_well()

    def _reads_well(self) -> bool:
        """Whether lanes of an A that is read in place mostly fill their panels, and elements are short."""
        if self.c.constant_left or self.item > NEAR_ITEM:
            return False
        lanes = sum(count * lanes for count, lanes in self.panels.filled)
        return lanes >= NEAR_FILLED * self.panels.count * self.mr

    def _runs_across(self) -> bool:
        """Whether A is contiguous along the batch."""
        return any(d.stride(LEFT) == self.items[LEFT] and d.size >= 4 for d in self.b_dims)

    def _pack_mode(self) -> int:
        if self._lanes_contiguous or self._lane_run() >= 4:
            return abi.LANES_RUN
        if self.squares is not None or self._along_k(LEFT) and self.k_dims[0].size >= 4:
            return abi.K_RUN
        if self.panels.run_last is not None:
            return abi.PANEL_RUN
        return abi.SCATTERED

    def _paged(self, side: int, mode: int) -> bool:
        """Whether an operand is transposed from rows at distances of whole pages."""
        fast = self._fast_lanes() if side == LEFT else self.n_dims[0] if self.n_dims else None
        if fast is None or fast.size < FEW_LANES or mode not in (abi.K_RUN, abi.PANEL_RUN):
            return False
        step = self._lane_step() if side == LEFT else fast.stride(RIGHT)
        return step is not None and step % PAGE == 0

    def _fast_lanes(self) -> Dim | None:
        """The dimension of the rows that is fastest in C, where there are rows."""
        return self.panels.lanes[0] if self.panels.lanes else self.panels.cut

    def _lane_step(self) -> int:
        """Bytes from the first lane to the second one in A."""
        return self._fast_lanes().step(LEFT)

    def _lane_run(self) -> int:
        """Lanes that are adjacent in A, in every panel."""
        fast = self._fast_lanes()
        return fast.size if fast is not None and fast.stride(LEFT) == self.items[LEFT] else 1

    def _packed_run(self, side: int, mode: int) -> int:
        """Elements that lie side by side, as far as packing moves them together."""
        if mode == abi.K_RUN:
            return self.k_dims[0].size
        if mode == abi.PANEL_RUN and side == LEFT and self.panels.run_last is not None:
            return self.panels.run_last.size
        if mode == abi.LANES_RUN:
            return self.n_dims[0].size if side == RIGHT else self._lane_run()
        return 1

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
        if self.c.right_dtype or (self.group[0] and self.nr > MOST_STREAMS):
            return False
        if self.column_block:  # none until panels are cut
            return True
        used = self.panels.count * total(self.panels.outer)
        if used == 1 and self.n_total <= min(self.nr, FAR_COLUMNS) and not self.c.constant_right:
            return True  # by one tile: packing would read the same elements in the same order, and write them besides
        if footprint <= L1_BYTES // 2 and not self.c.constant_right:
            return used < WORTH_PACKING or not self._is_long()
        if self._columns_follow(footprint) or self._keeps_apart() or self._narrow:
            return True
        if used > 3:
            return False
        along_k = RIGHT in self.known and self._along_k(RIGHT)
        streams = self.k_total // self.k_dims[0].size if along_k else self.k_total
        return streams <= MOST_STREAMS or footprint <= IN_PLACE_BYTES and not self._scattered_b(footprint)

    @lazy
    def _narrow(self) -> bool:
        """Whether each term is a short row of both operands, which lie in the order in which they are used: nothing that packing
        could put together, and a block of K stays in cache."""
        c = self.c
        if c.constant_left or c.constant_right or c.left_dtype or c.right_dtype or not {LEFT, RIGHT} <= set(self.known):
            return False
        if self.isa.vector_bits < 512 or self._pack_right_mode() != abi.LANES_RUN or not self._lanes_contiguous:
            return False
        if self.nr < ADJACENT and (self.nr < FEW_COLUMNS or self.n_total > ADJACENT_PANELS * self.nr):
            return False
        return (total(self.m_dims) + self.n_total) * self.item <= NARROW_BYTES

    def _columns_follow(self, footprint: int) -> bool:
        """Whether columns of B run along K, at equal distances that are not whole pages, few enough in a tile for an address
        each in a register, and B is in cache: a tile reads them in place as fast as from a panel (`cpu.evenly`)."""
        if footprint > cores.here().columns_in_place or self.nr > tile_table.ADDRESSED or self.isa.vector_bits < 512:
            return False
        if self.c.constant_right or RIGHT not in self.known or len(self.k_dims) != 1 or not self._along_k(RIGHT):
            return False
        if self.k_total < LEAST_EVEN or self.c.dtype not in ("float32", "float64"):  # tables; others were not measured
            return False
        return not self._paged(RIGHT, abi.K_RUN)

    def _keeps_apart(self) -> bool:
        """Whether threads that share a brief product read B in place: that costs each of them less than to meet once more,
        behind a step that packs it, and to fetch from another core what that one has packed. Not where they use it often."""
        if not self._brief or self.c.constant_right or self.c.right_dtype or RIGHT not in self.known:
            return False
        uses = total(self.m_dims) / (2 * tile_table.elements(self.isa, self.c.dtype))  # as if panels were of two vectors
        mode, nbytes = self._pack_right_mode(), self.n_total * self.k_total * total(self.b_dims) * self.item
        if uses > BRIEF_USES * self.threads or mode not in BRIEF_RIGHT or nbytes > BRIEF_RIGHT[mode]:
            return False
        return not self._paged(RIGHT, mode)

    def _follows_apart(self) -> bool:
        """Whether its columns run along K then: with 32 registers these alone are read by tiles of their own."""
        return self.c.dtype not in tile_table.COMPLEX and self._keeps_apart() and self._along_k(RIGHT)

    def _scattered_b(self, footprint: int) -> bool:
        """Whether B comes from memory, some columns of a row at a time, and rows are too far apart for a prefetcher, so
        that each line is waited for; packed, rows are read as a whole."""
        if RIGHT not in self.known or not self.k_dims or self._along_k(RIGHT):
            return False
        far = footprint * total(self.n_outer) * total(self.b_dims) > NEAR_BYTES
        return far and abs(self.k_dims[0].stride(RIGHT)) > FETCHED_ROWS

    def _waits_for_b(self) -> float:
        """Cycles that a panel waits for lines of a B that is read in place, in an outer iteration: each panel does, also where
        the second cache has room for the lines of one iteration."""
        steps = [(dim.size, dim.stride(RIGHT)) for dim in (*self.n_dims, *self.k_dims, *self.b_dims[:1])]
        if RIGHT not in self.known or self._narrow or None in [step for _, step in steps]:
            return 0.0
        product = steps[: len(self.n_dims) + len(self.k_dims)]
        return line_cycles(product, steps[-1] if self.b_dims else None, item=self.items[RIGHT])

    def _along_k(self, tensor: int) -> bool:
        return bool(self.k_dims) and self.k_dims[0].stride(tensor) == self.items[tensor]

    def _packs_b(self, a_mode: str) -> bool:
        """Each element of B is packed by one task only, into L2, and never goes through memory as a copy."""
        if self.c.constant_right or self.panels.outer or self._pack_right_mode() == abi.PANEL_RUN:
            return False
        kc = self._kc
        wanted = TASKS_PER_THREAD * self.threads if self._parallel else 1
        outer = total(self.b_dims) * total(self.n_outer)
        most = TURN_PACK_BYTES if a_mode == "pack" and outer >= wanted and self._in_turns else PACK_BYTES
        if self.panels.count * self.mr * kc * self.item > most:
            return False
        if a_mode == "pack":  # a task has all columns, so that A is packed once too
            return self.n_total <= self._most_columns(kc) and outer >= wanted
        return outer * (self.n_total // self.nr) >= wanted

    def _most_columns(self, kc: int) -> int:
        """Columns of B that a task may pack, whole tiles."""
        return -(-B_PACK_BYTES // (kc * self.item * self.nr)) * self.nr

    def _streams_b(self) -> bool:
        """Whether B is read in place, along K, and comes from memory."""
        if self.c.right is None or self.n_total * self.k_total * self.item <= IN_PLACE_BYTES:
            return False
        return self._along_k(RIGHT) and self._reads_b_in_place()

    def _fetches(self, side: int, against: int) -> bool:
        """Whether blocks of an operand are asked for before they are packed: where it is larger than what a core caches,
        each line is used so often that asking costs little of that, and rows are too far apart for a prefetcher. Rows of
        a batch on a page each are not: what is asked for is lost, with the way to its page, before it is packed."""
        lanes, widened = (self.m_dims, self.c.left_dtype) if side == LEFT else (self.n_dims, self.c.right_dtype)
        nbytes = total(self.b_dims) * total(lanes) * self.k_total * self.item
        if widened or nbytes < FETCHED_BYTES or side == LEFT and against >= FETCHED_BELOW:
            return False
        if self.squares is not None:
            return against >= FETCHED_FOR
        mode = self._pack_mode() if side == LEFT else self._pack_right_mode()
        if mode == abi.K_RUN:
            return self._fetches_rows(side, against, nbytes, bool(lanes) and self._lanes_apart(side) >= PAGE)
        return against >= FETCHED_FOR and mode != abi.SCATTERED and abs(self.k_dims[0].stride(side)) > FETCHED_ROWS

    def _fetches_rows(self, side: int, against: int, nbytes: int, paged: bool) -> bool:
        """The same where terms of a row are packed together. Of rows from memory that end soon after hardware has found
        them, packing waits for each, so that few columns gain, too: from rows that lie side by side, not on a page each."""
        run = self.k_dims[0].size * self.item
        if against < FETCHED_FOR:
            return not paged and SHORTEST_RUN <= run <= FETCHED_RUN and nbytes > 2 * NEAR_BYTES
        if self.b_dims and paged:
            return False
        late = run <= FETCHED_RUN and nbytes > NEAR_BYTES
        return late or run < FETCHED_ROWS or against >= 4 * FETCHED_FOR

    def _in_rows(self, a_mode: str) -> bool:
        """Whether few columns read A from memory, in long rows: then blocks of K are so few rows that each is one stream
        over all panels, which stays in cache for other columns, and C, in cache too, is added to for each block."""
        few = self.n_total <= FEW_COLUMNS and follows((self.mv, self.nr))
        if a_mode != "direct" or self.c.left is None or self.group[0] or self.panels.count < 2 or not few:
            return False
        if self.k_total < 4 * ROWS_AT_ONCE or self.m_dims[0].stride(OUT) != self.item:
            return False
        elements = total(self.b_dims) * total(self.m_dims) * self.k_total
        return elements * self.item > NEAR_BYTES and abs(self.k_dims[0].stride(LEFT)) >= LONG_ROW

    def _goes_on(self) -> bool:
        """Whether short runs of panels that are packed across end within a line whose rest an outer loop reads."""
        run, item = self.panels.run_last, self.items[LEFT]
        if run is None or self._pack_mode() != abi.PANEL_RUN or run.size * item > FETCHED_ROWS:
            return False
        return any(d.stride(LEFT) == run.size * item for d in self.panels.outer)

    def _lanes_apart(self, side: int) -> int:
        """Bytes from one lane to the next in an operand."""
        fast = self.n_dims[0] if side == RIGHT else self._fast_lanes() or self.m_dims[0]
        return abs(fast.stride(side) or 0)

    # -- operand C -------------------------------------------------------------------------------------------
    def _in_one_line(self) -> int:
        """Outer indices, one after the other, whose parts of C have lines in common: these stay with one task, since a line
        that two cores write goes from one to the other for each store. In long sums stores are few."""
        if self.k_total > STORES_COUNT:
            return 1
        found = inner = 1
        for dim in (*self.panels.outer[::-1], *self.n_outer, *self.b_dims):  # fastest first
            step = abs(dim.step(OUT)) if dim.size > 1 else LINE
            if step < LINE:
                found = inner * min(dim.size, LINE // step)
            inner *= dim.size
        return found

    def _crowded(self) -> bool:
        """Whether lanes of a panel that lie apart in C share so few cache sets that a line is gone when the next column
        wants it."""
        dims = (*self.panels.lanes, *(() if self.panels.cut is None else (self.panels.cut,)))
        steps = [dim.step(OUT) for dim in dims if dim.size > 1]
        return self.panels.box * math.gcd(PAGE, *steps) > SET_LINES * PAGE

    def _grain(self, a_mode: str) -> int:
        """Panels that are packed or unpacked together: a whole run, or the transposed group where the run is long."""
        if grouped := self.group[0] * self.group[1] or self.turn[0] * self.turn[1]:
            return grouped
        if a_mode != "pack" or self._pack_mode() != abi.PANEL_RUN:
            return 1
        lanes = tile_table.elements(self.isa, self.c.dtype)
        return grain_of(self.panels.run_last.size, self.mr * self._kc * self.item, lanes, self.item)

    @lazy
    def _outer_total(self) -> int:
        return total(self.b_dims) * total(self.n_outer) * total(self.panels.outer)

    @lazy
    def _in_turns(self) -> bool:
        """Whether outer loops are a batch of products whose turns may ask for the next one, if a task has all of a turn."""
        single = not (self.n_outer or self.k_outer or self.panels.outer) and self._kc >= self.k_total
        return cores.here().turns_ask and single and total(self.b_dims) > 1

    # -- how much it is -----------------------------------------------------------------------------------------
    @lazy
    def _kc(self) -> int:
        return self.squares.kc if self.squares is not None else block_of_k(total(self.k_dims), self.item)

    def _terms_of_a_block(self, nested: BlocksOfK | None) -> int:
        if self.column_block:
            return self.column_block.terms
        return ROWS_AT_ONCE if self.in_rows else self._kc if nested is None else nested.terms

    def _nested(self) -> BlocksOfK | None:
        """The blocks of K in which the panels of a free A lie side by side; None where each panel has all of K. Where A does
        not fit in cache, and few columns leave memory time to show, each block is one stream for its reader. Its writer, which
        goes from panel to panel, finds them in a few pages each, not in pages that a multiple of large powers of two
        separates: these share places in the table of addresses."""
        c = self.c
        far = self.n_total <= NESTED_COLUMNS and self.panels.padded * self.k_total * self.item >= NESTED_BYTES
        return blocks_of_k(self.k_dims, KC[self.item]) if c.nested or (far and not c.only_panels) else None

    @lazy
    def _seconds(self) -> float:
        """About as long as one thread takes; with few columns, as long as it reads the lanes side."""
        read, terms = self._read_and_multiplied
        rate = PEAK_SHARE * self.machine.terms(self.c.dtype)
        return max(terms / rate, read * self.item / self.machine.cache_bandwidth)

    @lazy
    def _read_and_multiplied(self) -> tuple[int, int]:
        """Elements of the lanes side, and multiply-adds."""
        read = total(self.m_dims) * self.k_total * total(self.b_dims) * total(self.k_outer)
        return read, read * self.n_total * total(self.n_outer)

    def _is_long(self) -> bool:
        """Whether packing a B that is in L1 pays, whatever the instruction set."""
        read, terms = self._read_and_multiplied
        return terms * min(max(self.item, 4), 8) >= LONG_WORK or read * self.item >= LONG_READ

    @lazy
    def _moving_seconds(self) -> float:
        """About as long as one thread takes to pack operands and to store C, whose runs are as short as they are in tensors."""
        lanes, columns = total(self.m_dims), self.n_total * total(self.n_outer)
        elements = (lanes + columns) * self.k_total * total(self.k_outer) + lanes * columns
        return elements * total(self.b_dims) * MOVED / self.machine.cache_bandwidth

    @lazy
    def _parallel(self) -> bool:
        return self.machine.is_shared(self._seconds + self._moving_seconds, self.threads)

    @lazy
    def _brief(self) -> bool:
        """Whether threads share it, each for a moment."""
        return self._parallel and self._seconds < BRIEF_SECONDS * self.threads
