"""Terms at equal distances: the K loop that has them without tables, at its turns and runs, and what plans say of them."""

from dataclasses import replace

import numpy as np
import pytest
import test_gemm
from gemm_cases import Case, build, run, with_modes
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import drawn_operands, made_anew, plan
from plan_cases import run as run_plan
from test_assembly import _loops

from einsum_engine.kernels import gemm, isa, tiles
from einsum_engine.kernels.cpu import abi, codegen, cores, generators
from einsum_engine.kernels.cpu.tile import SEVERAL

IN_PLACE = tuple(kernel for kernel in test_gemm.KERNELS if "d" in kernel[3])
every_kernel = test_gemm._each(IN_PLACE)
PACKS = ("LANES_RUN", "K_RUN")


def _ready(row, dtype, tile, modes, k, **more):
    height = tile[0] * tiles.elements(row, dtype)
    case = Case(dtype=dtype, tile=tile, valid=(height, max(1, height - 1)), n=tile[1] + 1, k=k, seed=k, **more)
    return build(with_modes(case, modes, *PACKS), row)


def _turned(ready, first: int, even: int):
    """The same terms beginning with the one at ``first``, behind which those before it come."""
    p = ready.problem
    tables = {name: np.roll(getattr(p, name), -first) for name in ("tk_a", "tk_b")}
    return replace(ready, problem=replace(p, even=even, **tables))


@every_kernel
def test_turns_of_several_terms_and_the_rest(row, dtype, tile, modes):
    """Between pages that end the process, whole tiles and others."""
    for k in (1, 2, 3, SEVERAL, SEVERAL + 1, 2 * SEVERAL + 3):
        for flush in ("start", "end"):
            run(_ready(row, dtype, tile, modes, k, flush=flush), row)
    run(_ready(row, dtype, tile, modes, 21, kc=8), row)


@every_kernel
def test_runs_of_terms_and_terms_backwards(row, dtype, tile, modes):
    """Two runs with a jump between them, and a K that goes down in memory."""
    for half in (1, 2, SEVERAL, SEVERAL + 1):
        run(_turned(_ready(row, dtype, tile, modes, 2 * half), half, half), row)
    ready = _ready(row, dtype, tile, modes, 2 * SEVERAL + 1)
    back = {name: getattr(ready.problem, name)[::-1].copy() for name in ("tk_a", "tk_b")}
    run(replace(ready, problem=replace(ready.problem, **back)), row)


LONG = {"float32": 224, "float64": 112, "complex64": 112, "complex128": 56}  # terms of a column of 14 lines, of which tiles ask for the next


@test_gemm._each(tuple(kernel for kernel in IN_PLACE if kernel[3][1] == "d" and kernel[1] in LONG))
@pytest.mark.parametrize("panels", [1, 2, 5])
def test_long_columns(row, dtype, tile, modes, panels):
    """Those of 128 KB together, where the first tiles of a strip ask for the next one: several panels, a last strip that is
    not whole, terms beyond the last turn, and blocks of K."""
    height = tile[0] * tiles.elements(row, dtype)
    valid = (height,) * (panels - 1) + (max(1, height - 1),)
    for k, kc in ((LONG[dtype], 256), (LONG[dtype] + 3, 1024), (2 * LONG[dtype], LONG[dtype])):
        count = (132 << 10) // (min(k, kc) * tiles.ITEMSIZE[dtype]) // tile[1] * tile[1] + 1
        case = Case(dtype=dtype, tile=tile, valid=valid, n=count, k=k, kc=kc, seed=k)
        run(build(with_modes(case, modes, *PACKS), row), row)
    case = Case(dtype=dtype, tile=tile, valid=valid, n=count, k=LONG[dtype] + 3, flush="end")
    run(build(with_modes(case, modes, *PACKS), row), row)


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_a_wrong_distance_is_found(row):
    """Terms that are said to be evenly apart and are not: what reads the tables differs."""
    tile = tiles.tiles(row, "float32")[0]
    ready = _ready(row, "float32", tile, "dd", 12, gap=4096)
    run(_turned(ready, 8, 4), row)
    with pytest.raises(AssertionError, match="expected"):
        run(_turned(ready, 4, 12), row)


