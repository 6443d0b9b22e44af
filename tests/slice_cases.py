"""Plans whose steps are done slice by slice: how they are made, and what must be so of their strands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from plan_cases import made_anew

import einsum_engine as engine
from einsum_engine import cost
from einsum_engine.executor import bind
from einsum_engine.kernels.cpu import abi

RANDOM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
DTYPES = ("float32", "float64", "complex64", "complex128", "float16", "int32", "int64", "bool")
SMALL_CACHE = 1 << 10  # bytes, so that small networks have slices


@pytest.fixture(autouse=True)
def anew():
    """Of each module that imports it: no plan is one of those that were made with other constants."""
    with made_anew():
        yield


def machine(isa, cache_bytes=SMALL_CACHE):
    return replace(cost.typical_machine(isa.name, isa.vector_bits, isa.fma), cache_bytes=cache_bytes)


def operands(text, sizes, dtype, seed=0):
    rng = np.random.default_rng(seed)
    terms = text.split("->")[0].split(",")
    return [rng.integers(-1, 2, [sizes[i] for i in term]).astype(dtype) for term in terms]


def request_of(text, arrays, path, threads=1, **more):
    return replace(engine.compile(text, *arrays, optimize=path, threads=threads).plan.request, **more)


def sliced(plan):
    """How many slices a plan has."""
    return max(step.block[1] for step in plan.steps)


def run(plan, arrays):
    out = np.empty(plan.expr.output_shape, plan.dtype)
    bind(plan).run(arrays, out)
    return out


def strands_of(plan):
    """Steps of each strand; of one thread all that are done by slices are one."""
    found = [step for step in plan.steps if step.kernel == "blocks"]
    if not found:
        return [[step for step in plan.steps if step.depth]]
    (step,) = found
    starts = (step.number + step.args.tables[abi.BLOCK_STARTS]).tolist()
    assert starts[0] == step.number + 1 and starts[-1] == len(plan.steps) == step.args.words[abi.NEXT]
    return [plan.steps[first:end] for first, end in zip(starts, starts[1:])]


def check_strands(plan):
    """A strand writes to the arena where no other strand and no step before writes; all slices are there, in order."""
    found = strands_of(plan)
    before = [step for step in plan.steps if not step.depth and step.kernel != "blocks"]
    assert all(step.number < found[0][0].number for step in before)
    numbers = [step.block[0] for steps in found for step in steps]
    assert numbers == sorted(numbers) and set(numbers) == set(range(sliced(plan)))
    places = [_written(plan, steps) for steps in (before, *found)]
    for number, mine in enumerate(places):
        for other in places[:number]:
            for low, high in mine:
                assert all(high <= start or end <= low for start, end in other)
    assert not any(step.args.packed.parallel for steps in found for step in steps)


def _written(plan, steps):
    """Bytes of the arena, by rows that say where their output is."""
    arena, found = len(plan.expr.inputs) + 1, []
    for step in steps:
        words, buffer = step.args.words, plan.buffers[step.output]
        if step.family not in ("pack", "copy", "fused") and words.get(abi.OUT_SLOT) == arena:
            found.append((words[abi.OUT_OFFSET], words[abi.OUT_OFFSET] + buffer.nbytes))
    return found


def check_exact(out, text, arrays, plan):
    """Of small whole numbers, all of which the dtype of the result has."""
    wide = [a.astype(np.complex128 if a.dtype == np.complex64 else np.float64) for a in arrays]
    wanted = np.einsum(text, *wide, optimize=True)
    assert np.array_equal(out.astype(wanted.dtype), wanted.astype(plan.dtype).astype(wanted.dtype))
