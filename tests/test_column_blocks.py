"""A matrix that few rows of another one are multiplied by is read in place, in blocks of columns and terms."""

import numpy as np
import oracle
import pytest
from asked_lines import found_by
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import made_anew, plan, run

from einsum_engine.kernels import isa
from einsum_engine.kernels.cpu import abi
from einsum_engine.planners import column_blocks
from einsum_engine.planners.column_blocks import column_block

SCRIPT = """
import json
import numpy as np
from asked_lines import Log
from einsum_engine.kernels.cpu import abi
from plan_cases import plan, run

log = Log()
found = {}
for dtype, rows, terms, columns in (("float64", 21, 300, 400), ("float32", 13, 501, 698), ("complex64", 7, 150, 401), ("float64", 24, 90, 1004)):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((rows, terms), (terms, columns)))
    made = plan("ak,kb->ba", [a, b], isa="avx2", threads=1)
    (words,) = [step.args.words for step in made.steps if step.family == "gemm"]
    assert words[abi.G_PACK_MODE] & abi.FETCH_B and words[abi.G_N_BLOCK] < columns, words
    with log:
        np.testing.assert_array_equal(run(made, [a, b]), (a @ b).T)
    asked = log.addresses
    begin, end = b.ctypes.data, b.ctypes.data + b.nbytes
    lines = asked[(asked >= begin) & (asked < end)] >> 6
    wanted = {at >> 6 for row in range(terms) for at in range(begin + row * b.strides[0], begin + (row * columns + columns - 8) * b.itemsize)}
    found[f"{dtype} {rows} {terms} {columns}"] = len(wanted - set(lines.tolist())), len(lines) / len(wanted)
print(json.dumps(found))
"""


@pytest.mark.skipif(all(row.name != "avx2" for row in isa.host_isas()), reason="tiles of 256 bits alone do it")
def test_all_lines_of_the_blocks_that_come(tmp_path):
    """Each line but those of the last columns is asked for, by kernels that write down where they ask, and few of them often."""
    found = found_by(SCRIPT, tmp_path)
    assert len(found) == 4
    for name, (missed, times) in found.items():
        assert missed == 0, name
        assert times < 4, name


@pytest.fixture
def small(monkeypatch):
    """Products of any size are in blocks of a few terms and columns, on all cores."""
    with made_anew():
        monkeypatch.setattr(column_blocks, "blocks_in_columns", lambda row: True)
        monkeypatch.setattr(column_blocks, "LEAST_BYTES", 0)
        for name, nbytes in (("NEAR_BYTES", 2048), ("BLOCK_BYTES", 512), ("PIECE_BYTES", 16)):
            monkeypatch.setattr(column_blocks, name, nbytes)
        yield


def _blocks(made) -> list[tuple[int, int]]:
    """Terms and columns of the blocks of each product that asks for them."""
    words = [step.args.words for step in made.steps if step.family == "gemm" and step.kernel.endswith("d")]
    return [(each[abi.G_KC], each[abi.G_N_BLOCK]) for each in words if each[abi.G_PACK_MODE] & abi.FETCH_B]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int8", "int32", "int64", "bool"])
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_results(small, row, dtype, threads):
    """Panels that are filled and not, blocks that divide K and N and do not, up to the ends of operands."""
    rng, count = np.random.default_rng(0), 0
    for rows, terms, columns in ((1, 90, 40), (3, 61, 37), (5, 64, 64), (8, 33, 50), (13, 47, 29), (21, 100, 31), (24, 40, 70)):
        for flush in ("start", "end"):
            a, b = (oracle.place(oracle.random(rng, shape, dtype, exact=True), flush) for shape in ((rows, terms), (terms, columns)))
            made = plan("ak,kb->ba", [a, b], isa=row.name, threads=threads)
            count += len(_blocks(made))
            oracle.check(run(made, [a, b]), oracle.einsum("ak,kb->ba", a, b), context=(rows, terms, columns, flush))
    assert count or not dtype.startswith("float")  # of others some ISAs have tiles that pack


