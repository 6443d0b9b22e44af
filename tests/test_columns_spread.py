"""Columns that come are asked for: kernels that write down each address they ask for, in a process and a cache of their own."""

import pytest
from asked_lines import found_by

from einsum_engine.kernels import isa

SCRIPT = """
import json
from dataclasses import replace
import numpy as np
from asked_lines import Log
from gemm_cases import B, Case, build, run
from einsum_engine.kernels import isa, tiles

log = Log()
row = isa.get("avx2")


def missed(dtype, tile, panels, k, order):
    item, height = tiles.ITEMSIZE[dtype], tile[0] * tiles.elements(row, dtype)
    count = (132 << 10) // (k * item) // tile[1] * tile[1] + tile[1] - 1
    ready = build(Case(dtype=dtype, tile=tile, valid=(height,) * panels, n=count, k=k, kc=2048, a="panels", gap=112, seed=k), row)
    tn_b = order(ready.problem.tn_b)
    ready = replace(ready, problem=replace(ready.problem, tn_b=tn_b))
    with log:
        run(ready, row)
    asked = set((log.addresses >> 6).tolist())
    begin = ready.memory[B].ctypes.data + tn_b[tile[1] :]  # the first strip is there at once
    wanted = [set(range(at >> 6, (at + k * item - 1 >> 6) + 1)) for at in begin.tolist()]
    return sum(len(each - asked) for each in wanted) / sum(map(len, wanted)), len(log.addresses) / sum(map(len, wanted))


shuffled = np.random.default_rng(5).permutation
found = {}
for dtype, tile in (("float32", (2, 6)), ("float64", (2, 6)), ("float64", (3, 4)), ("complex64", (2, 3)), ("complex64", (1, 4)), ("complex128", (2, 3))):
    assert tile in tiles.tiles(row, dtype), tile
    for panels in (1, 2, 3, 5):
        for name, order in (("in order", lambda x: x), ("shuffled", shuffled)):
            found[f"{dtype} {tile} {panels} {name}"] = missed(dtype, tile, panels, 12 * 64 // tiles.ITEMSIZE[dtype] + 5, order)
print(json.dumps(found))
"""


@pytest.mark.skipif(all(row.name != "avx2" for row in isa.host_isas()), reason="tiles of 256 bits alone do it")
def test_all_lines_of_the_columns_that_come(tmp_path):
    """Of each column but those of the first strip, wherever it lies, however many tiles share; few lines several times."""
    found = found_by(SCRIPT, tmp_path)
    assert len(found) == 6 * 4 * 2
    for name, (missed, times) in found.items():
        assert missed == 0, name
        assert times < 16, name
