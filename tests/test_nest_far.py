"""Products element by element that do not fit in cache: which boxes they are cut into."""

import numpy as np
import pytest
from nest_case import Case, item_of

from einsum_engine.kernels import nest_boxes, nest_rows
from einsum_engine.kernels.cpu import nest_abi
from einsum_engine.kernels.cpu.units import LINE
from einsum_engine.kernels.isa import host_isas
from einsum_engine.kernels.nest import NestProblem, lower

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)


@ISAS
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("run", [2, 3, 7])
def test_products_of_an_input_that_departs_from_the_output_use_its_lines_at_once(isa, dtype, run, monkeypatch):
    """Both have runs of a few entries, which are rows of a transposed matrix in the input."""
    item, rows, columns = item_of(dtype), 700, 40
    out, other = (run * item, rows * run * item), (columns * run * item, run * item)
    dims = ((run, item, item, 0), (rows, out[0], other[0], item), (columns, out[1], other[1], rows * item))
    problem = NestProblem(op="mul", dims=dims, out=dtype, a=dtype, b=dtype)
    monkeypatch.setattr(nest_rows, "STREAM_BYTES", run * rows * columns * item)
    before = lower(problem).rows[0].words
    assert before[nest_abi.N_J] * LINE < rows * LINE <= nest_boxes.CACHE_BYTES, "lines that are still there are no reason"
    monkeypatch.setattr(nest_boxes, "CACHE_BYTES", rows * LINE - 1)
    row = lower(problem).rows[0]
    lines = row.words[nest_abi.N_O] // run
    assert 1 < lines < rows and row.words[nest_abi.N_O] * item >= nest_rows.STREAM_ROW
    assert row.words[nest_abi.N_A_MODE] >= nest_abi.STAGED and row.words[nest_abi.N_FLAGS] & nest_abi.STREAM
    begin = row.words[nest_abi.N_A_FAR] // 8
    along = row.tables[nest_abi.N_TABLE][begin : begin + min(columns, row.words[nest_abi.N_J])]
    assert set(np.diff(along)) == {run * item}, "J goes along the lines of the input"
    for threads, shift in ((1, 0), (2, item)):
        Case(problem, seed=run, threads=threads, shift=shift).check(isa)
