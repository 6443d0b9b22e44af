"""Packing: from any layout into panels, through offset tables, without a transpose pass.

A panel holds ``width`` lanes for every k: element (k, lane) lies at ``(k * width + lane) * item``. It is the source
element as it is, or widened to another dtype between load and store (`Widener`). The source element lies at
``src + lanes[panel * width + lane] + tk[k]``. How the source runs decides the path, and each path touches a source
cache line once:

    LANES_RUN   lanes are adjacent: copy runs
    K_RUN       k is adjacent, or terms that are equally far apart: blocks of (lane, k) transposed in registers
    PANEL_RUN   the next panel is adjacent: blocks of (lane, panel) transposed in registers
    SCATTERED   element by element

A block has T lanes, those of a vector, and R elements along the run: T, T / 2 or T / 4, the largest that the run has
(tensor networks are full of runs of 8 and 4).

The mode is a promise only about where speed lies; every run is verified against the tables before it is used, and
what does not run is moved element by element. PANEL_RUN promises besides that lane offsets within a panel, relative
to its first, are the same for all panels. Lanes past ``valid`` are filled with zeros or copies, never read from
outside the operand; their values never reach an output.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi
from .columns import columns, emit_row, emit_woven, is_woven, lanes, store_vectors
from .emit import I64, Fn, Val, Var
from .mover import Mover, mover_for
from .stream import LINE

# Bytes between what is read and what is asked for: of whole rows, and along each lane of a block. Hardware prefetchers
# lose short rows and many streams; measured in docs/performance.md.
ROWS_AHEAD = 4096
LANE_AHEAD = 512
NEXT_BYTES = 64 << 10  # of a narrow panel, up to which the lanes of the next one are asked for meanwhile
BLOCKS_AHEAD = 4096  # of rows of blocks, all lanes together
UNROLL = 4  # scattered elements moved at once
PAST_BIT = 60  # beside two counts in one argument


def build_pack(module: ir.Module, name: str, isa: ISA) -> None:
    """``void pack(args)``; see `abi` for the argument words."""
    mover = mover_for(None, name, isa)
    widths = columns(mover, isa)
    blocks = {run: _emit_blocks(module, run, name, isa) for run in mover.runs}
    woven = {width: emit_woven(module, width, name, isa) for width in widths if is_woven(mover, width)}
    rows = {width: emit_row(module, width, name, isa) for width in sorted({*widths, *lanes(mover, isa)})}
    f = Fn(module, name, [I64])
    Packer(f, mover_for(f, name, isa), blocks, woven, rows, _emit_squares(module, blocks, name, isa)).emit()
    f.ret()


def _emit_squares(module: ir.Module, blocks: dict[int, Fn], name: str, isa: ISA) -> Fn:
    """``void squares(args, lanes, dst, valid, apart)``: a panel by `Packer.k_apart`. It is rare, and would cost other panels
    registers."""
    f = Fn(module, "squares", [I64] * 5, internal=True)
    f.fn.attributes.add("noinline")
    Packer(f, mover_for(f, name, isa), blocks, {}, {}, None).k_apart(*f.args[1:])
    f.ret()
    return f


def _emit_blocks(module: ir.Module, run: int, name: str, isa: ISA) -> Fn:
    """``void blocks(at, lanes, count | room << 32 | past << PAST_BIT, dst, distance, ahead, steps)``: so many blocks side
    by side, in each lane l < count, element i < run: from ``at + lanes[l] + i * source_item`` to ``dst + i * distance +
    l * item``. ``count`` is 1 to T; of ``room`` lanes from ``dst`` on, those past ``count`` may get any value. What lies
    ``ahead`` bytes further is asked for early. ``past``: rows are whole lines of ``dst`` and go past the caches.

    The loop is in here: with few instructions around a block, a processor has several of them in view and loads early.
    Offsets of lanes are read in each turn, since as many counters would not find registers.
    """
    f = Fn(module, f"blocks_{run}", [I64] * 7, internal=True)
    f.fn.attributes.add("noinline")
    m = mover_for(f, name, isa)
    at, lanes, both, dst, distance, ahead, steps = f.args
    count, room, past = both & 0xFFFF, both >> 32 & 0xFFFF, both >> PAST_BIT
    table, clamped = Var(f, lanes), f.stack(8 * m.block)
    with f.if_(count < m.block):
        for l in range(m.block):
            f.store(f.word(lanes, f.min(f.i64(l), count - 1)), clamped + 8 * l)
        table.set(clamped)
    along = run * m.source_item
    with f.range(0, steps) as step:
        here, to = at + step * along, dst + step * (distance * run)
        loads = []
        for l in range(m.block):
            source = here + f.word(table.get(), l)
            if run == m.block:
                f.prefetch(source + ahead, locality=2)
            loads.append(m.load(source, run))
        rows = m.transpose([m.join(loads[i::run]) for i in range(run)])
        with f.if_else(room >= m.block) as (then, otherwise):
            with then:
                store_vectors(m, rows, to, distance, past)
            with otherwise:
                _store_part(Mover(f, m.item, isa), rows, count, to, distance)
    f.ret()
    return f


def _store_part(m: Mover, rows: list[Val], count: Val, dst: Val, distance: Val) -> None:
    """The first ``count`` elements of each row, ``distance`` bytes apart: by mask, or through the stack."""
    f = m.f
    if m.masked:
        mask = f.lane_mask(count * m.group, m.block * m.group)
        for i, row in enumerate(rows):
            f.store_masked(row, dst + distance * i, mask)
        return
    spill = f.stack(len(rows) * m.block * m.item)
    for i, row in enumerate(rows):
        m.store(row, spill + i * m.block * m.item)
    with f.range(0, len(rows)) as i:
        m.copy_run(spill + i * (m.block * m.item), dst + distance * i, count)


class Packer:
    """Emits one pack function; attributes are its arguments."""

    def __init__(
        self,
        f: Fn,
        mover: Mover,
        blocks: dict[int, Fn],
        woven: dict[int, Fn],
        rows: dict[int, Fn],
        squares: Fn | None,
    ):
        self.f, self.m, self.blocks = f, mover, blocks
        self.woven, self.rows, self.squares = woven, rows, squares
        args = f.args[0]
        names = ("dst", "src", "panels", "width", "lanes", "valid", "k", "tk", "mode", "stride")
        for index, name in enumerate(names):
            setattr(self, name, f.word(args, index))
        flags, self.mode = self.mode, self.mode & 3
        self.past = (flags & abi.PACK_PAST).ne(0) & ((self.dst | self.stride) & (LINE - 1)).eq(0)
        self.near = f.stack(8 * mover.block)

    def emit(self) -> None:
        f = self.f
        self.apart = self._terms_apart()
        panel = f.var(0)
        with f.while_() as leave:
            leave(panel.get() >= self.panels)
            p = panel.get()
            moved = Var(f, f.i64(0))
            with f.if_(self.mode.eq(abi.PANEL_RUN)):
                moved.set(self._panel_group(p))
            with f.if_(self.mode.eq(abi.LANES_RUN)):
                moved.set(self._row_group(p))
            with f.if_(moved.get().eq(0)):
                self._one_panel(p)
                moved.set(1)
            panel.add(moved.get())

    # -- one panel -------------------------------------------------------------------------------------------
    def _one_panel(self, p: Val) -> None:
        f = self.f
        lanes, dst = self.lanes + p * self.width * 8, self.dst + p * self.stride
        valid = self._valid(p)
        with f.if_else(self.mode.eq(abi.LANES_RUN)) as (then, otherwise):
            with then:
                self._lanes_run(lanes, dst, valid)
            with otherwise:
                with f.if_else(self.mode.eq(abi.K_RUN)) as (then2, otherwise2):
                    with then2:
                        with f.if_else(self.apart.eq(1)) as (beside, apart):
                            with beside:
                                self._k_run(lanes, dst, valid, p + 1 < self.panels)
                            with apart:
                                f.call(self.squares, [f.args[0], lanes, dst, valid, self.apart])
                    with otherwise2:
                        self._elements(lanes, dst, valid, f.i64(0), self.k)
        with f.if_(valid < self.width):
            self.m.zero_rows(dst + valid * self.m.item, self.width - valid, self.k, self.width * self.m.item)

    def _valid(self, p: Val) -> Val:
        valid = Var(self.f, self.width)
        with self.f.if_(self.valid.ne(0)):
            valid.set(self.f.word(self.valid, p))
        return valid.get()

    def _lanes_run(self, lanes: Val, dst: Val, valid: Val) -> None:
        """Run after run of the lanes, each over all of K."""
        f, m = self.f, self.m
        l0 = f.var(0)
        with f.while_() as leave:
            l = l0.get()
            leave(l >= valid)
            run = self._adjacent(lanes, l, valid)
            base, row = self.src + f.word(lanes, l), dst + l * m.item
            with f.range(0, self.k) as k:
                m.copy_run(base + f.word(self.tk, k), row + k * (self.width * m.item), run)
            l0.set(l + run)

    def _adjacent(self, table: Val, start: Val, end: Val) -> Val:
        """Entries of a table from ``start`` on that are one element of the source apart."""
        f = self.f
        first, run = f.word(table, start), f.var(1)
        with f.while_() as leave:
            leave(start + run.get() >= end)
            leave((f.word(table, start + run.get()) - first).ne(run.get() * self.m.source_item))
            run.add(1)
        return run.get()

    def _elements(self, lanes: Val, dst: Val, valid: Val, k0: Val, k1: Val) -> None:
        f, m = self.f, self.m
        with f.range(k0, k1) as k:
            row, at = dst + k * (self.width * m.item), self.src + f.word(self.tk, k)
            whole = valid - (valid & (UNROLL - 1))
            with f.range(0, whole, UNROLL) as l:
                m.collect([at + f.word(lanes, l + i) for i in range(UNROLL)], row + l * m.item)
            with f.range(whole, valid) as l:
                m.collect([at + f.word(lanes, l)], row + l * m.item)

    def _k_run(self, lanes: Val, dst: Val, valid: Val, more: Val) -> None:
        """A block of lanes over all of K, then the next: as few rows of the source as can be are read at a time, so that
        hardware follows them, and that rows at distances of whole pages find room in their cache sets."""
        f, m = self.f, self.m
        with f.range(0, valid, m.block) as l0:
            count, room = f.min(valid - l0, m.block), self.width - l0
            self._k_blocks(lanes + l0 * 8, dst + l0 * m.item, count, room, more, self._rows_past(valid))

    def _rows_past(self, valid: Val) -> Val:
        """The bit that sends rows of blocks past the caches: these are whole lines, and no lanes are cleared afterwards."""
        whole = self.past & (self.width * self.m.item & (LINE - 1)).eq(0) & valid.eq(self.width)
        return self.f.select(whole, self.f.i64(1 << PAST_BIT), self.f.i64(0))

    def _terms_apart(self) -> Val:
        """By how many terms those are apart in K that are adjacent in the source, as in squares; 1 where not all of them are
        equally far apart."""
        f, apart = self.f, self.f.var(1)
        with f.if_(self.mode.eq(abi.K_RUN) & (self.k > 1)):
            found = f.var(1)
            with f.while_() as leave:
                leave((found.get() >= self.k) | self._follows(f.min(found.get(), self.k - 1), found.get()))
                found.add(1)
            with f.if_((found.get() > 1) & (found.get() < self.k)):
                k = Var(f, found.get())
                with f.while_() as leave:
                    leave(k.get() >= self.k)
                    leave(self._follows(k.get(), found.get()).eq(0))
                    k.add(1)
                apart.set(f.select(k.get().eq(self.k), found.get(), f.i64(1)))
        return apart.get()

    def _follows(self, k: Val, apart: Val) -> Val:
        """Whether a term is adjacent in the source to that so many before it."""
        return (self.f.word(self.tk, k) - self.f.word(self.tk, k - apart)).eq(self.m.source_item)

    def k_apart(self, lanes: Val, dst: Val, valid: Val, apart: Val) -> None:
        """Blocks of terms that are apart: rows of a block go so far from each other. What lies behind each on its lane is of
        the next block of K, and asked for: the end of it, since it begins in a line that is read here."""
        f, m, pitch = self.f, self.m, self.width * self.m.item
        with f.range(0, valid, m.block) as l0, f.range(0, apart) as first:
            table, count, room = lanes + l0 * 8, f.min(valid - l0, m.block), self.width - l0
            along, done = f.ceil_div(self.k - first, apart), f.var(0)
            ahead = (along * 2 - 1) * m.source_item
            for size in m.runs:
                steps = (along - done.get()) // size
                with f.if_(steps.ne(0)):
                    k = first + done.get() * apart
                    at, row = self.src + f.word(self.tk, k), dst + l0 * m.item + k * pitch
                    f.call(self.blocks[size], [at, table, count | (room << 32), row, pitch * apart, ahead, steps])
                    done.add(steps * size)
            with f.range(first + done.get() * apart, self.k, apart) as k:
                self._elements(table, dst + l0 * m.item, count, k, k + 1)

    def _k_blocks(self, lanes: Val, dst: Val, count: Val, room: Val, more: Val, past: Val) -> None:
        """Blocks of K, the longest that the table of K allows there. ``more``: a panel follows. ``past``: as `_rows_past`."""
        f, pitch = self.f, self.width * self.m.item
        k0 = f.var(0)
        with f.while_() as leave:
            k = k0.get()
            leave(k >= self.k)
            row, moved = dst + k * pitch, f.var(0)
            for size in self.m.runs:
                with f.if_((k + size <= self.k) & moved.get().eq(0)):
                    steps = self._steps(k, size)
                    with f.if_(steps.ne(0)):
                        at = self.src + f.word(self.tk, k)
                        if size == self.m.block:
                            self._weave(at, lanes, count, row, steps, more, moved)
                        with f.if_(moved.get().eq(0)):
                            args = [at, lanes, count | (room << 32) | past, row, pitch, f.i64(LANE_AHEAD), steps]
                            f.call(self.blocks[size], args)
                        moved.set(steps * size)
            with f.if_(moved.get().eq(0)):
                self._elements(lanes, dst, count, k, k + 1)
                moved.set(1)
            k0.set(k + moved.get())

    def _weave(self, at: Val, lanes: Val, count: Val, row: Val, steps: Val, more: Val, moved: Var) -> None:
        """Blocks of all lanes of a narrow panel, where these are as many as one of the functions weaves.

        Meanwhile the lanes of the panel behind are asked for: few rows are soon at their end, and each begins with waiting."""
        f = self.f
        for width, function in self.woven.items():
            with f.if_(self.width.eq(width) & count.eq(width)):
                near = more & (self.k <= NEXT_BYTES // (width * self.m.source_item))
                following = f.word(lanes, f.select(near, f.i64(width), f.i64(0))) - f.word(lanes)
                ahead = f.select(near, following, f.i64(LANE_AHEAD))
                past = f.convert(self.past & (row & (LINE - 1)).eq(0), "zext", I64)
                f.call(function, [at, lanes, row, steps, ahead, past])
                moved.set(steps)

    def _steps(self, k: Val, size: int) -> Val:
        """How many blocks of so many terms there are from ``k`` on whose elements are adjacent."""
        f, steps, first = self.f, self.f.var(0), self.f.word(self.tk, k)
        with f.while_() as leave:
            start = steps.get() * size
            leave(k + start + size > self.k)
            leave((f.word(self.tk, k + start) - first).ne(start * self.m.source_item))
            leave(self._runs(self.tk + (k + start) * 8, size) < 1)
            steps.add(1)
        return steps.get()

    def _runs(self, table: Val, count: int) -> Val:
        """1 when ``count`` consecutive table entries are one element of the source apart, else 0."""
        f = self.f
        entries = f.load(ir.VectorType(I64, count), table)
        expected = f.splat(f.word(table), count) + f.vector(I64, [i * self.m.source_item for i in range(count)])
        same = f.b.icmp_signed("==", entries.v, expected.v)
        bits = f.b.bitcast(same, ir.IntType(count))
        return f.select(Val(f, f.b.icmp_unsigned("==", bits, ir.Constant(ir.IntType(count), -1))), f.i64(1), f.i64(0))

    # -- panels that continue each other's lanes -------------------------------------------------------------
    def _row_group(self, p: Val) -> Val:
        """Moves panels p, p+1, ... that make up one row of the source, row after row: lines and pages are used while
        they are near. How many were moved (0: the lanes of p do not run)."""
        f, m = self.f, self.m
        group = self._panels_in_row(p)
        with f.if_(group.ne(0)):
            last = p + group - 1
            valid, first = self._valid(last), self.src + f.word(self.lanes, p * self.width)
            whole = group - f.convert(valid.ne(self.width), "zext", I64)
            pitch = self.width * m.source_item
            rows_ahead = f.i64(ROWS_AHEAD) // (group * pitch) + 1
            with f.range(0, self.k) as k:
                at, dst = first + f.word(self.tk, k), self.dst + p * self.stride + k * (self.width * m.item)
                ahead = first + f.word(self.tk, f.min(k + rows_ahead, self.k - 1))
                copied = f.var(0)
                for width, function in self.rows.items():
                    with f.if_(self.width.eq(width)):
                        f.call(function, [at, dst, self.stride, whole, ahead])
                        copied.set(whole)
                with f.range(copied.get(), group) as q:
                    m.copy_run(at + q * pitch, dst + q * self.stride, self._valid(p + q), ahead + q * pitch)
            self._pad(last, f.i64(1), valid)
        return group

    def _panels_in_row(self, p: Val) -> Val:
        f = self.f
        first, group = f.word(self.lanes, p * self.width), f.var(0)
        with f.while_() as leave:
            q = p + group.get()
            leave(q >= self.panels)
            start, valid = q * self.width, self._valid(q)
            leave((f.word(self.lanes, start) - first).ne(group.get() * self.width * self.m.source_item))
            leave(self._adjacent(self.lanes, start, start + valid).ne(valid))
            group.add(1)
            leave(valid.ne(self.width))
        return group.get()

    # -- panels that are adjacent in the source --------------------------------------------------------------
    def _panel_group(self, p: Val) -> Val:
        """Moves panels p, p+1, ... whose sources are adjacent; how many were moved (0: fewer than a block has)."""
        f = self.f
        run, valid = self._adjacent_panels(p), self._valid(p)
        moved = f.var(0)
        for size in self.m.runs:
            with f.if_((run >= size) & moved.get().eq(0)):
                self._panel_blocks(size, p, run, valid)
                self._pad(p, run, valid)
                moved.set(run)
        return moved.get()

    def _adjacent_panels(self, p: Val) -> Val:
        """Panels from p on that lie one element apart and have as many valid lanes."""
        f = self.f
        first, valid, run = f.word(self.lanes, p * self.width), self._valid(p), f.var(1)
        with f.while_() as leave:
            q = p + run.get()
            leave(q >= self.panels)
            leave((f.word(self.lanes, q * self.width) - first).ne(run.get() * self.m.source_item))
            leave(self._valid(q).ne(valid))
            run.add(1)
        return run.get()

    def _panel_blocks(self, size: int, p: Val, run: Val, valid: Val) -> None:
        with self.f.if_else((self.width < self.m.block) & valid.eq(self.width)) as (then, otherwise):
            with then:
                self._narrow_blocks(size, p, run)
            with otherwise:
                self._wide_blocks(size, p, run, valid)

    def _narrow_blocks(self, size: int, p: Val, run: Val) -> None:
        """Panels with fewer lanes than a vector: blocks of what lies side by side in a panel, some lanes of the next
        terms among them."""
        f, m = self.f, self.m
        lanes, dst, total = self.lanes + p * self.width * 8, self.dst + p * self.stride, self.k * self.width
        past = f.select(self.past, f.i64(1 << PAST_BIT), f.i64(0))
        terms = f.ceil_div(f.i64(m.block), self.width) * (f.i64(BLOCKS_AHEAD) // (run * (m.block * m.source_item)) + 1)
        k, lane = f.var(0), f.var(0)
        with f.range(0, total, m.block) as start:
            count, first = f.min(total - start, m.block), f.word(self.tk, k.get())
            ahead = f.word(self.tk, f.min(k.get() + terms, self.k - 1)) - first
            with f.range(0, count) as i:
                f.store(f.word(self.tk, k.get()) + f.word(lanes, lane.get()), self.near + i * 8)
                lane.add(1)
                with f.if_(lane.get().eq(self.width)):
                    lane.set(0)
                    k.add(1)
            self._across(size, run, self.src, self.near, count | (count << 32) | past, dst + start * m.item, ahead)

    def _across(self, size: int, run: Val, at: Val, lanes: Val, both: Val, dst: Val, ahead: Val) -> None:
        """Blocks along a run of panels, whole lines while they are near; the last one ends with the run."""
        f, item, steps = self.f, self.m.source_item, run // size
        f.call(self.blocks[size], [at, lanes, both, dst, self.stride, ahead, steps])
        with f.if_((steps * size).ne(run)):
            i = run - size
            f.call(self.blocks[size], [at + i * item, lanes, both, dst + self.stride * i, self.stride, ahead, f.i64(1)])

    def _wide_blocks(self, size: int, p: Val, run: Val, valid: Val) -> None:
        f, m = self.f, self.m
        lanes, dst = self.lanes + p * self.width * 8, self.dst + p * self.stride
        past = self._rows_past(valid)
        # Where rows follow each other closely, what lies ahead on a lane is the next rows.
        far = f.word(self.tk, f.min(f.i64(1), self.k - 1)) - f.word(self.tk) > LANE_AHEAD
        rows_ahead = f.i64(BLOCKS_AHEAD) // (run * (m.block * m.source_item)) + 1
        with f.range(0, valid, m.block) as l0, f.range(0, self.k) as k:
            count, room = f.min(valid - l0, m.block), self.width - l0
            at, row = self.src + f.word(self.tk, k), dst + k * (self.width * m.item) + l0 * m.item
            ahead = self.src + f.word(self.tk, f.min(k + rows_ahead, self.k - 1)) - at
            ahead = f.select(far, ahead, f.i64(LANE_AHEAD))
            self._across(size, run, at, lanes + l0 * 8, count | (room << 32) | past, row, ahead)

    def _pad(self, p: Val, run: Val, valid: Val) -> None:
        f, m = self.f, self.m
        with f.if_(valid < self.width):
            with f.range(0, run) as i:
                dst = self.dst + (p + i) * self.stride + valid * m.item
                m.zero_rows(dst, self.width - valid, self.k, self.width * m.item)
