"""Operations of a request, before any layout is chosen: what their values hold and what they do."""

from math import prod

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import cost
from einsum_engine.planners.build import compute_dtype
from einsum_engine.planners.operations import OperationList, itemsize

CASES = {
    "a chain": ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)], ["float64"] * 3),
    "a diagonal": ("iij,jk->ik", [(3, 3, 4), (4, 5)], ["float32"] * 2),
    "sizes of one": ("ij,jk,k->ik", [(3, 1), (4, 5), (1,)], ["float32"] * 3),
    "sums before": ("ijx,jky->ik", [(3, 4, 2), (4, 5, 7)], ["int16"] * 2),
    "no axes": (",ij->", [(), (3, 4)], ["complex64"] * 2),
    "casts": ("ij,jk->ik", [(3, 4), (4, 5)], ["float16", "complex128"]),
    "unsigned": ("ij,jk->ik", [(3, 4), (4, 5)], ["uint8"] * 2),
    "pieces of a sum": ("ka,kb->ab", [(20_000, 48), (20_000, 40)], ["float32"] * 2),
    "lanes along a sum": ("bij,bjk->bik", [(512, 16, 2), (512, 2, 2)], ["float32"] * 2),
}


@pytest.mark.parametrize("text, shapes, dtypes", CASES.values(), ids=CASES)
def test_sizes_are_known_when_values_are_made(text, shapes, dtypes):
    request = engine.compile(text, *[np.ones(*each) for each in zip(shapes, dtypes)], threads=2).plan.request
    listed = OperationList(request, compute_dtype(request))
    listed.build()
    for value in listed.values:
        assert value.size == prod([listed.sizes[index] for index in value.term]) * itemsize(value.dtype), value
        assert listed.nbytes(value) == value.size
    machine = cost.typical_machine("avx2", 256, True)
    seconds = listed.rooflines(machine)
    for operation in listed.operations:
        flops, moved = listed.work(operation)
        assert moved == sum([value.size for value in (*operation.inputs, operation.output)])
        assert seconds[id(operation)] == cost.seconds(flops, moved, listed.compute, machine)
