"""No expression needs a kernel that warm-up does not compile, and a process with a warm cache compiles nothing."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import random_cases
from random_cases import KERNEL_DTYPES, Case, draw_case

import einsum_engine as engine
from einsum_engine import contractor, measured, routes
from einsum_engine.explain import REFERENCE_MARK, explain, is_reference
from einsum_engine.kernels import isa, registry
from einsum_engine.kernels.cpu import generators, library

UNSEEN = 1000
RUN = 300
# Wide ranges and large tensors: plans are made, but nothing is computed.
SIZES = (1, 2, 2, 3, 4, 5, 7, 8, 16, 17, 31, 64, 100, 250, 1000)
EACH_ISA = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)


def _unseen(seed: int) -> Case:
    """Of another seed than any other test has."""
    large = dict(sizes=SIZES, points=1 << 33, elements=1 << 20) if seed % 2 else {}
    return draw_case(random.Random(10_000_000 + seed).choice, dtypes=KERNEL_DTYPES, **large)


class _Unbound:
    """Stands for a bound plan: nothing is compiled or loaded, and nothing can be called."""

    entry = None

    def __init__(self, plan):
        pass

    def freeze(self, addresses):
        pass


@pytest.fixture
def plans(monkeypatch):
    """The plans that were made."""
    made = []
    build = contractor.build_plan

    def kept(*args):
        made.append(build(*args))
        return made[-1]

    monkeypatch.setattr(contractor, "build_plan", kept)
    monkeypatch.setattr(routes, "bind", _Unbound)
    return made


def _plan(case: Case) -> None:
    """Makes every plan that a call of this case would make."""
    arrays = [operand.outline() for operand in case.operands]
    options = case.keywords | {"constants": case.constants}
    # Not copied: constants would be read.
    constants = {position: arrays[position] for position in options.pop("constants")}
    small = all(array.size <= 4096 for array in constants.values())
    if small:
        constants = {position: np.zeros(array.shape, array.dtype) for position, array in constants.items()}
    f = engine.compile(case.expression, *arrays, constants=constants if small else {}, **options)
    if case.out is not None:
        kinds = tuple((array.dtype, array.strides) for array in arrays)
        out = (case.out.kind, case.out.strides)
        scaled = "alpha" in options
        route = f._contractor.route(kinds, out, scaled)
        if not getattr(route, "direct", True):
            f._contractor.route(kinds, None, scaled)


@EACH_ISA
def test_every_kernel_of_unseen_expressions_is_one_of_warm_up(row, plans, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_ISA", row.name)
    names = set(registry.kernel_names(row))
    assert measured.machine(row).isa == row.name  # measured before the first plan, once for each machine
    before = library.compilations
    used = set()
    for seed in range(UNSEEN):
        case = _unseen(seed)
        plans.clear()
        try:
            _plan(case)
        except BaseException as error:
            error.add_note(f"seed {seed}, {row.name}: {random_cases.replay(case)}")
            raise
        for plan in plans:
            assert plan.isa == row.name
            kernels = {name for step in plan.steps for name in step.args.kernels.values()}
            assert kernels <= names, f"seed {seed}: {kernels - names} of {explain(plan)}"
            assert not any(is_reference(step) for step in plan.steps) and REFERENCE_MARK not in explain(plan)
            used |= {step.family for step in plan.steps}
    assert library.compilations == before
    # What was drawn asks for every family but those of programs.
    missing = set(registry.FAMILIES) - {"walk", "fused", "indexed", "sort", "random", "guard"} - used
    assert not missing, sorted(missing)


@EACH_ISA
def test_warm_up_names_no_kernel_that_cannot_be_generated(row):
    """And none twice; the names that the engine itself needs are among them."""
    names = registry.kernel_names(row)
    assert len(set(names)) == len(names)
    assert {"walk", "worker_loop", "entry"} <= set(names)
    for name in names:
        assert any(pattern.fullmatch(name) for pattern, _ in generators.BUILDERS), name
    assert not any("reference" in name for name in names)


def test_unseen_expressions_run():
    for seed in range(RUN):
        random_cases.run(_small(seed))


def _small(seed: int) -> Case:
    return draw_case(random.Random(20_000_000 + seed).choice, dtypes=KERNEL_DTYPES)


@pytest.mark.parametrize("row", isa.host_isas()[1:], ids=lambda row: row.name)
def test_unseen_expressions_run_on_narrower_instruction_sets(row, monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_ISA", row.name)
    engine.clear_cache()
    for seed in range(60):
        random_cases.run(_small(seed))
    engine.clear_cache()


# The kernels are those of `einsum`: another process that ran the same cases, or warm-up, has left them on disk.
SECOND_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import test_unseen
from einsum_engine.kernels.cpu import library
for seed in range(int(sys.argv[2])):
    test_unseen.random_cases.run(test_unseen._small(seed))
print(json.dumps({"compiled": library.compilations, "loaded": len(library._addresses)}))
"""


def _process(count: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, str(Path(__file__).parent), str(count)],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"EINSUM_ENGINE_DEBUG": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_with_a_warm_cache_compiles_nothing():
    """In whatever cache this test run has, as any two programs of a user after each other."""
    _process(RUN)
    found = _process(RUN)
    assert found["compiled"] == 0 and found["loaded"] > 50, found
