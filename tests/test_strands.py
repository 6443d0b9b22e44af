"""Parts of a network that threads compute at the same time, each by one of them."""

import math
import string
from dataclasses import replace

import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_cases import made_anew

import einsum_engine as engine
from einsum_engine import cost
from einsum_engine.executor import bind, run_reference
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.isa import active_isa, host_isas
from einsum_engine.planners import joining, strands, weighted
from einsum_engine.planners.build import PlanBuilder, build_plan

RANDOM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
DTYPES = ("float32", "float64", "complex64", "complex128", "float16", "int32", "int64", "bool")


@pytest.fixture
def always(monkeypatch):
    _always(monkeypatch)


def _always(patch):
    """Strands wherever there are two."""
    for name, value in (("LEAST_SECONDS", 0.0), ("GAIN", 0.0), ("MEETINGS", math.inf)):
        patch.setattr(strands, name, value)


def chain(count, size, columns):
    """Two sweeps: matrices from both ends towards a narrow index in the middle; the path that goes so."""
    letters = string.ascii_letters[: count + 1]
    sizes = {letter: size for letter in letters} | {letters[count // 2]: columns}
    terms = [letters[i : i + 2] for i in range(count)]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal([sizes[i] for i in term]) / size**0.5 for term in terms]
    left, right = list(range(count // 2)), list(range(count // 2, count))
    tree = (_sweep(left[::-1]), _sweep(right))
    return f"{','.join(terms)}->{letters[0]}{letters[-1]}", arrays, tree


def _sweep(numbers):
    found = numbers[0]
    for number in numbers[1:]:
        found = (found, number)
    return found


def path_of(tree, count):
    """Positions of a tree of operand numbers."""
    left, path = list(range(count)), []

    def visit(node):
        if not isinstance(node, tuple):
            return node
        made = [visit(child) for child in node]
        at = sorted(left.index(number) for number in made)
        path.append(tuple(at))
        for position in at[::-1]:
            del left[position]
        left.append(count + len(path))
        return left[-1]

    visit(tree)
    return path


def request_of(text, arrays, path, threads=2, **more):
    return replace(engine.compile(text, *arrays, optimize=path, threads=threads).plan.request, **more)


def compiled_chain(count=12, size=300, columns=20, threads=2, **more):
    text, arrays, tree = chain(count, size, columns)
    return text, arrays, engine.compile(text, *arrays, optimize=path_of(tree, count), threads=threads, **more)


def blocks(plan):
    """Steps of each strand, and the number of the first step behind them; none without strands."""
    found = [step for step in plan.steps if step.kernel == "blocks"]
    if not found:
        return [], 0
    (step,) = found
    assert step.number == 0 and step.args.words[abi.KIND] == abi.BLOCKS
    starts = step.args.tables[abi.BLOCK_STARTS].tolist()
    assert starts[0] == 1 and starts == sorted(starts) and step.args.words[abi.NEXT] == starts[-1]
    return [plan.steps[first:end] for first, end in zip(starts, starts[1:])], starts[-1]


def check_strands(plan):
    """A strand needs nothing of another, and no two write to the same bytes."""
    found, _ = blocks(plan)
    written = []
    for steps in found:
        own = {step.output for step in steps}
        for step in steps:
            assert not step.args.packed.parallel and step.depth == 1
            assert all(plan.buffers[i].kind == "input" or i in own for i in step.inputs)
        places = [plan.buffers[i] for i in own]
        assert all(place.kind == "arena" for place in places)
        written.append([(place.offset, place.offset + place.nbytes) for place in places])
    for number, places in enumerate(written):
        for other in written[:number]:
            for low, high in places:
                assert all(high <= start or end <= low for start, end in other)
    return len(found)


def test_two_sweeps_are_two_strands():
    text, arrays, run = compiled_chain()
    found, behind = blocks(run.plan)
    assert check_strands(run.plan) == 2 and behind < len(run.plan.steps)
    assert {len([s for s in steps if s.family == "gemm"]) for steps in found} == {5}
    assert "2 strands, then" in run.explain()
    result = run(*arrays)
    assert np.allclose(result, np.linalg.multi_dot(arrays), rtol=0, atol=1e-12)
    for _ in range(20):
        assert np.array_equal(run(*arrays), result)
    assert np.allclose(run_reference(run.plan, arrays), result, rtol=0, atol=1e-12)


def test_their_times_add_up_to_a_part_for_each_thread():
    _, _, run = compiled_chain(threads=2)
    _, _, alone = compiled_chain(threads=1)
    assert not blocks(alone.plan)[0]
    assert 0.4 * alone.plan.seconds < run.plan.seconds < 0.7 * alone.plan.seconds


@pytest.mark.parametrize("size, why", [(20, "short"), (3000, "long")])
def test_no_strands_where_steps_are_shared_as_well(size, why):
    text, arrays, tree = chain(8, size, 20)
    plan = build_plan(request_of(text, arrays, path_of(tree, 8)))
    assert not blocks(plan)[0], why


def test_no_strands_in_a_single_sweep_or_with_constants():
    text, arrays, _ = chain(10, 300, 300)
    sweep = path_of(_sweep(list(range(10))), 10)
    assert not blocks(build_plan(request_of(text, arrays, sweep)))[0]
    text, arrays, tree = chain(12, 300, 20)
    request = request_of(text, arrays, path_of(tree, 12))
    assert blocks(build_plan(request))[0]
    for constants in ((0,), (4, 5)):  # packed once, contracted once
        assert not blocks(build_plan(replace(request, constants=constants)))[0]


def test_no_strands_where_one_is_so_long_that_nobody_looks_up(monkeypatch):
    text, arrays, tree = chain(12, 300, 20)
    monkeypatch.setattr(strands, "MOST_SECONDS", 1e-5)
    assert not blocks(build_plan(request_of(text, arrays, path_of(tree, 12))))[0]


def test_a_limit_in_bytes_turns_them_off_where_it_has_to():
    text, arrays, run = compiled_chain()
    request = run.plan.request
    less = build_plan(replace(request, fuse=False))
    assert not blocks(less)[0] and less.peak_bytes < run.plan.peak_bytes
    _, _, limited = compiled_chain(memory_limit=f"{less.peak_bytes}B")
    assert limited.plan.peak_bytes <= less.peak_bytes
    assert np.allclose(limited(*arrays), run(*arrays), rtol=0, atol=1e-12)


def test_steps_of_strands_are_measured_one_by_one():
    _, arrays, run = compiled_chain(profile=True)
    run(*arrays)
    ((plan, profile),) = run.profiles
    (found, _), steps = blocks(plan), profile.steps
    assert steps[0].seconds == 0.0
    for strand in found:
        for step in strand:
            assert steps[step.number].seconds > 0 and (step.family != "gemm" or steps[step.number].kernel > 0)


def test_a_product_whose_epilogue_reads_another_strand_is_in_none(always, monkeypatch):
    for name in ("EPILOGUE_GAIN", "LEAST_EPILOGUE"):
        monkeypatch.setattr(joining, name, -1e9)
    rng = np.random.default_rng(3)
    shapes = [(300, 40), (40, 8), (8, 200)] * 2
    arrays = [oracle.random(rng, shape, "float32", exact=True) for shape in shapes]
    text = "ia,ab,bj,ic,cd,dj->ij"
    path = path_of((((0, 1), 2), ((3, 4), 5)), 6)
    request = request_of(text, arrays, path)
    plan = build_plan(request)
    check_strands(plan)
    assert any("mul" in step.expr and step.depth == 0 and step.family == "gemm" for step in plan.steps)
    out = np.empty((300, 200), np.float32)
    bind(plan).run(arrays, out)
    one, two = np.linalg.multi_dot(arrays[:3]), np.linalg.multi_dot(arrays[3:])
    assert np.array_equal(out, one * two)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_joined_sums_in_strands_have_the_temporary_of_one_thread(always, dtype):
    rng = np.random.default_rng(6)
    text = "ab,ab,ab,cd,cd,cd,e->e"
    arrays = [rng.integers(-1, 2, (1000, 700)).astype(dtype) for _ in range(6)] + [np.ones(3, dtype)]
    path = path_of(((((0, 1), 2), ((3, 4), 5)), 6), 7)
    plan = build_plan(request_of(text, arrays, path, 4))
    assert check_strands(plan) >= 2 and any(step.family == "fused" for step in plan.steps if step.depth)
    out = np.empty(3, dtype)
    bind(plan).run(arrays, out)
    assert (out == (arrays[0] * arrays[1] * arrays[2]).sum() * (arrays[3] * arrays[4] * arrays[5]).sum()).all()


@pytest.mark.parametrize("isa", host_isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_instruction_set(always, dtype, isa):
    text, sizes = "ab,bc,cd,de,ef,fg->ag", dict(zip("abcdefg", (5, 7, 3, 2, 9, 4, 6)))
    rng = np.random.default_rng(5)
    terms = text.split("->")[0].split(",")
    arrays = [rng.integers(-1, 2, [sizes[i] for i in term]).astype(dtype) for term in terms]
    path = path_of(((2, (1, 0)), (3, (4, 5))), 6)
    for threads in (2, 3):
        plan = build_plan(request_of(text, arrays, path, threads, isa=isa.name))
        assert check_strands(plan) >= 2
        out = np.empty((5, 6), plan.dtype)
        bind(plan).run(arrays, out)
        assert np.array_equal(out.astype(object), oracle.einsum(text, *arrays).value)


@st.composite
def networks(draw):
    """A random tree of binary contractions: terms, sizes, the tree."""
    count = draw(st.integers(4, 9))
    letters = string.ascii_letters[: draw(st.integers(3, 8))]
    sizes = {letter: draw(st.integers(1, 4)) for letter in letters}
    terms = ["".join(draw(st.permutations(letters))[: draw(st.integers(1, 3))]) for _ in range(count)]
    seen = "".join(dict.fromkeys("".join(terms)))
    output = "".join(letter for letter in seen if draw(st.booleans()))[:4]
    nodes = list(range(count))
    while len(nodes) > 1:
        one = nodes.pop(draw(st.integers(0, len(nodes) - 1)))
        two = nodes.pop(draw(st.integers(0, len(nodes) - 1)))
        nodes.append((one, two))
    return f"{','.join(terms)}->{output}", sizes, nodes[0], count


@RANDOM
@given(network=networks(), dtype=st.sampled_from(("float64", "complex64", "int32")), threads=st.integers(2, 4), joins=st.booleans())
def test_random_networks(network, dtype, threads, joins):
    text, sizes, tree, count = network
    rng = np.random.default_rng(7)
    terms = text.split("->")[0].split(",")
    arrays = [rng.integers(-2, 3, [sizes[i] for i in term]).astype(dtype) for term in terms]
    with pytest.MonkeyPatch.context() as patch:
        _always(patch)
        for name in ("GAIN", "LEAST_GAIN", "EPILOGUE_GAIN", "LEAST_EPILOGUE") if joins else ():
            patch.setattr(joining, name, -1e9)
        plan = build_plan(request_of(text, arrays, path_of(tree, count), threads))
        check_strands(plan)
        out = np.empty(plan.expr.output_shape, plan.dtype)
        bind(plan).run(arrays, out)
    assert np.array_equal(out, np.einsum(text, *arrays))


def test_strands_are_the_longest_first_and_cover_what_is_below(always):
    text, arrays, tree = chain(9, 30, 4)
    request = request_of(text, arrays, path_of(tree, 9), 3)
    machine = cost.typical_machine(request.isa, active_isa().vector_bits, active_isa().fma)
    builder = PlanBuilder(request, machine)
    builder.list.build()
    before = list(builder.list.operations)
    count = strands.find_strands(builder.list, machine, builder.list.rooflines(machine))
    after = builder.list.operations
    assert count >= 2 and sorted(map(id, before)) == sorted(map(id, after))
    numbers = [operation.strand for operation in after]
    assert numbers == sorted(numbers, key=lambda number: number or count + 1)
    makers = {operation.output.number: operation for operation in after}
    done = set()
    for operation in after:
        reads = [value.number for value in operation.inputs if value.number in makers]
        assert done.issuperset(reads)
        assert not operation.strand or all(makers[number].strand == operation.strand for number in reads)
        done.add(operation.output.number)


def rank_three(monkeypatch, fetched=None, **sizes):
    """Steps of a tensor contracted with three factors on two threads: the families, and tasks that more than one thread does."""
    if fetched is not None:
        monkeypatch.setattr(cost, "FETCHED_BYTES", fetched)
    arrays = [np.zeros([sizes[i] for i in term]) for term in ("abc", "ar", "br", "cr")]
    with made_anew():
        plan = build_plan(engine.compile("abc,ar,br,cr->", *arrays, threads=2, optimize=[(1, 2), (0, 2), (0, 1)]).plan.request)
    steps = [step for step in plan.steps if step.family != "pack"]
    return [step.family for step in steps], [step.tasks if step.args.packed.parallel else 1 for step in steps]


def test_what_one_core_has_just_written_is_not_fetched_by_another_for_a_moment(monkeypatch):
    """The outer product of the factors is too short to be shared, and the matrix product with it too short to fetch it."""
    sizes = dict(a=50, b=20, c=26, r=29)
    families, tasks = rank_three(monkeypatch, **sizes)
    assert families[:2] == ["mul", "gemm"] and tasks == [1, 1, 1]
    assert rank_three(monkeypatch, fetched=1e18, **sizes)[1][1] > 1
    more = dict(a=50, b=20, c=400, r=29)  # which uses each row of the outer product more often
    tasks = rank_three(monkeypatch, fetched=5 << 10, **more)[1]
    assert tasks[0] == 1 < tasks[1]


def test_what_threads_write_together_is_read_by_them_together(monkeypatch):
    families, tasks = rank_three(monkeypatch, a=50, b=50, c=20, r=50)
    assert families[:2] == ["mul", "gemm"] and min(tasks[:2]) > 1


def test_fused_steps_are_left_alone_too(monkeypatch):
    """Where fetching takes ages, nothing is shared that reads what one thread has written, also if it becomes a fused step."""
    monkeypatch.setattr(joining, "GAIN", 1e9)  # else both are one step,
    for which in ("_may_be_weighted", "_is_gemm", "_is_weighted"):  # or the second one is a batched product
        monkeypatch.setattr(weighted, which, lambda *_: True)
    expression, sizes = "cb,cd,cadb->ab", dict(a=4, b=40, c=25, d=25)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[i] for i in term]).astype("f8") for term in expression.split("->")[0].split(",")]
    found = []
    for fetched in (1e18, 1e-9):
        monkeypatch.setattr(cost, "FETCHED_BYTES", fetched)
        with made_anew():
            call = engine.compile(expression, *arrays, threads=2, optimize=[(0, 1), (0, 1)])
            np.testing.assert_array_equal(call(*arrays), np.einsum(expression, *arrays))
        assert {step.family for step in call.plan.steps} >= {"mul", "fused"}
        found.append([step.tasks for step in call.plan.steps if step.family == "fused" and step.args.packed.parallel])
    assert found[0] and not found[1]


def test_what_no_cache_of_a_core_holds_is_shared_whoever_wrote_it():
    """Products of which each reads what one thread has written, until that is more than is still in its cache."""
    terms = [f"v{chr(97 + i)}" for i in range(21)]
    arrays = [np.zeros((2, 2), "c16")] * len(terms)
    text = ",".join(terms) + "->v" + "".join(term[1] for term in terms[::-1])
    path = [(0, 1), *((0, len(terms) - 2 - i) for i in range(len(terms) - 2))]

    isa = active_isa()
    machine = cost.typical_machine(isa.name, isa.vector_bits, isa.fma)
    with made_anew():
        request = engine.compile(text, *arrays, threads=2, optimize=path).plan.request
        plan = build_plan(request, replace(machine, cache_bytes=1 << 20, meeting_seconds=2e-6))
    shared = [step.args.packed.parallel and step.tasks > 1 for step in plan.steps]
    assert shared == sorted(shared) and not shared[-4] and shared[-1]
