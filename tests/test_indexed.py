"""Gather and scatter on every instruction set: strides, blocks, repeated places, indices out of range, guard pages."""

import numpy as np
import pytest
import strided
from hypothesis import HealthCheck, currently_in_test_context, given, note, settings
from hypothesis import strategies as st

from einsum_engine.dtypes import as_numpy
from einsum_engine.kernels import indexed, launch
from einsum_engine.kernels.cpu import indexed_abi, library
from einsum_engine.kernels.cpu.storage import STORAGES
from einsum_engine.kernels.isa import active_isa, host_isas
from einsum_engine.kernels.row import Operand

ISAS = pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
RANDOM = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def operand(rng, shape, dtype, exact=True):
    """Strided memory with canaries; 16-bit floats are made of whole numbers, too."""
    x = strided.make(rng, shape, "int16" if dtype in ("float16", "bfloat16") else dtype, exact=exact)
    if dtype in ("float16", "bfloat16"):
        kind = as_numpy(dtype)
        whole = rng.integers(-9, 9, shape).astype(np.float32).astype(kind)
        x.view[...] = whole.view(np.int16)
        x = strided.Strided(memory=x.memory, start=x.start, view=x.view.view(kind))
    return x


def check(isa, op, dtype, seed, loops, sizes, rest, threads=1, wrong=False) -> None:
    """``loops``: counts of the index loops; ``sizes``: of the indexed axes; ``rest``: of the other loops."""
    rng = np.random.default_rng(seed)
    if currently_in_test_context():
        note(
            f"replay: check(get({isa.name!r}), {op!r}, {dtype!r}, {seed}, {loops}, {sizes}, {rest}, {threads}, {wrong})"
        )
    many, dense = operand(rng, (*sizes, *rest), dtype), operand(rng, (*loops, *rest), dtype)
    arrays = [strided.make(rng, [n if rng.random() < 0.8 else 1 for n in loops], "int64") for _ in sizes]
    for x, size in zip(arrays, sizes):
        x.view[...] = rng.integers(-size, max(size, 1), x.view.shape)
    if wrong and arrays[-1].view.size:
        at = tuple(rng.integers(0, n) for n in arrays[-1].view.shape)
        arrays[-1].view[at] = rng.choice([sizes[-1], -sizes[-1] - 1, 1 << 62, -(1 << 63)])
    places = [np.broadcast_to(x.view, loops).strides for x in arrays]
    order = (dense, many) if op == "gather" else (many, dense)
    axes = range(len(loops))
    problem = indexed.IndexedProblem(
        op=op,
        dtype=dtype,
        arrays=tuple(
            indexed.IndexArray(size=size, step=many.view.strides[axis], axis=axis + 3)
            for axis, size in enumerate(sizes)
        ),
        loops=tuple((loops[a], dense.view.strides[a], *(p[a] for p in places)) for a in axes),
        rest=tuple(
            (n, many.view.strides[len(sizes) + a], dense.view.strides[len(loops) + a]) for a, n in enumerate(rest)
        ),
        operands=tuple(Operand(slot=slot, offset=x.start) for slot, x in enumerate((*order, *arrays))),
    )
    expected = [x.copy() for x in (*order, *arrays)]
    memory = {slot: x.memory for slot, x in enumerate(expected)}
    found = [x.memory.ctypes.data if x.memory.size else 0 for x in (*order, *arrays)]
    rows = problem.lower(threads)
    assert all(sum(row.tasks for row in rows) >= 1 for _ in rows)
    try:
        indexed.reference(problem, memory)
    except IndexError as error:
        with pytest.raises(IndexError) as caught:
            launch.run(rows, found, isa)
        assert str(caught.value) == str(error)
        if op == "gather":  # which elements were copied before is not said
            return
    else:
        launch.run(rows, found, isa)
    for got, other in zip((*order, *arrays), expected, strict=True):
        strided.same_bytes(got, other, problem)


@ISAS
@RANDOM
@given(st.data())
def test_any_strides_and_indices(isa, data):
    op = data.draw(st.sampled_from(indexed.OPERATIONS))
    dtype = data.draw(
        st.sampled_from(
            sorted(STORAGES) if op == "scatter_add" else ["int8", "int16", "float32", "complex128", "int64"]
        )
    )
    loops = data.draw(st.lists(st.integers(0, 5), max_size=3))
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
    rest = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 18]), max_size=2))
    check(
        isa,
        op,
        dtype,
        data.draw(st.integers(0, 999)),
        loops,
        sizes,
        rest,
        data.draw(st.sampled_from([1, 4])),
        data.draw(st.booleans()),
    )


@ISAS
@pytest.mark.parametrize("op", indexed.OPERATIONS)
@pytest.mark.parametrize("wrong", [False, True])
def test_blocks_of_indices(isa, op, wrong):
    for count in (indexed_abi.BLOCK - 1, indexed_abi.BLOCK, 2 * indexed_abi.BLOCK + 3):
        check(isa, op, "float32", count, [count], [9], [], wrong=wrong)
        check(isa, op, "int16", count, [2, count], [3, 4], [2], wrong=wrong)


@ISAS
@pytest.mark.parametrize("op", indexed.OPERATIONS)
def test_runs_of_every_length(isa, op):
    for run in (*range(1, 10), 31, 32, 33, 200):
        check(isa, op, "int8", run, [3], [4], [run])
        check(isa, op, "float64", run, [2], [2], [2, run])


@pytest.mark.parametrize("op", indexed.OPERATIONS)
@pytest.mark.parametrize("rest", [[], [24]])
def test_tasks_share_large_work(op, rest):
    check(active_isa(), op, "float64", 5, [1200], [70], rest, threads=3)


@pytest.mark.parametrize("name", indexed.names())
def test_every_kernel_is_built_and_nothing_else(name):
    assert library.address(name, active_isa())
    with pytest.raises(KeyError):
        library.address(f"{name}_more", active_isa())