@given(data=st.data())
def test_random_products(data):
    """Orders of the operands' indices, of the result's, sizes from one on, constants of every size."""
    with pytest.MonkeyPatch.context() as patch, made_anew():
        patch.setattr(column_blocks, "blocks_in_columns", lambda row: True)
        patch.setattr(column_blocks, "LEAST_BYTES", 0)
        for name in ("NEAR_BYTES", "BLOCK_BYTES"):
            patch.setattr(column_blocks, name, data.draw(st.integers(1, 4096), label=name))
        sizes = {index: data.draw(st.integers(1, 70), label=index) for index in "akb"}
        first, second, out = (data.draw(st.permutations(term), label=term) for term in ("ak", "kb", "ab"))
        text = f"{''.join(first)},{''.join(second)}->{''.join(out)}"
        dtype, threads = data.draw(st.sampled_from(["float32", "float64", "complex64", "int64"])), data.draw(st.integers(1, 3))
        row = data.draw(st.sampled_from([each.name for each in isa.host_isas()]))
        rng = np.random.default_rng(data.draw(st.integers(0, 99), label="seed"))
        arrays = [oracle.place(oracle.random(rng, [sizes[i] for i in term], dtype, exact=True)) for term in (first, second)]
        oracle.check(run(plan(text, arrays, isa=row, threads=threads), arrays), oracle.einsum(text, *arrays), context=text)


@pytest.mark.parametrize(
    "text, shapes, taken",
    [
        ("ak,kb->ba", [(21, 480), (480, 404)], True),
        ("ka,kb->ba", [(480, 21), (480, 404)], True),
        ("kb,ka->ba", [(480, 404), (480, 21)], True),
        ("kb,ak->ba", [(480, 404), (21, 480)], True),
        ("kb,ak->ab", [(480, 404), (21, 480)], False),  # the result lies along the matrix
        ("ak,kb->ba", [(21, 480), (480, 6000)], True),  # columns in two dimensions
        ("ak,kb->ba", [(21, 7), (7, 4000)], False),  # few terms, at places that tables have
        ("ak,kb->ba", [(21, 48), (48, 300)], False),  # in cache
        ("ak,kb->ba", [(200, 480), (480, 404)], False),  # packing pays
        ("ak,bk->ba", [(21, 480), (404, 480)], False),  # runs along the terms
        ("gak,gkb->gba", [(3, 21, 480), (3, 480, 404)], False),  # a batch
    ],
)
def test_which_products(monkeypatch, text, shapes, taken):
    """Of float64 with 256 bits."""
    with made_anew():
        monkeypatch.setattr(column_blocks, "blocks_in_columns", lambda row: row.vector_bits == 256)
        made = plan(text, [np.empty(shape) for shape in shapes], isa="avx2", threads=1)
        assert bool(_blocks(made)) == taken, made.steps


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("columns", [1, 7, 40, 404, 3001])
@pytest.mark.parametrize("lanes, terms", [(8, 3), (24, 480), (72, 100_000)])
def test_blocks(lanes, terms, columns, threads):
    """All terms and columns are in blocks; those of a thread are several where rows are long; caches have room for them."""
    found = column_block(lanes=lanes, columns=columns, nr=4, terms=terms, item=8, threads=threads)
    blocks = -(-terms // found.terms)
    assert found.terms >= 1 and found.columns % 4 == 0 and (blocks - 1) * found.terms < terms
    assert found.terms * (lanes * 8 + 64) <= max(column_blocks.NEAR_BYTES, lanes * 8 + 64)
    assert found.terms * (found.columns - 4) * 8 <= column_blocks.BLOCK_BYTES
    if columns == 3001 and threads > 1:
        assert -(-columns // found.columns) >= 4 * threads
