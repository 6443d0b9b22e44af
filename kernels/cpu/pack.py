"""Packing: from any layout into panels, through offset tables, without a transpose pass.

A panel holds ``width`` lanes for every k: element (k, lane) lies at ``(k * width + lane) * item``. The source
element lies at ``src + lanes[panel * width + lane] + tk[k]``. How the source runs decides the path, and each path
touches a source cache line once:

    LANES_RUN   lanes are adjacent: copy runs
    K_RUN       k is adjacent: T x T blocks of (lane, k) transposed in registers
    PANEL_RUN   the next panel is adjacent: T x T blocks of (lane, panel) transposed in registers
    SCATTERED   element by element

The mode is a promise only about where speed lies; every run is verified against the tables before it is used, and
what does not run is moved element by element. PANEL_RUN promises besides that lane offsets within a panel, relative
to its first, are the same for all panels. Lanes past ``valid`` are filled with zeros or copies, never read from
outside the operand; their values never reach an output.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi
from .emit import I8, I16, I32, I64, Fn, Val, Var, vector_type


class Mover:
    """Moves elements of ``item`` bytes without interpreting them: vectors of machine lanes, T elements at a time."""

    def __init__(self, f: Fn, item: int, isa: ISA):
        self.f, self.item = f, item
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

    def copy_run(self, src: Val, dst: Val, count: Val) -> None:
        """``count`` adjacent elements: whole vectors, then halves of a vector down to one element."""
        f, whole = self.f, count // self.block
        with f.range(0, whole) as i:
            shift = i * (self.block * self.item)
            self.copy(src + shift, dst + shift, self.block)
        done = Var(f, whole * (self.block * self.item))
        elems = self.block // 2
        while elems:
            with f.if_((count & elems).ne(0)):
                self.copy(src + done.get(), dst + done.get(), elems)
                done.add(elems * self.item)
            elems //= 2

    def zero_run(self, dst: Val, count: Val) -> None:
        zero = self.f.zero(self.vector(1))
        with self.f.range(0, count) as i:
            self.store(zero, dst + i * self.item)

    def transpose(self, rows: list[Val]) -> list[Val]:
        """T vectors of T elements, transposed in log2(T) butterfly stages of two-source shuffles."""
        size, distance = len(rows), 1
        while distance < size:
            rows = self._stage(rows, distance)
            distance *= 2
        return rows

    def _stage(self, rows: list[Val], distance: int) -> list[Val]:
        size, out = len(rows), list(rows)
        low = [l if not l & distance else size + l - distance for l in range(size)]
        high = [l + distance if not l & distance else size + l for l in range(size)]
        for i in range(size):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                out[i] = self.f.shuffle(a, b, self._machine_lanes(low))
                out[i + distance] = self.f.shuffle(a, b, self._machine_lanes(high))
        return out

    def _machine_lanes(self, lanes: list[int]) -> list[int]:
        return [l * self.group + g for l in lanes for g in range(self.group)]

    def runs(self, table: Val, count: int) -> Val:
        """True when ``count`` consecutive table entries are one element apart."""
        f = self.f
        entries = f.load(ir.VectorType(I64, count), table)
        expected = f.splat(f.word(table), count) + f.vector(I64, [i * self.item for i in range(count)])
        same = f.b.icmp_signed("==", entries.v, expected.v)
        bits = f.b.bitcast(same, ir.IntType(count))
        return Val(f, f.b.icmp_unsigned("==", bits, ir.Constant(ir.IntType(count), -1)))


def build_pack(module: ir.Module, item: int, isa: ISA) -> tuple[str, ...]:
    """``void pack(args)`` for elements of ``item`` bytes; see `abi` for the argument words."""
    name = f"pack_{item}"
    f = Fn(module, name, [I64])
    Packer(f, Mover(f, item, isa)).emit()
    f.ret()
    return (name,)


def build_pack_task(module: ir.Module, name: str, isa: ISA) -> None:
    """Task function of a packing step of its own: operand A goes to panels in the output buffer.

    One task packs a range of panels of one flat outer index (`abi.G_OUTER`, tables A and C).
    """
    item = int(name.rsplit("_", 1)[1])
    inner = Fn(module, "pack", [I64], internal=True)
    Packer(inner, Mover(inner, item, isa)).emit()
    inner.ret()
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
    f.call(inner, [stack])
    f.ret()


class Packer:
    def __init__(self, f: Fn, mover: Mover):
        self.f, self.m = f, mover
        args = f.args[0]
        names = ("dst", "src", "panels", "width", "lanes", "valid", "k", "tk", "mode", "stride")
        for index, name in enumerate(names):
            setattr(self, name, f.word(args, index))

    def emit(self) -> None:
        f = self.f
        self.spill_area = f.stack(self.m.block * self.m.block * self.m.item)
        panel = f.var(0)
        with f.while_() as leave:
            leave(panel.get() >= self.panels)
            p = panel.get()
            moved = Var(f, f.i64(0))
            with f.if_(self.mode.eq(abi.PANEL_RUN)):
                moved.set(self._panel_group(p))
            with f.if_(moved.get().eq(0)):
                self._one_panel(p)
                moved.set(1)
            panel.add(moved.get())

    # -- one panel -------------------------------------------------------------------------------------------
    def _one_panel(self, p: Val) -> None:
        f = self.f
        lanes, dst = self.lanes + p * self.width * 8, self.dst + p * self.stride
        valid = f.word(self.valid, p)
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
            with f.range(0, self.k) as k:
                row = dst + (k * self.width + valid) * self.m.item
                self.m.zero_run(row, self.width - valid)

    def _lanes_run(self, lanes: Val, dst: Val, valid: Val) -> None:
        f, m = self.f, self.m
        adjacent = self._lanes_adjacent(lanes, valid)
        with f.if_else(adjacent) as (then, otherwise):
            with then:
                base = self.src + f.word(lanes)
                with f.range(0, self.k) as k:
                    m.copy_run(base + f.word(self.tk, k), dst + k * (self.width * m.item), valid)
            with otherwise:
                self._elements(lanes, dst, valid, f.i64(0), self.k)

    def _lanes_adjacent(self, lanes: Val, valid: Val) -> Val:
        f = self.f
        ok, first = f.var(1), f.word(lanes)
        with f.range(1, valid) as l:
            with f.if_((f.word(lanes, l) - first).ne(l * self.m.item)):
                ok.set(0)
        return ok.get().ne(0)

    def _elements(self, lanes: Val, dst: Val, valid: Val, k0: Val, k1: Val) -> None:
        f, m = self.f, self.m
        with f.range(k0, k1) as k:
            row, at = dst + k * (self.width * m.item), self.src + f.word(self.tk, k)
            with f.range(0, valid) as l:
                m.copy(at + f.word(lanes, l), row + l * m.item)

    def _k_run(self, lanes: Val, dst: Val, valid: Val) -> None:
        """Blocks of T k's; the last block is moved back to end at K, so nothing is left over when K >= T."""
        f, size = self.f, self.m.block
        with f.if_else(self.k >= size) as (then, otherwise):
            with then:
                with f.range(0, self.k, size) as start:
                    k0 = f.min(start, self.k - size)
                    with f.if_else(self.m.runs(self.tk + k0 * 8, size)) as (run, broken):
                        with run:
                            self._k_block(lanes, dst, valid, k0)
                        with broken:
                            self._elements(lanes, dst, valid, k0, k0 + size)
            with otherwise:
                self._elements(lanes, dst, valid, f.i64(0), self.k)

    def _k_block(self, lanes: Val, dst: Val, valid: Val, k0: Val) -> None:
        f, m, size = self.f, self.m, self.m.block
        at, row0 = self.src + f.word(self.tk, k0), dst + k0 * (self.width * m.item)
        with f.range(0, valid, size) as l0:
            last = valid - 1
            rows = [m.load(at + f.word(lanes, f.min(l0 + l, last)), size) for l in range(size)]
            count = f.min(valid - l0, size)
            self._store_rows(m.transpose(rows), lambda i: row0 + (self.width * i + l0) * m.item, count)

    def _store_rows(self, rows: list[Val], address, count: Val) -> None:
        """``count`` leading elements of each row; through the stack when a row is not whole."""
        f, m, size = self.f, self.m, self.m.block
        with f.if_else(count.eq(size)) as (then, otherwise):
            with then:
                for i, row in enumerate(rows):
                    m.store(row, address(f.i64(i)))
            with otherwise:
                for i, row in enumerate(rows):
                    m.store(row, self.spill_area + i * size * m.item)
                with f.range(0, size) as i:
                    m.copy_run(self.spill_area + i * (size * m.item), address(i), count)

    # -- T panels at once ------------------------------------------------------------------------------------
    def _panel_group(self, p: Val) -> Val:
        """Moves panels p, p+1, ... whose sources are adjacent; how many were moved (0: fewer than T are)."""
        f, size = self.f, self.m.block
        run, valid = self._adjacent_panels(p), f.word(self.valid, p)
        moved = f.var(0)
        with f.if_(run >= size):
            self._panel_blocks(p, run, valid)
            moved.set(run)
        return moved.get()

    def _adjacent_panels(self, p: Val) -> Val:
        """Panels from p on that lie one element apart and have as many valid lanes."""
        f = self.f
        first, valid, run = f.word(self.lanes, p * self.width), f.word(self.valid, p), f.var(1)
        with f.while_() as leave:
            q = p + run.get()
            leave(q >= self.panels)
            leave((f.word(self.lanes, q * self.width) - first).ne(run.get() * self.m.item))
            leave(f.word(self.valid, q).ne(valid))
            run.add(1)
        return run.get()

    def _panel_blocks(self, p: Val, run: Val, valid: Val) -> None:
        """Along a source row first: whole lines are used while they are near. The last block ends with the run."""
        f, m, size = self.f, self.m, self.m.block
        lanes, dst = self.lanes + p * self.width * 8, self.dst + p * self.stride
        with f.range(0, self.k) as k:
            at, row = self.src + f.word(self.tk, k), dst + k * (self.width * m.item)
            with f.range(0, valid, size) as l0:
                last, count = valid - 1, f.min(valid - l0, size)
                sources = [at + f.word(lanes, f.min(l0 + l, last)) for l in range(size)]
                with f.range(0, run, size) as start:
                    q = f.min(start, run - size)
                    rows = [m.load(source + q * m.item, size) for source in sources]
                    target = row + q * self.stride + l0 * m.item
                    self._store_rows(m.transpose(rows), lambda i: target + self.stride * i, count)
        with f.if_(valid < self.width):
            with f.range(0, run) as i:
                with f.range(0, self.k) as k:
                    row = dst + self.stride * i + (k * self.width + valid) * m.item
                    m.zero_run(row, self.width - valid)
