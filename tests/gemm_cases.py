"""Builds small GEMM problems with every access mode over fenced or plain memory, runs and checks them.

One problem tests many edges at once: it has one panel per number of valid lanes. Offset vectors are sums over rows of
a `Store`, and entries that no kernel may use (lanes past the valid ones) hold an address that nobody owns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product as product_of
from typing import Callable, Mapping, Sequence

import numpy as np
import oracle
from dense import numpy_dtype

from einsum_engine.kernels import gemm, tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.cpu.storage import STORAGES
from einsum_engine.kernels.gemm import GemmProblem, Operand
from einsum_engine.kernels.isa import ISA
from einsum_engine.kernels.launch import Launch
from einsum_engine.kernels.row import Row

POISON = 1 << 60
A, B, C = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """``valid``: lanes of each panel; ``a``: ``direct``, ``panels``, ``nested`` (those in blocks of K) or the name of a pack
    mode; ``b``: ``direct``,
    ``panels`` or the name of a pack mode; ``sources``: dtypes of A and B where tasks widen them while packing;
    ``scattered``: lanes of C lie apart, in runs of ``chunk``; ``fetch``: operands that are packed, and an A
    that is read in place, are asked for early; ``even``: the K loop for terms at equal distances runs, where they are, and not the
    one by tables; ``flush``: side of the fences, "" for plain memory with
    ``gap`` bytes between rows and ``lead`` more before the first."""

    dtype: str
    tile: tuple[int, int]
    valid: tuple[int, ...]
    n: int
    k: int
    kc: int = 256
    a: str = "direct"
    b: str = "direct"
    sources: tuple[str, str] = ("", "")
    scattered: bool = False
    chunk: int = 1
    stream: bool = False
    accumulate: bool = False
    conj: tuple[bool, bool] = (False, False)
    flush: str = ""
    fetch: bool = True
    even: bool = True
    gap: int = 48
    lead: int = 0
    exact: bool = True
    blocks: tuple[int, int, int] | None = None
    shares: tuple[tuple[int, int, int, int], ...] = ()
    seed: int = 0


class Plain:
    """Rows in one array, ``gap`` bytes apart: what `oracle.Fence` is, without the fences."""

    def __init__(self, count: int, nbytes: int, gap: int, lead: int):
        self.nbytes, self.first, self.pitch = nbytes, gap + lead, nbytes + gap
        self.memory = np.zeros(self.first + count * self.pitch, np.uint8)

    def begin(self, nbytes: int) -> int:
        return self.first

    def row(self, number: int) -> np.ndarray:
        return self.memory[self.first + number * self.pitch :][: self.nbytes]


def store(case: Case, count: int, nbytes: int) -> "oracle.Fence | Plain":
    return oracle.Fence(count, nbytes, case.flush) if case.flush else Plain(count, nbytes, case.gap, case.lead)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A problem, its stores by slot, and the bytes of C that it writes."""

    problem: GemmProblem
    stores: tuple
    written: np.ndarray
    case: Case

    @property
    def memory(self) -> dict[int, np.ndarray]:
        return {slot: s.memory for slot, s in enumerate(self.stores)}


def build(case: Case, isa: ISA) -> Ready:
    rng = np.random.default_rng(case.seed)
    item = tiles.ITEMSIZE[case.dtype]
    mv, nr = case.tile
    mr = mv * tiles.elements(isa, case.dtype)
    panels, valid = len(case.valid), np.array(case.valid, np.int64)
    a_case, b_case = (replace(case, dtype=source or case.dtype) for source in case.sources)
    a_store, a_tables = _operand_a(a_case, STORAGES[a_case.dtype].itemsize, mr, rng)
    b_store, b_tables = _operand_b(b_case, STORAGES[b_case.dtype].itemsize, nr, rng)
    c_store, c_tables, where = _operand_c(case, item, mr, rng)
    problem = GemmProblem(
        dtype=case.dtype,
        mv=mv,
        nr=nr,
        mr=mr,
        a=Operand(slot=A, offset=a_tables.pop("offset")),
        b=Operand(slot=B, offset=b_tables.pop("offset")),
        c=Operand(slot=C, offset=0),
        outer=(),
        valid=valid,
        run=np.full(panels, int(not case.scattered), np.int64),
        a_mode={"direct": "direct", "panels": "panels", "nested": "panels"}.get(case.a, "pack"),
        a_nested=case.a == "nested",
        b_mode=case.b if case.b in ("direct", "panels") else "pack",
        a_source=case.sources[0],
        b_source=case.sources[1],
        pack_mode=getattr(abi, case.a, abi.SCATTERED),
        b_pack_mode=getattr(abi, case.b, abi.SCATTERED),
        fetch_a=case.fetch and case.a not in ("panels", "nested") and not case.sources[0],
        fetch_b=case.fetch and case.b not in ("direct", "panels") and not case.sources[1],
        kc=case.kc,
        chunk=case.chunk,
        stream=case.stream,
        blocks=case.blocks or (1, panels, case.n),
        shares=case.shares,
        conj_a=case.conj[0],
        conj_b=case.conj[1],
        accumulate=case.accumulate,
        **a_tables,
        **b_tables,
        **c_tables,
    )
    problem = replace(problem, even=case.k if case.even and "direct" in (case.a, case.b) else 0)
    written = np.zeros(len(c_store.memory), bool)
    written[where[:, None] + np.arange(item)] = True
    return Ready(problem=problem, stores=(a_store, b_store, c_store), written=written, case=case)


