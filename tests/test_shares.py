"""Tasks of unequal size: every part of a product once, threads done together, results as with equal blocks."""

import numpy as np
import pytest
from oracle import random
from plan_cases import operands, plan, run

import einsum_engine as engine
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.isa import host_isas
from einsum_engine.planners.shares import PACKED_COLUMNS, uneven_shares
from einsum_engine.planners.tasks import gemm_blocks


def _shares(panels, columns, *, nr=6, grain=1, most=8, threads=2, panel_bytes=90_000, packs=True):
    return uneven_shares(
        panels=panels,
        columns=columns,
        nr=nr,
        grain=grain,
        most=most,
        threads=threads,
        panel_bytes=panel_bytes,
        packs=packs,
    )


@pytest.mark.parametrize("panels", [1, 2, 5, 43, 300, 1000])
@pytest.mark.parametrize("columns", [1, 6, 7, 1000])
@pytest.mark.parametrize("threads", [2, 3, 16])
def test_shares_cover_all_once(panels, columns, threads):
    for grain in (1, 4):
        shares = _shares(panels, columns, grain=grain, threads=threads)
        seen = np.zeros((panels, columns), np.int64)
        for first, end, left, right in shares:
            seen[first:end, left:right] += 1
            assert 0 < end - first <= 8 and first % grain == 0 and (end % grain == 0 or end == panels)
            assert left % 6 == 0 and (right % 6 == 0 or right == columns)
        assert (seen == 1).all()


@pytest.mark.parametrize("panels, columns", [(43, 2048), (44, 2112), (61, 1448), (16, 1024)])
def test_two_threads_are_done_together(panels, columns):
    """Each takes the next task when it is done with one: at most half a panel of waiting at the end."""
    done = [0.0, 0.0]
    for first, end, left, right in _shares(panels, columns):
        done[done.index(min(done))] += (end - first) * (right - left) / columns
    assert abs(done[0] - done[1]) <= 0.5


@pytest.mark.parametrize(
    "equation, sizes, dtype",
    [
        ("ij,jk->ik", {"i": 331, "j": 900, "k": 457}, "float32"),
        ("ca,bc->ba", {"a": 457, "b": 331, "c": 900}, "complex64"),
        ("xij,jk->xki", {"x": 7, "i": 71, "j": 401, "k": 500}, "float64"),
        ("fbea,ecfd->dcba", {"a": 24, "b": 20, "c": 18, "d": 26, "e": 12, "f": 14}, "float32"),
    ],
)
def test_products_in_shares(equation, sizes, dtype):
    """Of small whole numbers, so that sums in double precision are exact."""
    arrays = operands(equation, sizes, dtype)
    made = plan(equation, arrays, threads=2)
    (row,) = [step.args for step in made.steps if step.family == "gemm"]
    assert abi.G_SHARES in row.tables and len(row.tables[abi.G_SHARES]) == abi.SHARE_WORDS * row.tasks
    wide = [array.astype(np.promote_types(dtype, "float64")) for array in arrays]
    assert (run(made, arrays) == np.einsum(equation, *wide, optimize=True)).all()


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("outer, panels, columns", [(1, 1, 1000), (1, 2, 24), (1, 2, 1001), (3, 1, 40), (1, 5, 7)])
def test_pieces_of_columns_pay_for_packing_again(threads, outer, panels, columns):
    """Tasks that pack A are never more than those that do not, and the thread that has most of them is done no later."""
    sizes = dict(panel_bytes=40_000, column_bytes=0, nr=6, grain=1)
    blocks = [
        gemm_blocks(outer=outer, panels=panels, columns=columns, threads=threads, packed_columns=packed, **sizes)
        for packed in (0, PACKED_COLUMNS)
    ]
    tasks = [outer * -(-panels // block[1]) * -(-columns // block[2]) for block in blocks]
    done = [-(-count // threads) * block[1] * (PACKED_COLUMNS + block[2]) for count, block in zip(tasks, blocks)]
    assert blocks[0][:2] == blocks[1][:2] and all(block[2] % 6 == 0 or block[2] == columns for block in blocks)
    assert tasks[1] <= tasks[0] and done[1] <= 1.15 * done[0]


@pytest.mark.parametrize("isa", [isa.name for isa in host_isas()])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int64", "float16"])
@pytest.mark.parametrize("equation", ["amk,kn->amn", "mckhnf,clfhq->nklmq"])
def test_few_columns_of_operands_that_tasks_pack(equation, dtype, isa):
    sizes = {"a": 3, "m": 100, "k": 200, "n": 33} if "a" in equation else dict.fromkeys("mckhnfl", 6) | {"q": 5}
    arrays = operands(equation, sizes, dtype)
    made = plan(equation, arrays, threads=2, isa=isa)
    exact = dtype if dtype == "int64" else np.promote_types(dtype, "float64")  # sums of int64 wrap
    wide = [array.astype(exact) for array in arrays]
    assert (run(made, arrays) == np.einsum(equation, *wide, optimize=True).astype(made.dtype)).all()


def test_what_surrounds_a_product_goes_by_blocks(monkeypatch):
    """An epilogue has tables for blocks of panels: its product has equal tasks."""

    monkeypatch.setenv("EINSUM_ENGINE_NUM_THREADS", "2")

    def layer(x, w, b):
        return np.maximum(x @ w + b, 0)

    shapes = (400, 300), (300, 500), (500,)
    arrays = [random(np.random.default_rng(n), shape, "float32", True) for n, shape in enumerate(shapes)]
    assert (engine.jit(layer)(*arrays) == layer(*(a.astype("float64") for a in arrays))).all()


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64", "float16"])
def test_columns_along_an_operand_that_runs_along_slow_ones(dtype):
    """B runs along d, which is slow in the result: columns of neighbours in B are packed together, wherever they go."""
    equation, sizes = "fbea,ecfd->dcba", {"a": 120, "b": 6, "c": 7, "d": 21, "e": 12, "f": 14}
    shapes = [[sizes[index] for index in term] for term in ("fbea", "ecfd")]
    drawn = [random(np.random.default_rng(n), shape, "int8") for n, shape in enumerate(shapes)]
    arrays = [(array % 5).astype(dtype) for array in drawn]
    made = plan(equation, arrays, threads=2)
    (packed,) = [step.args for step in made.steps if step.family == "pack"]
    assert packed.words[abi.G_PACK_MODE] == abi.LANES_RUN
    wide = [array.astype(np.promote_types(dtype, "float64")) for array in arrays]
    assert (run(made, arrays) == np.einsum(equation, *wide, optimize=True).astype(dtype)).all()
