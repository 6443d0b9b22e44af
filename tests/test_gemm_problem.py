"""GEMM problems as data: the reference against plain loops, rounding, outer loops, far offsets, wrong kernels."""

import mmap
from dataclasses import replace

import numpy as np
import oracle
import pytest
from gemm_cases import A, B, C, Case, build, check_loops, loops, run, with_modes

from einsum_engine.kernels import gemm, isa, tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.gemm import GemmProblem, Operand
from einsum_engine.kernels.launch import Launch

MODES = ("dd", "pp", "dp", "pd")
HOST = isa.active_isa()
every_dtype = pytest.mark.parametrize("dtype", tiles.DTYPES)
every_isa = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)


def _case(row, dtype: str, modes: str, pack: str = "K_RUN", **more) -> Case:
    tile = tiles.tiles(row, dtype)[0]
    height = tile[0] * tiles.elements(row, dtype)
    case = dict(dtype=dtype, tile=tile, valid=(min(3, height), height, 1), n=tile[1] + 1, k=3) | more
    return with_modes(Case(**case), modes, pack)


def _addresses(memory) -> list[int]:
    return [memory[slot].ctypes.data for slot in (A, B, C)]


@every_dtype
@pytest.mark.parametrize("modes", MODES)
def test_reference_against_plain_loops(dtype, modes):
    for pack in ("K_RUN", "panels", "nested", "SCATTERED"):
        for accumulate in (False, True):
            case = _case(isa.get("sse2"), dtype, modes, pack, kc=2, accumulate=accumulate, conj=(True, accumulate))
            ready = build(case, isa.get("sse2"))
            where, answer = loops(ready.problem, ready.memory)
            gemm.reference(ready.problem, ready.memory)
            check_loops(ready.problem, ready.memory, where, answer)


@every_isa
@pytest.mark.parametrize("source, dtype", [("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32"),
                                           ("float32", "float64"), ("complex64", "complex128")])  # fmt: skip
def test_operands_widened_while_they_are_packed(row, source, dtype):
    """Kernel and reference take A, B or both in their own dtype, over several K blocks."""
    for pack in ("LANES_RUN", "K_RUN", "SCATTERED"):
        one = _case(row, dtype, "pd", pack, sources=(source, ""), k=37, kc=16, conj=(True, False))
        both = with_modes(replace(one, sources=(source, source)), "pp", pack, "K_RUN")
        other = with_modes(replace(one, sources=("", source)), "pp", pack, "SCATTERED")
        for case in (one, both, other):
            ready = build(case, row)
            where, answer = loops(ready.problem, ready.memory)
            run(ready, row)
            check_loops(ready.problem, ready.memory, where, answer)
            run(build(replace(case, flush="end"), row), row)


@every_isa
@pytest.mark.parametrize("dtype", [d for d in tiles.DTYPES if np.dtype(d).kind in "fc"])
def test_rounding_stays_within_the_bound(row, dtype):
    """Random values, a sum of 40 terms: component-wise within 4 (K + 2) eps |A||B|."""
    height = tiles.tiles(row, dtype)[0][0] * tiles.elements(row, dtype)
    for accumulate in (False, True):
        case = _case(row, dtype, "pp", valid=(height, 1), k=40, kc=16, exact=False, accumulate=accumulate)
        ready = build(case, row)
        where, answer = loops(ready.problem, ready.memory)
        Launch(gemm.lower(ready.problem), _addresses(ready.memory), row)()
        check_loops(ready.problem, ready.memory, where, answer)


@every_isa
@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("counts", [(6,), (2, 3), (1, 3, 2), (3, 1, 1, 2)])
def test_outer_loops(row, modes, counts):
    """Every operand moves by a whole store per step of the flat outer index; three indices a task."""
    total = int(np.prod(counts))
    for pack in ("LANES_RUN", "panels"):
        copies = [build(_case(row, "float32", modes, pack, seed=seed), row) for seed in range(total)]
        memory = {slot: np.concatenate([c.memory[slot] for c in copies]) for slot in (A, B, C)}
        sizes = [len(copies[0].memory[slot]) for slot in (A, B, C)]
        outer = []
        for level, count in enumerate(counts):
            step = int(np.prod(counts[level + 1 :], dtype=int))
            outer.append((count, *(np.arange(count, dtype=np.int64) * step * size for size in sizes)))
        problem = copies[0].problem
        problem = replace(problem, outer=tuple(outer), blocks=(3, *problem.blocks[1:]))
        where, answer = loops(problem, memory)
        Launch(gemm.lower(problem), _addresses(memory), row)()
        check_loops(problem, memory, where, answer)