@pytest.mark.parametrize("even, kc, k, said", [(12, 256, 12, 12), (4, 256, 12, 4), (4, 8, 12, 4), (4, 6, 12, 0), (12, 8, 12, 12), (0, 8, 12, 0)])
def test_blocks_of_k_begin_with_a_run(even, kc, k, said):
    row = isa.get("sse2")
    ready = _ready(row, "float32", tiles.tiles(row, "float32")[0], "dd", k)
    assert gemm.lower(replace(ready.problem, even=even, kc=kc)).words[abi.G_EVEN] == said


EXPRESSIONS = ("mk,kn->mn", "km,kn->mn", "mk,nk->nm", "bmk,bkn->bmn", "klm,kln->mn", "lkm,kln->mn", "mkl,nlk->mn", "kxl,xlkn->xn", "klpm,lkpn->mn")


@settings(max_examples=40, deadline=None, print_blob=True)
@given(st.data())
def test_what_plans_say_is_so(data):
    """In each operand that a product reads in place, so many terms are one distance apart, and blocks are whole runs."""
    text, arrays = drawn_operands(data, EXPRESSIONS, back=True)
    made = plan(text, arrays)
    for step in made.steps:
        if step.family != "gemm" or not tiles.reads_in_place(step.kernel):
            continue
        words, tables = step.args.words, step.args.tables
        even, modes = words[abi.G_EVEN], step.kernel.rsplit("_", 1)[1]
        for mode, table in zip(modes, (abi.G_TK_A, abi.G_TK_B)):
            if mode == "d" and even:
                runs = tables[table][: words[abi.G_K] // even * even].reshape(-1, even)
                steps = np.diff(runs, axis=1)
                assert (steps == steps[:1, :1]).all() and words[abi.G_K] % even == 0
        assert even == 0 or even >= words[abi.G_K] or words[abi.G_KC] % even == 0 or words[abi.G_KC] >= words[abi.G_K]
    expected = np.einsum(text, *[array.astype(int) for array in arrays], optimize=True)
    np.testing.assert_array_equal(run_plan(made, arrays), expected)


def test_terms_of_one_index_and_of_several_that_are_one():
    """64 of 64; all 24 x 8 of two dimensions that are one in both; the 24 of the faster one; nothing where it has few."""
    def said(text, *shapes):
        (step,) = [step for step in plan(text, [np.empty(shape, np.float32) for shape in shapes], threads=1).steps if step.family == "gemm"]
        return step.args.words[abi.G_EVEN] if tiles.reads_in_place(step.kernel) else None

    assert said("mk,kn->mn", (64, 64), (64, 64)) == 64
    assert said("klm,kln->mn", (8, 6, 48), (8, 6, 24)) == 48
    assert said("klm,lkn->mn", (3, 24, 48), (24, 3, 24)) in (24, 0)
    assert said("klm,lkn->mn", (3, 4, 48), (4, 3, 24)) == 0


@pytest.mark.parametrize("row", [row for row in isa.host_isas() if row.vector_bits >= 256], ids=lambda row: row.name)
def test_no_address_of_a_column_is_read_from_the_stack(row):
    """In a turn of the loop that asks for nothing; 4 columns leave registers for all else. With `evenly._kept` out of the way
    LLVM reads 16 of them there."""
    text = codegen.assembly(generators.build("gemm_float32_1x4_dd", row), row)
    loops = [loop for loop in _loops(text) if sum("fmadd" in line or "fmla" in line for line in loop) == 4 * SEVERAL]
    plain = [loop for loop in loops if not any("prefetch" in line for line in loop)]
    assert plain and not any("(%rsp)" in line or "(%rbp)" in line for loop in plain for line in loop)


@pytest.mark.skipif(all(row.name != "avx512" for row in isa.host_isas()), reason="tiles of 512 bits alone do it")
@pytest.mark.parametrize("room, shapes, kept", [
    (160 << 10, ((200, 96), (192, 96)), True),  # 75 KB in columns along K, used by four panels
    (0, ((200, 96), (192, 96)), False),  # on other cores
    (160 << 10, ((400, 256), (224, 256)), False),  # more than is read in place
    (160 << 10, ((40, 1024), (192, 1024)), False),  # columns whole pages apart
])  # fmt: skip
def test_columns_of_b_that_stay_where_they_are(monkeypatch, room, shapes, kept):
    monkeypatch.setattr(cores, "here", lambda: replace(cores.PLAIN, columns_in_place=room))
    with made_anew():
        steps = plan("mk,nk->mn", [np.empty(shape, np.float32) for shape in shapes], isa="avx512", threads=1).steps
    (kernel,) = [step.kernel for step in steps if step.family == "gemm"]
    assert kernel.endswith("d") == kept