def _lanes(valid: Sequence[int], mr: int, starts: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Panel starts plus offsets within; lanes past the valid ones are poisoned."""
    table = starts[:, None] + within[None, :mr]
    table[np.arange(mr)[None, :] >= np.array(valid)[:, None]] = POISON
    return np.ascontiguousarray(table.ravel())


def _operand_a(case: Case, item: int, mr: int, rng) -> tuple:
    """In place and LANES_RUN: a row of lanes per (k, panel); K_RUN: a row of k per lane; panels: packed."""
    panels, k = len(case.valid), case.k
    lanes, steps = np.arange(mr, dtype=np.int64), np.arange(k, dtype=np.int64)
    if case.a == "panels":
        rows = store(case, 1, panels * k * mr * item)
        data = _fill(rng, (panels, k, mr), case)
        data *= (lanes[None, None, :] < np.array(case.valid)[:, None, None]).astype(data.dtype)
        rows.row(0)[-data.nbytes or None :] = data.view(np.uint8).ravel()
        unused = np.full(panels * mr, POISON)
        return rows, {
            "tm_a": unused,
            "tk_a": np.full(k, POISON),
            "a_stride": k * mr * item,
            "offset": rows.begin(rows.nbytes),
        }
    if case.a == "nested":
        return _nested(case, item, mr, rng)
    if case.a == "K_RUN":
        rows = store(case, panels * mr, k * item)
        _fill_rows(rows, panels * mr, case, rng)
        starts = rows.begin(k * item) + np.arange(panels) * mr * rows.pitch
        return rows, {"tm_a": _lanes(case.valid, mr, starts, lanes * rows.pitch), "tk_a": steps * item, "offset": 0}
    if case.a == "SCATTERED":
        rows = store(case, k, panels * mr * item)
        _fill_rows(rows, k, case, rng)
        order = rng.permutation(panels * mr).astype(np.int64).reshape(panels, mr) * item
        order[np.arange(mr)[None, :] >= np.array(case.valid)[:, None]] = POISON
        return rows, {"tm_a": order.ravel(), "tk_a": rows.begin(rows.nbytes) + steps * rows.pitch, "offset": 0}
    rows = store(case, k * panels, mr * item)
    _fill_rows(rows, k * panels, case, rng)
    starts = np.array([rows.begin(v * item) for v in case.valid]) + np.arange(panels) * rows.pitch
    return rows, {
        "tm_a": _lanes(case.valid, mr, starts, lanes * item),
        "tk_a": steps * panels * rows.pitch,
        "offset": 0,
    }


def _nested(case: Case, item: int, mr: int, rng) -> tuple:
    """Panels of ``kc`` terms each, those of a block of K beside each other; nothing lies behind the last term of the last."""
    panels, kc, blocks = len(case.valid), case.kc, -(-case.k // case.kc)
    terms = ((blocks - 1) * panels + panels - 1) * kc + case.k - (blocks - 1) * kc
    rows = store(case, 1, terms * mr * item)
    data = _fill(rng, (terms, mr), case)
    valid = np.array(case.valid)[np.arange(terms) // kc % panels]
    data *= (np.arange(mr) < valid[:, None]).astype(data.dtype)
    rows.row(0)[-data.nbytes or None :] = data.view(np.uint8).ravel()
    return rows, {
        "tm_a": np.full(panels * mr, POISON),
        "tk_a": np.full(case.k, POISON),
        "a_stride": kc * mr * item,
        "offset": rows.begin(rows.nbytes),
    }


def _operand_b(case: Case, item: int, nr: int, rng) -> tuple:
    """In place: a row of k per column; panels: packed."""
    n, k = case.n, case.k
    if case.b == "panels":
        count = -(-n // nr)
        rows = store(case, 1, count * k * nr * item)
        data = _fill(rng, (count, k, nr), case)
        rows.row(0)[-data.nbytes or None :] = data.view(np.uint8).ravel()
        return rows, {
            "tn_b": np.full(n, POISON),
            "tk_b": np.full(k, POISON),
            "b_stride": k * nr * item,
            "offset": rows.begin(rows.nbytes),
        }
    rows = store(case, n, k * item)
    _fill_rows(rows, n, case, rng)
    return rows, {
        "tn_b": rows.begin(k * item) + np.arange(n, dtype=np.int64) * rows.pitch,
        "tk_b": np.arange(k, dtype=np.int64) * item,
        "offset": 0,
    }


def _operand_c(case: Case, item: int, mr: int, rng) -> tuple:
    """A row per (column, panel); scattered lanes are shuffled with holes between them."""
    panels, n = len(case.valid), case.n
    lanes = np.arange(mr, dtype=np.int64) * item
    width = 2 * mr * item if case.scattered else mr * item
    rows = store(case, n * panels, width)
    if case.scattered:
        starts = np.full(panels, rows.begin(width)) + np.arange(panels) * rows.pitch
        groups = rng.permutation(mr // case.chunk) * 2 + 1
        lanes = ((groups[:, None] * case.chunk + np.arange(case.chunk)) * item).ravel()
        lanes = np.concatenate([lanes, np.full(mr - len(lanes), lanes[-1])])  # a panel may not be full of runs
    else:
        starts = np.array([rows.begin(v * item) for v in case.valid]) + np.arange(panels) * rows.pitch
    tm_c = _lanes(case.valid, mr, starts, lanes)
    tn_c = np.arange(n, dtype=np.int64) * panels * rows.pitch
    where = (tm_c[tm_c < POISON // 2][:, None] + tn_c[None, :]).ravel()
    _fill_rows(rows, n * panels, case, rng)
    if not case.accumulate:
        _spoil(rows.memory, where, case.dtype)
    return rows, {"tm_c": tm_c, "tn_c": tn_c}, where


def _fill(rng, shape, case: Case) -> np.ndarray:
    values = oracle.random(rng, shape, numpy_dtype(case.dtype), case.exact)
    return values.view(np.uint8) if case.dtype == "bool" else values


def _fill_rows(rows, count: int, case: Case, rng) -> None:
    for number in range(count):
        row = rows.row(number)
        data = _fill(rng, len(row) // STORAGES[case.dtype].itemsize, case).view(np.uint8)
        # rows end on a whole element
        row[len(row) - len(data) :] = data


def _spoil(memory: np.ndarray, where: np.ndarray, dtype: str) -> None:
    """NaN, or all bits set, where a result goes: a kernel that overwrites must not read it."""
    kind = np.dtype("uint8" if dtype == "bool" else dtype)
    value = np.array(np.nan if kind.kind in "fc" else -1 if kind.kind == "i" else 255, kind)
    memory[where[:, None] + np.arange(kind.itemsize)] = value.reshape(1).view(np.uint8)


# -- running -------------------------------------------------------------------------------------------------------
def run(ready: Ready, isa: ISA, mutate: Callable[[Row], Row] = lambda row: row) -> None:
    """Runs the kernel, and AssertionError unless C is what `gemm.reference` makes of it, every other byte included.

    ``mutate`` changes the row that is run, never the reference.
    """
    before = [_rows(s) for s in ready.stores]
    memory = ready.memory
    expected = _copy(ready.stores[C])
    gemm.reference(ready.problem, {**memory, C: expected})
    Launch(mutate(gemm.lower(ready.problem)), [m.ctypes.data for m in memory.values()], isa)()
    _compare(ready, before, expected)


def _rows(rows) -> np.ndarray:
    """All bytes that may be touched."""
    if isinstance(rows, Plain):
        return rows.memory.copy()
    return np.array([rows.row(i) for i in range(rows.count)])


def _copy(rows) -> np.ndarray:
    """The memory where it may be touched, zeros elsewhere."""
    if isinstance(rows, Plain):
        return rows.memory.copy()
    out = np.zeros(len(rows.memory), np.uint8)
    for i in range(rows.count):
        first = oracle.PAGE + i * rows.pitch
        out[first : first + rows.pitch - oracle.PAGE] = rows.row(i)
    return out


def _compare(ready: Ready, before: Sequence[np.ndarray], expected: np.ndarray) -> None:
    for slot in (A, B):
        assert np.array_equal(before[slot], _rows(ready.stores[slot])), f"operand {slot} was written: {ready.case}"
    actual = _copy(ready.stores[C])
    stray = (actual != expected) & ~ready.written
    assert not stray.any(), f"{stray.sum()} bytes outside the result were written: {ready.case}"
    got, want = (m[ready.written].view(_kind(ready.case.dtype)) for m in (actual, expected))
    wrong = np.flatnonzero(got != want)  # NaN differs from everything
    assert not len(wrong), f"element {wrong[0]}: {got[wrong[0]]}, expected {want[wrong[0]]}; {len(wrong)}: {ready.case}"


def _kind(dtype: str) -> np.dtype:
    return numpy_dtype("uint8" if dtype == "bool" else dtype)


def loops(p: GemmProblem, memory: Mapping[int, np.ndarray]) -> tuple[list[int], oracle.Answer]:
    """What ``p`` computes, by plain loops over its offset vectors: byte positions in C and their values."""
    item = tiles.ITEMSIZE[p.dtype]
    kinds = {A: _kind(p.a_source or p.dtype), B: _kind(p.b_source or p.dtype), C: _kind(p.dtype)}

    def elements(slot: int, at) -> list:
        bytes_of = np.asarray(at)[:, None] + np.arange(kinds[slot].itemsize)
        found = memory[slot][bytes_of].view(kinds[slot])[:, 0]
        conj = p.dtype in tiles.COMPLEX and (p.conj_a, p.conj_b, False)[slot]
        return (found.conj() if conj else found).tolist()

    k = np.arange(len(p.tk_a))
    before = len(p.valid) if p.a_nested else 1  # panels that have the blocks of K before
    terms_a = k // p.kc * p.kc * before + k % p.kc
    found: list[tuple] = []
    for o in product_of(*(range(count) for count, *_ in p.outer)):
        moved = [sum(int(loop[1 + t][i]) for loop, i in zip(p.outer, o)) for t in range(3)]
        base = [moved[t] + operand.offset for t, operand in enumerate((p.a, p.b, p.c))]
        if p.b_mode == "panels":
            at_b = [n // p.nr * p.b_stride + (k * p.nr + n % p.nr) * item for n in range(len(p.tn_c))]
        else:
            at_b = [start + p.tk_b for start in p.tn_b]
        columns = [elements(B, base[B] + at) for at in at_b]
        for m in range(len(p.tm_c)):
            panel, lane = divmod(m, p.mr)
            if lane >= p.valid[panel]:
                continue
            if p.a_mode == "panels":
                at_a = panel * p.a_stride + (terms_a * p.mr + lane) * item
            else:
                at_a = p.tm_a[m] + p.tk_a
            line = elements(A, base[A] + at_a)
            for n, column in enumerate(columns):
                at_c = base[C] + int(p.tm_c[m] + p.tn_c[n])
                terms = [x * y for x, y in zip(line, column)]
                if p.accumulate:
                    terms += elements(C, [at_c])
                found.append((at_c, max(terms) if p.dtype == "bool" else sum(terms), sum(map(abs, terms))))
    where, values, sizes = zip(*found)
    return list(where), oracle.Answer(
        value=np.array(values, object), magnitude=np.array(sizes, object), terms=len(p.tk_a) + int(p.accumulate)
    )


def check_loops(p: GemmProblem, memory: Mapping[int, np.ndarray], where: Sequence[int], answer: oracle.Answer) -> None:
    """AssertionError unless C holds ``answer``."""
    at = np.array(where)[:, None] + np.arange(tiles.ITEMSIZE[p.dtype])
    oracle.check(memory[C][at].view(_kind(p.dtype))[:, 0], answer, context=p.kernel)


def with_modes(case: Case, modes: str, pack: str = "LANES_RUN", pack_b: str = "panels") -> Case:
    """``modes`` as in kernel names: packed or direct A, packed or direct B; ``pack``, ``pack_b``: how a packed one is
    found."""
    return replace(case, a="direct" if modes[0] == "d" else pack, b=pack_b if modes[1] == "p" else "direct")
