"""What tiles ask for while a turn of the outer loops runs: all of what the next one has, once, and results stay the same."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from gemm_cases import A, B, C, Case, build, check_loops, loops, run, with_modes
from llvmlite import ir
from plan_cases import made_anew, plan
from plan_cases import run as run_plan

from einsum_engine.kernels import gemm, isa, tiles
from einsum_engine.kernels.cpu import abi, codegen, cores, library, next_turn
from einsum_engine.kernels.cpu.emit import I64, Fn
from einsum_engine.kernels.cpu.units import ASK_TERMS
from einsum_engine.kernels.launch import Launch
from einsum_engine.planners import next_turn as planned

every_dtype = pytest.mark.parametrize("dtype", tiles.DTYPES)
every_isa = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
MODES = ("dd", "pp", "dp", "pd")


@pytest.fixture
def asking(monkeypatch):
    """Cores on which turns ask for the next one, whatever is here, and no kernels that were made for others."""
    core = replace(cores.here(), turns_ask=True, suffix=cores.here().suffix + ".asking")
    monkeypatch.setattr(cores, "here", lambda: core)
    monkeypatch.setattr(library, "_addresses", {})
    with made_anew():
        yield


def _lines_asked(monkeypatch, table, now, then, times: int) -> list[tuple[int, int]]:
    """(address, whether it will be written) of each request in a turn, from a log that takes the place of the instruction."""
    row = isa.host_isas()[0]
    module = ir.Module("asked")
    f = Fn(module, "asked", [I64] * 5)
    numbers, here, there, rounds, log = f.args

    def logged(self, address, write=False, locality=3):
        count = self.word(log)
        self.store(address, log + count * 16 + 16)
        self.store(self.i64(int(write)), log + count * 16 + 24)
        self.store(count + 1, log)

    with monkeypatch.context() as patch:
        patch.setattr(Fn, "prefetch", logged)
        turn = next_turn.NextTurn(f, f.stack(8 * next_turn.WORDS))
        turn.begin()
        turn.announce(numbers, [f.word(here, n) for n in range(3)], [f.word(there, n) for n in range(3)], rounds)
        with f.range(0, rounds):
            turn.ask()
        f.ret()
    (address,) = codegen.load(codegen.compile_object(module, row), ("asked",), row)
    arrays = [np.array(values, np.int64).ravel() for values in (table, now, then)]
    found = np.zeros(2 * 4096, np.int64)
    places = [array.ctypes.data for array in arrays]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(address)(*places, times, found.ctypes.data)
    return [tuple(pair) for pair in found[2 : 2 + 2 * found[0]].reshape(-1, 2).tolist()]


@pytest.mark.parametrize("times", [1, 3, 16, 1000])
@pytest.mark.parametrize("table", [
    [(640, 1, 0), (128, 5, 4096), (64, 7, 192)],
    [(0, 0, 0), (1000, 1, 0), (0, 0, 0)],  # a run that ends within a line
    [(64, 3, 256), (0, 0, 0), (512, 2, 1 << 33)],
    [(64, 9, 640), (0, 0, 0), (192, 5, 4096 + 16)],
])  # fmt: skip
@pytest.mark.parametrize("begin", [0, 16])
def test_each_line_is_asked_for_once(monkeypatch, table, times, begin):
    """However many requests a turn has; C for being written. Rows begin anywhere in a line; the last line of an only row may be left."""
    now, then = (0, 1 << 20, 1 << 30), tuple(begin + (1 << power) for power in (16, 21, 31))
    wanted = [
        (line, int(side == 2))
        for side, ((row, rows, stride), there) in enumerate(zip(table, then))
        for at in range(there, there + max(rows * stride, rows), stride or 1)
        for line in range(at - at % 64, at + row, 64)
    ]
    asked = _lines_asked(monkeypatch, table, now, then, times)
    left = set(wanted) - set(asked)
    assert len(set(asked)) == len(asked) and set(asked) <= set(wanted)
    assert left <= {(there + row - 1 - (there + row - 1) % 64, int(side == 2)) for side, (there, (row, rows, _)) in enumerate(zip(then, table)) if rows == 1 and begin}


def test_requests_lie_evenly_and_what_stays_is_not_asked_for(monkeypatch):
    table, now = [(640, 1, 0), (640, 1, 0), (640, 1, 0)], (0, 1 << 20, 1 << 30)
    asked = _lines_asked(monkeypatch, table, now, (4096, 1 << 20, 1 << 31), 5)
    assert [write for _, write in asked] == [0, 0, 1, 1] * 5
    assert _lines_asked(monkeypatch, table, now, now, 5) == []


@every_isa
@pytest.mark.parametrize("modes", MODES)
@every_dtype
def test_results_of_outer_loops(asking, row, dtype, modes):
    """Of turns that say anything of what the next one has, in one block of K and in pieces, with runs of terms and without."""
    tile = tiles.tiles(row, dtype)[0]
    height, total = tile[0] * tiles.elements(row, dtype), 5
    for k, even, first in ((3, True, 0), (ASK_TERMS, False, 0), (3 * ASK_TERMS + 1, True, 0), (300, True, 0), (24, True, 12)):
        case = Case(dtype=dtype, tile=tile, valid=(height, max(1, height - 1)), n=tile[1] + 1, k=k, kc=512, even=even)
        copies = [build(with_modes(replace(case, seed=seed), modes, "LANES_RUN", "K_RUN"), row) for seed in range(total)]
        memory = {slot: np.concatenate([copy.memory[slot] for copy in copies]) for slot in (A, B, C)}
        sizes = [len(copies[0].memory[slot]) for slot in (A, B, C)]
        steps = [np.arange(total, dtype=np.int64) * size for size in sizes]
        asks = ((sizes[0], 1, 0), (64, 3, 4096), (sizes[2], 1, 0))
        p = replace(copies[0].problem, outer=((total, *steps),), blocks=(3, *copies[0].problem.blocks[1:]), asks=asks)
        if first:  # two runs, with a jump between them that is no place to stop at for requests
            p = replace(p, even=first, tk_a=np.roll(p.tk_a, first), tk_b=np.roll(p.tk_b, first))
        where, answer = loops(p, memory)
        Launch(gemm.lower(p), [memory[slot].ctypes.data for slot in (A, B, C)], row)()
        check_loops(p, memory, where, answer)


@every_isa
@pytest.mark.parametrize("shares", [(), ((0, 1, 0, 9), (1, 4, 0, 9))])
@pytest.mark.parametrize("a, b", [("panels", "panels"), ("nested", "panels"), ("panels", "direct")])
@every_dtype
def test_panels_that_come_from_far(asking, row, dtype, a, b, shares):
    """The next block of K, and the next panels, are asked for, also where there are none; nothing is read there. Beside columns
    that are read in place, between a few terms each."""
    tile = tiles.tiles(row, dtype)[0]
    height = tile[0] * tiles.elements(row, dtype)
    for k, kc in ((7, 3), (600, 256), (40, 64)):
        case = Case(dtype=dtype, tile=tile, valid=(height,) * 3 + (1,), n=9, k=k, kc=kc, a=a, b=b, flush="end")
        case = replace(case, blocks=(1, 1, 9), shares=shares)
        ready = build(case, row)
        ready = replace(ready, problem=replace(ready.problem, far_a=True))
        assert gemm.lower(ready.problem).words[abi.G_PACK_MODE] & abi.FAR_A
        run(ready, row)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64"])
@pytest.mark.parametrize("text, sizes", [
    ("bmk,bkn->bmn", dict(b=67, m=40, k=33, n=50)),
    ("bmk,bkn->bmn", dict(b=35, m=130, k=140, n=150)),
    ("mkb,nbk->bmn", dict(b=48, m=64, k=96, n=70)),
    ("bkm,bnk->nbm", dict(b=40, m=64, k=64, n=40)),
])  # fmt: skip
def test_results_of_batches(asking, monkeypatch, text, sizes, dtype, threads):
    monkeypatch.setattr(planned, "ALL_BYTES", 0)
    monkeypatch.setattr(planned, "LEAST_BYTES", 0)
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in term]).astype(dtype) for term in text.split("->")[0].split(",")]
    made = plan(text, arrays, threads=threads)
    assert any(abi.G_ASKS in step.args.tables for step in made.steps if step.family == "gemm")
    wide = [array.astype("c16" if dtype == "complex64" else "i8") for array in arrays]
    np.testing.assert_array_equal(run_plan(made, arrays), np.einsum(text, *wide, optimize=True).astype(dtype))


def _asked(text, *shapes):
    made = plan(text, [np.empty(shape, np.float32) for shape in shapes], isa="avx2", threads=1)
    (step,) = [step for step in made.steps if step.family == "gemm"]
    table = step.args.tables.get(abi.G_ASKS)
    return None if table is None else [tuple(side) for side in table.reshape(3, 3).tolist()], step.args.words


def test_what_a_turn_has(asking):
    """Blocks without gaps; rows of one that has some; C is stored through the caches then."""
    whole = (64 * 64 * 4, 1, 0)
    asked, words = _asked("bmk,bkn->bmn", (1024, 64, 64), (1024, 64, 64))
    assert asked == [whole] * 3 and not words[abi.G_STREAM]
    asked, _ = _asked("bmk,kbn->bmn", (1024, 64, 64), (64, 1024, 64))
    assert sorted(asked) == sorted([whole, whole, (256, 64, 1024 * 256)])


def test_panels_of_a_that_a_step_packed_for_the_batch(asking):
    """Those of one product: panels of other products lie between them."""
    made = plan("mkb,nbk->bnm", [np.empty((64, 256, 96), np.float32), np.empty((80, 96, 256), np.float32)], isa="avx2", threads=1)
    pack, step = made.steps
    row, rows, stride = step.args.tables[abi.G_ASKS][:3].tolist()
    assert pack.family == "pack" and step.args.words[abi.G_A_STRIDE] == stride > row
    assert (row, rows) == (256 * 4 * step.tile[0], step.args.words[abi.G_PANELS])


@every_isa
def test_runs_between_which_there_are_no_requests(asking, row):
    """100 terms behind each other, three times, where both operands are read in place: they are no pieces of 8."""
    made = plan("bmkl,blkn->bmn", [np.empty((1024, 40, 3, 100), np.float32), np.empty((1024, 100, 3, 64), np.float32)], isa=row.name, threads=1)
    (step,) = [step for step in made.steps if step.family == "gemm"]
    assert (abi.G_ASKS in step.args.tables) == (step.args.words[abi.G_EVEN] != 100)


def test_tasks_of_a_single_turn_ask_for_nothing(asking):
    """C leaves past the caches then, as it would without."""
    made = plan("bmk,bkn->bmn", [np.empty((24, 256, 256), np.float32)] * 2, isa="avx2", threads=2)
    (step,) = [step for step in made.steps if step.family == "gemm"]
    assert step.args.words[abi.G_OUTER_BLOCK] == 1 and abi.G_ASKS not in step.args.tables and step.args.words[abi.G_STREAM]


@pytest.mark.parametrize("columns, batch, past", [(52, 1000, 0), (64, 1000, 1), (300, 200, 1), (52, 2000, 1)])
def test_columns_with_parts_of_lines_stay_in_the_caches(asking, columns, batch, past):
    """Those of few lines, where nothing is asked for, up to 16 MB; whole lines leave past the caches."""
    asked, words = _asked("bmk,bkn->bmn", (batch, 73, 6), (batch, 6, columns))
    assert asked is None and words[abi.G_STREAM] & 1 == past


@pytest.mark.parametrize("text, shapes", [
    ("mk,kn->mn", [(4096, 64), (64, 64)]),  # no batch
    ("bmk,bkn->bmn", [(8, 64, 64), (8, 64, 64)]),  # all of it stays in cache
    ("bmk,bkn->bmn", [(9, 900, 800), (9, 800, 700)]),  # a turn does not
    ("bmk,bkn->bmn", [(40000, 8, 8), (40000, 8, 8)]),  # too few terms to hide requests behind
])  # fmt: skip
def test_what_is_not_asked_for(asking, text, shapes):
    made = plan(text, [np.empty(shape, np.float32) for shape in shapes], isa="avx2", threads=1)
    assert not any(abi.G_ASKS in step.args.tables for step in made.steps)


def test_other_cores_ask_for_nothing(monkeypatch):
    monkeypatch.setattr(cores, "here", lambda: cores.PLAIN)
    with made_anew():
        asked, words = _asked("bmk,bkn->bmn", (1024, 64, 64), (1024, 64, 64))
        assert asked is None and words[abi.G_STREAM]
        tall = plan("mk,kn->mn", [np.empty((40000, 300)), np.empty((300, 64))], isa="avx2", threads=1)
        assert not any(step.args.words.get(abi.G_PACK_MODE, 0) & abi.FAR_A for step in tall.steps)