@every_isa
@pytest.mark.parametrize("modes", ["dd", "pd"])
def test_offsets_beyond_32_bits_and_backwards(row, modes):
    """Rows more than 4 GiB apart, in both directions; the memory is reserved, never filled."""
    far = (1 << 32) + 4096 + 8
    tile = tiles.tiles(row, "float64")[0]
    mr, lanes = tile[0] * tiles.elements(row, "float64"), 3
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    whole = np.frombuffer(mmap.mmap(-1, 4 * far, flags=flags), np.uint8)
    memory = {A: whole, B: whole, C: whole}
    backwards = np.zeros(mr, np.int64) - np.minimum(np.arange(mr), lanes - 1) * 8
    contiguous = modes == "dd"
    problem = GemmProblem(
        dtype="float64",
        mv=tile[0],
        nr=tile[1],
        mr=mr,
        a=Operand(slot=A, offset=64 if contiguous else 1024),
        b=Operand(slot=B, offset=3 * far + 2048),
        c=Operand(slot=C, offset=far + 8192),
        outer=(),
        tm_a=-backwards if contiguous else backwards,
        tm_c=np.minimum(np.arange(mr), lanes - 1) * 16,
        valid=np.array([lanes]),
        run=np.zeros(1, np.int64),
        tn_b=np.array([0, 8 - far]),
        tn_c=np.array([0, 2 * far]),
        tk_a=np.array([0, far, 2 * far]),
        tk_b=np.array([0, -far, -2 * far]),
        a_mode="direct" if contiguous else "pack",
        b_mode="direct",
        kc=2,
        blocks=(1, 1, 2),
    )
    rng = np.random.default_rng(0)
    a = problem.a.offset + problem.tm_a[:lanes, None] + problem.tk_a
    b = problem.b.offset + problem.tn_b[:, None] + problem.tk_b
    for at in (*a.ravel(), *b.ravel()):
        whole[at : at + 8].view(np.float64)[0] = rng.integers(1, 9)
    where, answer = loops(problem, memory)
    Launch(gemm.lower(problem), _addresses(memory), row)()
    check_loops(problem, memory, where, answer)


# -- the checks themselves must fail on a wrong kernel -------------------------------------------------------------
def _word(index: int, change):
    return lambda row: replace(row, words={**row.words, index: change(row.words[index])})


def _table(index: int, change):
    return lambda row: replace(row, tables={**row.tables, index: change(row.tables[index].copy())})


WRONG = {
    "swapped columns of C": _table(abi.G_TN_C, lambda t: t[[1, 0, *range(2, len(t))]]),
    "swapped lanes of C": _table(abi.G_TM_C, lambda t: t[[1, 0, *range(2, len(t))]]),
    "shifted lanes of C": _table(abi.G_TM_C, lambda t: t + 8),
    "shifted A": _word(abi.A_OFFSET, lambda offset: offset + 8),
    "swapped columns of B": _table(abi.G_TN_B, lambda t: t[[1, 0, *range(2, len(t))]]),
    "a lane too few": _table(abi.G_VALID, lambda t: t - 1),
    "a lane too many": _table(abi.G_VALID, lambda t: t + (t < 2)),
    "a column too few": _word(abi.G_N, lambda n: n - 1),
    "a panel too few": _word(abi.G_PANELS, lambda n: n - 1),
    "a term too few": _word(abi.G_K, lambda k: k - 1),
    "conjugate of A": _word(abi.G_SIGNS, lambda signs: signs ^ 1),
    "conjugate of B": _word(abi.G_SIGNS, lambda signs: signs ^ 2),
    "adds to what is there": _word(abi.G_ACCUMULATE, lambda flag: 1 - flag),
    "writes operand A": lambda row: _word(abi.OUT_SLOT, lambda _: A)(_table(abi.G_TN_C, np.zeros_like)(row)),
}


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_kernel_is_caught(wrong, accumulate):
    scattered = wrong == "swapped lanes of C"
    case = _case(HOST, "complex64", "dd", accumulate=accumulate, scattered=scattered)
    run(build(case, HOST), HOST)
    with pytest.raises(AssertionError, match=r"element \d+|bytes outside|was written"):
        run(build(case, HOST), HOST, WRONG[wrong])


def test_the_error_bound_rejects_what_is_wrong():
    a = np.array([[1.0, 2.0]], np.float32)
    answer = oracle.einsum("ij,kj->ik", a, a)
    oracle.check(np.array([[5.0]], np.float32), answer)
    for value in (5.0001, -5.0, np.nan, np.inf, 0.0):
        with pytest.raises(AssertionError):
            oracle.check(np.array([[value]], np.float32), answer)
    with pytest.raises(AssertionError, match="shape"):
        oracle.check(np.array([5.0], np.float32), answer)
    with pytest.raises(AssertionError):
        oracle.check(np.array([[6]], np.int8), answer)
