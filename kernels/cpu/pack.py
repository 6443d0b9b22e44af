"""Packing: from any layout into panels, through offset tables, without a transpose pass.

A panel holds ``width`` lanes for every k: element (k, lane) lies at ``(k * width + lane) * item``. It is the source
element as it is, or widened to another dtype between load and store (`Widener`). The source element lies at
``src + lanes[panel * width + lane] + tk[k]``. How the source runs decides the path, and each path touches a source
cache line once:

    LANES_RUN   lanes are adjacent: copy runs
    K_RUN       k is adjacent: blocks of (lane, k) transposed in registers
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
from .convert import Converter
from .emit import I8, I16, I32, I64, Fn, Val, Var, vector_type
from .storage import STORAGES

# Bytes between what is read and what is asked for: of whole rows, and along each lane of a block. Hardware prefetchers
# lose short rows and many streams; measured in docs/performance.md.
ROWS_AHEAD = 4096
LANE_AHEAD = 512
BLOCKS_AHEAD = 4096  # of rows of blocks, all lanes together
PART = 16  # bytes: what shuffles are cheapest within
UNROLL = 4  # scattered elements moved at once


class Mover:
    """Moves elements of ``item`` bytes without interpreting them: vectors of machine lanes, T elements at a time."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        self.f, self.item = f, item
        self.source_item = item  # bytes of an element where it is loaded
        self.masked = isa.masks and item >= 4
        self.unit = {1: I8, 2: I16, 4: I32, 8: I64, 16: I64}[item]
        self.group = 2 if item == 16 else 1  # machine lanes per element
        self.block = max(2, min(isa.vector_bits // (8 * item), 16))  # T

    def vector(self, elems: int) -> ir.Type:
        return vector_type(self.unit, elems * self.group)

    def load(self, addr: Val, elems: int = 1) -> Val:
        return self.f.load(self.vector(elems), addr)

    def store(self, value: Val, addr: Val) -> None:
        self.f.store(value, addr)

    def copy(self, src: Val, dst: Val, elems: int = 1) -> None:
        self.store(self.load(src, elems), dst)

    def collect(self, sources: list[Val], dst: Val) -> None:
        """Elements from anywhere to adjacent places."""
        for i, source in enumerate(sources):
            self.copy(source, dst + i * self.item)

    def copy_run(self, src: Val, dst: Val, count: Val, ahead: Val | None = None) -> None:
        """``count`` adjacent elements: whole vectors, then halves of a vector down to one element. As many bytes from
        ``ahead`` on are asked for early."""
        f, whole = self.f, count // self.block
        with f.range(0, whole) as i:
            shift = i * (self.block * self.source_item)
            if ahead is not None:
                f.prefetch(ahead + shift, locality=2)
            self.copy(src + shift, dst + i * (self.block * self.item), self.block)
        with f.if_((count & (self.block - 1)).ne(0)):
            done = Var(f, whole * self.block)
            elems = self.block // 2
            while elems:
                with f.if_((count & elems).ne(0)):
                    self.copy(src + done.get() * self.source_item, dst + done.get() * self.item, elems)
                    done.add(elems)
                elems //= 2

    def zero_rows(self, dst: Val, count: Val, rows: Val, pitch: Val) -> None:
        """``count`` elements from ``dst`` on, and as many in each of the rows after it, ``pitch`` bytes apart."""
        f = self.f
        if not self.masked:
            zero = f.zero(self.vector(1))
            with f.range(0, rows) as row, f.range(0, count) as i:
                self.store(zero, dst + row * pitch + i * self.item)
            return
        zero = f.zero(self.vector(self.block))
        with f.range(0, count, self.block) as start:
            mask = f.lane_mask(f.min(count - start, self.block) * self.group, self.block * self.group)
            with f.range(0, rows) as row:
                f.store_masked(zero, dst + row * pitch + start * self.item, mask)

    @property
    def runs(self) -> tuple[int, ...]:
        """Lengths R of the blocks that are transposed, longest first."""
        return tuple(r for r in (self.block, self.block // 2, self.block // 4) if r >= 2)

    def join(self, parts: list[Val]) -> Val:
        """Vectors of equal length one after another, a power of two of them."""
        while len(parts) > 1:
            size = parts[0].v.type.count
            parts = [self.f.shuffle(a, b, list(range(2 * size))) for a, b in zip(parts[::2], parts[1::2])]
        return parts[0]

    def transpose(self, rows: list[Val]) -> list[Val]:
        """R vectors of R elements or more: each R x R square, in log2(R) stages of two-source shuffles."""
        if len(rows) == rows[0].v.type.count // self.group:
            return self._square(rows)
        distance = 1
        while distance < len(rows):
            rows = self._stage(rows, distance)
            distance *= 2
        return rows

    def _stage(self, rows: list[Val], distance: int) -> list[Val]:
        size, out = rows[0].v.type.count // self.group, list(rows)
        low = [l if not l & distance else size + l - distance for l in range(size)]
        high = [l + distance if not l & distance else size + l for l in range(size)]
        for i in range(len(rows)):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                out[i] = self.f.shuffle(a, b, self._machine_lanes(low))
                out[i + distance] = self.f.shuffle(a, b, self._machine_lanes(high))
        return out

    def _square(self, rows: list[Val]) -> list[Val]:
        """R vectors of R elements: shuffles within parts of 128 bits, then of whole parts, for which hardware has
        faster instructions than for others."""
        size = len(rows)
        inside = min(size, PART // self.item)
        groups = [self._interleave(rows[i : i + inside], inside, 1) for i in range(0, size, inside)]
        columns = [self._deal([group[k] for group in groups], inside) for k in range(inside)]
        return [columns[k][part] for part in range(size // inside) for k in range(inside)]

    def _interleave(self, rows: list[Val], part: int, unit: int) -> list[Val]:
        """Transposes ``part`` rows within each part; units of so many elements are together already."""
        if unit == part:
            return rows
        found: list[Val] = []
        for half in (0, part // 2):
            lanes = self._lanes(rows, lambda i: half + i // (2 * unit) * unit + i % unit, lambda i: i // unit % 2, part)
            found += self._interleave([self._pair(a, b, lanes) for a, b in zip(rows[::2], rows[1::2])], part, 2 * unit)
        return found

    def _lanes(self, rows: list[Val], place, which, part: int) -> list[int]:
        size = rows[0].v.type.count // self.group
        return [which(i % part) * size + i // part * part + place(i % part) for i in range(size)]

    def _deal(self, rows: list[Val], part: int) -> list[Val]:
        """Transposes as many rows as have parts, part by part."""
        if len(rows) == 1:
            return rows
        size = rows[0].v.type.count // self.group
        found = []
        for first in (0, part):
            lanes = [first + i // part * 2 * part + i % part for i in range(size)]
            found.append(self._deal([self._pair(a, b, lanes) for a, b in zip(rows[::2], rows[1::2])], part))
        return [row for pair in zip(*found) for row in pair]

    def _pair(self, a: Val, b: Val, lanes: list[int]) -> Val:
        return self.f.shuffle(a, b, self._machine_lanes(lanes))

    def _machine_lanes(self, lanes: list[int]) -> list[int]:
        return [l * self.group + g for l in lanes for g in range(self.group)]


class Widener(Mover):
    """A `Mover` whose loads convert elements of dtype ``source`` to ``target``."""

    def __init__(self, f: Fn, source: str, target: str, isa: ISA):
        super().__init__(f, STORAGES[target].itemsize, isa)
        self.source_item = STORAGES[source].itemsize
        self.source, self.target, self.isa = source, target, isa

    def load(self, addr: Val, elems: int = 1) -> Val:
        converter = Converter(self.f, self.isa, elems)
        return self._widened(converter, converter.load(self.source, addr))

    def _widened(self, converter: Converter, value: Val) -> Val:
        return self.f.bitcast(converter.cast(value, self.source, self.target), self.vector(converter.w))

    def collect(self, sources: list[Val], dst: Val) -> None:
        """Converted together: one by one, halves would wait for each other, as loads into a part of a register do."""
        f, unit = self.f, ir.IntType(8 * self.source_item)
        if len(sources) == 1:
            self.copy(sources[0], dst)
            return
        together = f.zero(ir.VectorType(unit, len(sources)))
        for lane, source in enumerate(sources):
            together = f.insert(together, f.load(unit, source), lane)
        converter = Converter(f, self.isa, len(sources))
        self.store(self._widened(converter, f.bitcast(together, converter.type(self.source))), dst)


def _mover(f: Fn | None, name: str, isa: ISA) -> Mover:
    """What ``pack_8`` (elements of so many bytes) or ``pack_float16_float32`` (from, to) moves elements with."""
    what = name.split("_")[1:]
    return Mover(f, int(what[0]), isa) if len(what) == 1 else Widener(f, *what, isa)


def build_pack(module: ir.Module, name: str, isa: ISA) -> None:
    """``void pack(args)``; see `abi` for the argument words."""
    blocks = {run: _emit_block(module, run, name, isa) for run in _mover(None, name, isa).runs}
    f = Fn(module, name, [I64])
    Packer(f, _mover(f, name, isa), blocks).emit()
    f.ret()


def _emit_block(module: ir.Module, run: int, name: str, isa: ISA) -> Fn:
    """``void block(at, lanes, count | room << 32, dst, distance, ahead)``: lane l < count, element i < run: from
    ``at + lanes[l] + i * source_item`` to ``dst + i * distance + l * item``. ``count`` is 1 to T; of ``room`` lanes
    from ``dst`` on, those past ``count`` may get any value. What lies ``ahead`` bytes further is asked for early.
    """
    f = Fn(module, f"block_{run}", [I64] * 6, internal=True)
    f.fn.attributes.add("noinline")
    m = _mover(f, name, isa)
    at, lanes, both, dst, distance, ahead = f.args
    count, room = both & 0xFFFFFFFF, both >> 32
    sources = [at + f.word(lanes, f.min(f.i64(l), count - 1)) for l in range(m.block)]
    if run == m.block:
        for source in sources:
            f.prefetch(source + ahead, locality=2)
    loads = [m.load(source, run) for source in sources]
    rows = m.transpose([m.join(loads[i::run]) for i in range(run)])
    with f.if_else(room >= m.block) as (then, otherwise):
        with then:
            for i, row in enumerate(rows):
                m.store(row, dst + distance * i)
        with otherwise:
            _store_part(Mover(f, m.item, isa), rows, count, dst, distance)
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


def build_pack_task(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function of a packing step of its own: operand A goes to panels in the output buffer.

    One task packs a range of panels of one flat outer index (`abi.G_OUTER`, tables A and C), by the pack function at
    `abi.G_PACK`.
    """
    f = Fn(module, name, [I64] * 4)
    ctx, step, task, _ = f.args
    bases = f.word(ctx, abi.CTX_BASES)
    src = Var(f, f.word(bases, f.word(step, abi.A_SLOT)) + f.word(step, abi.A_OFFSET))
    dst = Var(f, f.word(bases, f.word(step, abi.OUT_SLOT)) + f.word(step, abi.OUT_OFFSET))
    shares, block = f.word(step, abi.G_PANEL_TASKS), f.word(step, abi.G_PANEL_BLOCK)
    p0, rest = (task % shares) * block, Var(f, task // shares)
    for level in reversed(range(4)):
        at = abi.G_OUTER + 4 * level
        count = f.word(step, at)
        with f.if_(count > 1):
            i = rest.get() % count
            rest.set(rest.get() // count)
            src.add(f.word(f.word(step, at + 1), i))
            dst.add(f.word(f.word(step, at + 3), i))
    width, stride = f.word(step, abi.G_N), f.word(step, abi.G_A_STRIDE)
    args = {
        abi.P_DST: dst.get() + p0 * stride,
        abi.P_SRC: src.get(),
        abi.P_PANELS: f.min(block, f.word(step, abi.G_PANELS) - p0),
        abi.P_WIDTH: width,
        abi.P_LANES: f.word(step, abi.G_TM_A) + p0 * width * 8,
        abi.P_VALID: f.word(step, abi.G_VALID) + p0 * 8,
        abi.P_K: f.word(step, abi.G_K),
        abi.P_TK: f.word(step, abi.G_TK_A),
        abi.P_MODE: f.word(step, abi.G_PACK_MODE),
        abi.P_STRIDE: stride,
    }
    stack = f.stack(8 * abi.P_WORDS)
    for index, value in args.items():
        f.store(value, stack + 8 * index)
    f.call(f.word(step, abi.G_PACK), [stack])
    f.ret()


class Packer:
    """Emits one pack function; attributes are its arguments."""

    def __init__(self, f: Fn, mover: Mover, blocks: dict[int, Fn]):
        self.f, self.m, self.blocks = f, mover, blocks
        args = f.args[0]
        names = ("dst", "src", "panels", "width", "lanes", "valid", "k", "tk", "mode", "stride")
        for index, name in enumerate(names):
            setattr(self, name, f.word(args, index))

    def emit(self) -> None:
        f = self.f
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
                        self._k_run(lanes, dst, valid)
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

    def _k_run(self, lanes: Val, dst: Val, valid: Val) -> None:
        """A block of lanes over all of K, then the next: as few rows of the source as can be are read at a time, so that
        hardware follows them, and that rows at distances of whole pages find room in their cache sets."""
        f, m = self.f, self.m
        with f.range(0, valid, m.block) as l0:
            count, room = f.min(valid - l0, m.block), self.width - l0
            self._k_blocks(lanes + l0 * 8, dst + l0 * m.item, count, room)

    def _k_blocks(self, lanes: Val, dst: Val, count: Val, room: Val) -> None:
        """Block after block of K, the longest that the table of K allows there."""
        f, pitch = self.f, self.width * self.m.item
        k0 = f.var(0)
        with f.while_() as leave:
            k = k0.get()
            leave(k >= self.k)
            at, row, moved = self.src + f.word(self.tk, k), dst + k * pitch, f.var(1)
            for size in self.m.runs:
                with f.if_((k + size <= self.k) & moved.get().eq(1)):
                    with f.if_(self._runs(self.tk + k * 8, size)):
                        self._block(size, at, lanes, count, room, row, pitch, f.i64(LANE_AHEAD))
                        moved.set(size)
            with f.if_(moved.get().eq(1)):
                self._elements(lanes, dst, count, k, k + 1)
            k0.set(k + moved.get())

    def _runs(self, table: Val, count: int) -> Val:
        """True when ``count`` consecutive table entries are one element of the source apart."""
        f = self.f
        entries = f.load(ir.VectorType(I64, count), table)
        expected = f.splat(f.word(table), count) + f.vector(I64, [i * self.m.source_item for i in range(count)])
        same = f.b.icmp_signed("==", entries.v, expected.v)
        bits = f.b.bitcast(same, ir.IntType(count))
        return Val(f, f.b.icmp_unsigned("==", bits, ir.Constant(ir.IntType(count), -1)))

    def _block(
        self, size: int, at: Val, lanes: Val, count: Val, room: Val, dst: Val, distance: Val, ahead: Val
    ) -> None:
        """One block: ``count`` lanes, of ``room`` that the panel has from there on."""
        self.f.call(self.blocks[size], [at, lanes, count | (room << 32), dst, distance, ahead])

    # -- panels that continue each other's lanes -------------------------------------------------------------
    def _row_group(self, p: Val) -> Val:
        """Moves panels p, p+1, ... that make up one row of the source, row after row: lines and pages are used while
        they are near. How many were moved (0: the lanes of p do not run)."""
        f, m = self.f, self.m
        group = self._panels_in_row(p)
        with f.if_(group.ne(0)):
            first, pitch = self.src + f.word(self.lanes, p * self.width), self.width * m.source_item
            rows_ahead = f.i64(ROWS_AHEAD) // (group * pitch) + 1
            with f.range(0, self.k) as k:
                at, dst = first + f.word(self.tk, k), self.dst + p * self.stride + k * (self.width * m.item)
                ahead = first + f.word(self.tk, f.min(k + rows_ahead, self.k - 1))
                with f.range(0, group) as q:
                    m.copy_run(at + q * pitch, dst + q * self.stride, self._valid(p + q), ahead + q * pitch)
            last = p + group - 1
            self._pad(last, f.i64(1), self._valid(last))
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
        f, m = self.f, self.m
        lanes, dst = self.lanes + p * self.width * 8, self.dst + p * self.stride
        # Where rows follow each other closely, what lies ahead on a lane is the next rows.
        far = f.word(self.tk, f.min(f.i64(1), self.k - 1)) - f.word(self.tk) > LANE_AHEAD
        rows_ahead = f.i64(BLOCKS_AHEAD) // (run * (m.block * m.source_item)) + 1
        with f.range(0, valid, m.block) as l0, f.range(0, self.k) as k:
            count, room = f.min(valid - l0, m.block), self.width - l0
            at, row = self.src + f.word(self.tk, k), dst + k * (self.width * m.item) + l0 * m.item
            ahead = self.src + f.word(self.tk, f.min(k + rows_ahead, self.k - 1)) - at
            ahead = f.select(far, ahead, f.i64(LANE_AHEAD))
            with f.range(0, run, size) as start:  # whole lines while they are near; the last block ends with the run
                i = f.min(start, run - size)
                self._block(size, at + i * m.source_item, lanes + l0 * 8, count, room, row + self.stride * i, self.stride, ahead)

    def _pad(self, p: Val, run: Val, valid: Val) -> None:
        f, m = self.f, self.m
        with f.if_(valid < self.width):
            with f.range(0, run) as i:
                dst = self.dst + (p + i) * self.stride + valid * m.item
                m.zero_rows(dst, self.width - valid, self.k, self.width * m.item)
