"""Plans as data: bytes, arena, panels and layouts by their properties, and plans run against two oracles."""

import copy
import ctypes
import pickle
from dataclasses import replace
from math import prod

import numpy as np
import oracle
import plan_cases
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from einsum_engine import executor
from einsum_engine.kernels import gemm, isa, tiles
from einsum_engine.kernels.cpu import abi, library
from einsum_engine.kernels.row import Row
from einsum_engine.plan import Axis
from einsum_engine.planners import arena
from einsum_engine.planners import gemm as planners_gemm
from einsum_engine.planners.arena import ALIGNMENT, Lifetime, allocate
from einsum_engine.planners.build import PlanBuilder
from einsum_engine.planners.gemm import BinaryContraction, plan_gemm
from einsum_engine.planners.layout import dense_axes
from einsum_engine.planners.sides import LEFT, OUT, axis_table, flat_table, fused_dims, make_panels, total

RANDOM = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
HOST = isa.active_isa()
CHAINS = (
    ("ab,bc->ac", dict(a=70, b=60, c=50)),
    ("ab,bc,cd->ad", dict(a=90, b=80, c=70, d=60)),
    ("ab,ca,dc,ed->be", dict(a=70, b=130, c=64, d=90, e=33)),
    ("bij,bjk,bkl->bil", dict(b=7, i=33, j=29, k=31, l=40)),
    ("abcd,befg,cdjl,fhij,gikl->aehk", dict.fromkeys("abcdefghijkl", 4)),
    ("aebd,ce,cf->dfba", dict(a=12, b=11, c=6, d=13, e=9, f=10)),
)


# -- bytes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("equation, sizes", CHAINS)
def test_parts_of_peak_bytes(equation, sizes, threads):
    operands = plan_cases.operands(equation, sizes, "float64")
    made = plan_cases.plan(equation, operands, threads=threads)
    native = executor.bind(made)
    assert made.peak_bytes == made.output_bytes + made.arena_bytes + made.table_bytes
    assert made.output_bytes == prod(made.expr.output_shape) * 8
    # table_bytes counts every table, also where steps share one, but for those of slices, which have theirs in common
    pools = {id(pool): len(pool) - 8 for pool in (step.args.packed.pool for step in made.steps)}
    assert native._rows.nbytes + sum(pools.values()) <= made.table_bytes
    in_slices = any(s.block[1] > 1 for s in made.steps)
    tables = {id(s.args.tables) if in_slices else s.number: s.args.tables.values() for s in made.steps}
    assert made.table_bytes == native._rows.nbytes + sum(t.nbytes for each in tables.values() for t in each)
    ends = [b.offset + b.nbytes for b in made.buffers if b.kind == "arena"]
    scratch = max(s.args.scratch for s in made.steps)
    assert max(ends, default=0) + made.worker_scratch * threads <= made.arena_bytes
    # between the scratch memory of two workers lies a page, which neither touches
    assert made.worker_scratch % 64 == 0
    apart = threads > 1 and any(s.args.scratch and s.args.tasks > 1 for s in made.steps)
    assert 0 <= made.worker_scratch - scratch - 4096 * apart < 64


@pytest.mark.parametrize("equation, sizes", [*CHAINS, ("ab,b->ab", dict(a=5000, b=3)), ("ab->a", dict(a=6, b=9000))])
def test_the_step_table_has_what_rows_say(equation, sizes):
    made = plan_cases.plan(equation, plan_cases.operands(equation, sizes, "float64"), threads=2)
    native = executor.bind(made)
    for row, step in zip(native._rows, made.steps, strict=False):
        args = step.args
        words = {**args.words, **dict(enumerate(step.places, abi.OUT_SLOT))}
        addresses = args.tables.keys() | args.kernels.keys() | {abi.NTASKS}
        assert row[abi.NTASKS] == args.tasks
        for word in set(range(abi.STEP_WORDS)) - addresses:
            assert row[word] == words.get(word, 0), word
        for word, table in args.tables.items():
            read = (ctypes.c_int64 * len(table)).from_address(int(row[word]))
            assert list(read) == table.tolist(), word
        for word, name in args.kernels.items():
            assert row[word] == library.address(name, HOST)
    assert native._table_address == native._rows.ctypes.data and native._table_address % 64 == 0
    assert native._rows[-1].tolist() == [abi.STOP if word == abi.KIND else 0 for word in range(abi.STEP_WORDS)]


def test_a_row_has_its_vectors_at_an_address():
    short, other, long = (np.arange(entries, dtype=np.int64) * 8 for entries in (5, 3, 5000))
    long.flags.writeable = False
    row = Row(words={60: 2}, tables={3: short, 4: long, 5: short, 6: other}, tasks=7)
    for made in (row, copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        words = np.frombuffer(made.packed.words, np.int64)
        assert words[60] == 2 and words[abi.NTASKS] == 7 and words[3] == words[5]
        assert len(made.packed.pool) == short.nbytes + other.nbytes + 8  # each once, and what is there without any
        for word, table in made.tables.items():
            assert list((ctypes.c_int64 * len(table)).from_address(int(words[word]))) == table.tolist()
    assert copy.deepcopy(row).packed.words != row.packed.words
    assert not any(Row(words={}, tasks=0).packed.words)


@pytest.mark.parametrize("equation, sizes", CHAINS)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_product_alone_is_the_step_that_all_ways_yield(monkeypatch, equation, sizes, dtype):
    operands = plan_cases.operands(equation, sizes, dtype)
    made = plan_cases.plan(equation, operands, threads=2)
    monkeypatch.setattr(PlanBuilder, "_emit", PlanBuilder._emit_parts)
    general = plan_cases.plan(equation, operands, threads=2)
    assert made.steps == general.steps
    assert [step.args.words for step in made.steps] == [step.args.words for step in general.steps]


@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 5, 1), (3, 0, 2), (7,), ()])
def test_contiguous_axes(sizes):
    names = "abc"[: len(sizes)]
    axes = dense_axes(names, dict(zip(names, sizes)), 8)
    assert list(axes) == list(names)
    for at, name in enumerate(names):
        assert axes[name] == Axis.strided(name, sizes[at], 8 * prod(sizes[:at]))
        assert type(axes[name]) is Axis and axes[name].linear


def test_an_output_of_the_callers_counts_nothing():
    operands = plan_cases.operands("ab,bc->ac", dict(a=5, b=6, c=7), "float64")
    made = plan_cases.plan("ab,bc->ac", operands, out=np.zeros((5, 7)))
    assert made.output_bytes == 0 and made.peak_bytes == made.arena_bytes + made.table_bytes


@st.composite
def lifetimes(draw) -> list[Lifetime]:
    count = draw(st.integers(0, 12))
    lives = []
    for key in range(count):
        first, more = draw(st.integers(0, 8)), draw(st.integers(0, 4))
        nbytes = draw(st.one_of(st.integers(0, 300), st.integers(0, 1 << 33)))
        strand = draw(st.integers(0, 2))
        lives.append(Lifetime(key=key, nbytes=nbytes, first=first, last=first + more, strand=strand))
    return lives


@RANDOM
@given(lives=lifetimes())
def test_buffers_that_live_at_once_never_share_bytes(lives):
    offsets, size = allocate(lives)
    assert offsets.keys() == {life.key for life in lives}
    for life in lives:
        start = offsets[life.key]
        assert start >= 0 and start % ALIGNMENT == 0 and start + life.nbytes <= size
        for other in lives[: life.key]:
            beside = 0 < life.strand != other.strand > 0
            if beside or life.first <= other.last and other.first <= life.last:
                apart = start >= offsets[other.key] + other.nbytes or offsets[other.key] >= start + life.nbytes
                assert apart, (life, other, offsets)
    steps = range(max((life.last for life in lives), default=0) + 1)
    least = max((sum(l.nbytes for l in lives if l.first <= t <= l.last) for t in steps), default=0)
    most = sum(-(-life.nbytes // ALIGNMENT) * ALIGNMENT for life in lives)
    assert least <= size <= most


@RANDOM
@given(seed=st.integers(0, 1 << 30), count=st.integers(2, 300), steps=st.integers(1, 400))
def test_many_buffers_lie_where_they_would_if_each_were_compared_with_all(seed, count, steps):
    rng = np.random.default_rng(seed)
    first = rng.integers(0, steps, count)
    last = np.minimum(first + rng.choice([0, 1, 2, 30, steps], count), steps - 1)
    nbytes = rng.choice([0, 1, 64, 100, 4096], count)
    lives = [Lifetime(*map(int, each)) for each in zip(range(count), nbytes, first, last)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "FEW", count)
        expected = allocate(lives)
        patch.setattr(arena, "FEW", 0)
        assert allocate(lives) == expected


# -- panels --------------------------------------------------------------------------------------------------------
@st.composite
def sides(draw):
    """Dimensions of the lanes side, fastest first, at random places in LEFT and OUT, one perhaps in blocks."""
    sizes = draw(st.lists(st.integers(2, 9), min_size=0, max_size=4))
    places = {tensor: draw(st.permutations(range(len(sizes)))) for tensor in (LEFT, OUT)}
    strides = {}
    for tensor, order in places.items():
        step = 4
        for position in order:
            strides[tensor, position] = step * draw(st.sampled_from([1, 1, -1]))
            step *= sizes[position] + draw(st.integers(0, 1))
    dims = []
    for position, size in enumerate(sizes):
        axes = {t: Axis.strided(str(position), size, strides[t, position]) for t in (LEFT, OUT)}
        if draw(st.integers(0, 4)) == 0:
            tile = draw(st.integers(1, size))
            axes[LEFT] = Axis(index=str(position), size=size, stride=1 << 20, tile=tile, outer=1 << 24)
        index = str(position)
        dims += fused_dims([index], {index: size}, [(t, {index: axis}) for t, axis in axes.items()])
    return dims


@RANDOM
@given(
    dims=sides(),
    width=st.sampled_from([2, 3, 4, 8, 16, 24, 32, 64]),
    extend=st.booleans(),
    run=st.integers(-1, 3),
    inner=st.sampled_from([1, 8, 64, 4096]),
)
def test_panels_hold_every_row_once(dims, width, extend, run, inner):
    """Lanes, cut, rest and outer loops together enumerate every combination of indices, in every tensor alike."""
    run_dim = dims[run] if 0 <= run < len(dims) else None
    panels = make_panels(dims, width, extend, run_dim, inner)
    valid = panels.valid()
    assert panels.width == width and 1 <= panels.box <= width
    assert len(valid) == panels.count and valid.min() >= 1 and valid.max() <= panels.box
    tables = {t: panels.offsets(t) for t in (LEFT, OUT)}
    assert all(table.shape == (panels.count, width) for table in tables.values())
    outer = {t: flat_table(panels.outer, t) for t in (LEFT, OUT)}
    exists = np.arange(width)[None, :] < valid[:, None]
    found = [
        pair
        for o in range(total(panels.outer))
        for pair in zip(*((outer[t][o] + tables[t])[exists].tolist() for t in (LEFT, OUT)))
    ]
    expected = list(zip(*(flat_table(dims, t).tolist() for t in (LEFT, OUT))))
    assert sorted(found) == sorted(expected)
    assert panels.padded == panels.count * width * total(panels.outer) >= len(expected)
    # what is read beyond the valid lanes is somewhere in the operand
    assert all(np.isin(table, table[exists]).all() for table in tables.values())


@st.composite
def free_operands(draw):
    """Sizes of batch, m, n and k dimensions, the order of the output (n slowest, so that m gets the lanes)."""
    m = draw(st.lists(st.integers(2, 16), min_size=1, max_size=3))
    k = draw(st.lists(st.integers(2, 8), min_size=1, max_size=2))
    b = draw(st.lists(st.integers(2, 3), max_size=1))
    sizes = {f"{kind}{i}": size for kind, group in (("m", m), ("k", k), ("b", b)) for i, size in enumerate(group)}
    sizes["n0"] = draw(st.integers(2, 5))
    output = ["n0", *draw(st.permutations([i for i in sizes if i[0] in "bm"]))]
    dtype = draw(st.sampled_from(["float32", "complex128", "int8"]))
    return sizes, output, dtype, draw(st.sampled_from(isa.host_isas()))


def _places(axes, order) -> np.ndarray:
    """Byte offset of every element, one dimension per index of ``order``."""
    places = np.zeros((), np.int64)
    for index in order:
        places = np.add.outer(places, axis_table(axes[index]))
    return places


@RANDOM
@given(case=free_operands())
def test_a_free_operand_lies_where_the_kernel_reads_it(case):
    """Data laid out by the layout that the plan asks for, in panels or rows, contracted by the problem's tables."""
    sizes, output, dtype, row = case
    item = tiles.ITEMSIZE[dtype]
    b, m, n, k = (tuple(i for i in sizes if i[0] == kind) for kind in "bmnk")
    right, out = dense_axes([*k[::-1], *n[::-1], *b[::-1]], sizes, item), dense_axes(output[::-1], sizes, item)
    contraction = BinaryContraction(dtype=dtype, sizes=sizes, batch=b, m=m, n=n, k=k, left=None, right=right, out=out)
    made = plan_gemm(contraction, row, 1, plan_cases.typical(row))
    assert not made.swapped and made.pack_left is None and made.pack_right is None
    _counted(made, item)
    left = {axis.index: axis for axis in made.left_layout.axes}
    assert left.keys() == {*b, *m, *k}
    memory, values = {}, {}
    rng = np.random.default_rng(0)
    for slot, (axes, order) in enumerate(((left, [*b, *m, *k]), (right, [*b, *n, *k]), (out, output))):
        places = _places(axes, order)
        assert places.min() == 0 and len(np.unique(places)) == places.size, "two elements in one place"
        values[slot] = oracle.random(rng, places.shape, dtype, exact=True)
        memory[slot] = np.zeros(int(places.max()) + item * max(made.left_layout.panel, 1), np.uint8)
        memory[slot][places[..., None] + np.arange(item)] = values[slot][..., None].view(np.uint8)
    places = {name: getattr(made.problem, name)._replace(slot=slot) for slot, name in enumerate("abc")}
    gemm.reference(replace(made.problem, **places), memory)
    letters = dict(zip(sizes, "abcdefghij"))
    terms = ["".join(letters[i] for i in order) for order in ((*b, *m, *k), (*b, *n, *k), output)]
    expected = np.einsum(f"{terms[0]},{terms[1]}->{terms[2]}", values[0], values[1])
    got = memory[2][: expected.nbytes].view(dtype).reshape(expected.shape)
    assert np.array_equal(got, expected), (made.left_layout, made.problem.kernel)


def _counted(made, item):
    """The numbers that the time is predicted from are those of the tables that are made later."""
    work, problem = made.work, made.problem
    assert (work.outer, work.panels, work.rows) == (problem.outer_total, problem.panels, problem.valid.sum())
    assert (work.columns, work.k) == (len(problem.tn_c), len(problem.tk_b) * len(problem.tko_b))
    lanes = problem.tm_c.reshape(problem.panels, problem.mr)
    adjacent = [bool((np.diff(row[:valid]) == item).all()) for row, valid in zip(lanes, problem.valid)]
    assert problem.run.tolist() == adjacent
    whole = sum(a and v == problem.mr for a, v in zip(adjacent, problem.valid))
    scattered = sum(v for a, v in zip(adjacent, problem.valid) if not a)
    assert work.stored == (whole, sum(adjacent) - whole, scattered)
    for row, valid in zip(lanes, problem.valid):
        assert valid % work.chunk == 0 or work.chunk == 1
        assert (np.diff(row[: valid - valid % work.chunk].reshape(-1, work.chunk), axis=1) == item).all()


def test_both_kinds_of_layouts_are_asked_for():
    """The property above is about panels and rows: sizes in its range lead to both."""
    kinds = set()
    for size in (5, 2000):
        sizes = dict(m0=size, k0=8, n0=3)
        right, out = dense_axes(["k0", "n0"], sizes, 8), dense_axes(["m0", "n0"], sizes, 8)
        contraction = BinaryContraction(
            dtype="float64", sizes=sizes, batch=(), m=("m0",), n=("n0",), k=("k0",), left=None, right=right, out=out
        )
        kinds.add(plan_gemm(contraction, HOST, 1, plan_cases.typical(HOST)).left_layout.kind)
    assert kinds == {"fbl", "strided"}


# -- plans against two oracles -------------------------------------------------------------------------------------
def _agrees(made, operands, answer: oracle.Answer | None = None, place=oracle.place) -> None:
    """AssertionError unless the native result is that of `run_reference`, and of the loops where they are given.

    ``place(array, flush)``: where operands and result are put, between pages that end the process if it is not said.
    """
    guarded = [place(a, flush) for a, flush in zip(operands, ("end", "start") * len(operands))]
    out = place(np.zeros(made.expr.output_shape, made.dtype), "end")
    out[...] = np.nan if out.dtype.kind in "fc" else 1
    executor.bind(made).run(guarded, out)
    expected = executor.run_reference(made, operands)
    assert out.dtype == expected.dtype and out.shape == expected.shape
    context = f"{made.expr.eq} {made.expr.shapes} {made.isa} {[s.kernel for s in made.steps]}"
    assert np.array_equal(out, expected), context
    if answer is not None:
        oracle.check(out, answer, context=context)


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", tiles.DTYPES)
@pytest.mark.parametrize("equation, sizes", CHAINS)
def test_chains(row, dtype, equation, sizes):
    operands = plan_cases.operands(equation, sizes, dtype)
    _agrees(plan_cases.plan(equation, operands, isa=row.name), operands)
    _agrees(plan_cases.plan(equation, operands, isa=row.name, threads=3, conj=(1,)), operands)


@st.composite
def expressions(draw):
    """Up to four operands of random strides; letters may be in one, two or more of them, repeated, or summed."""
    count = draw(st.integers(1, 4))
    letters = "abcdef"
    sizes = {letter: draw(st.integers(1, 5)) for letter in letters}
    terms = [draw(st.text(letters, min_size=0, max_size=4)) for _ in range(count)]
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations([letter for letter in used if draw(st.booleans())])))
    dtype = draw(st.sampled_from(["float32", "float64", "complex64", "complex128", "int8", "int64", "bool"]))
    arrays = [_array(draw, [sizes[letter] for letter in term], dtype, seed) for seed, term in enumerate(terms)]
    conj = tuple(draw(st.sets(st.integers(0, count - 1))))
    row = draw(st.sampled_from(isa.host_isas()))
    return f"{','.join(terms)}->{output}", arrays, dict(conj=conj, isa=row.name, threads=draw(st.sampled_from([1, 3])))


def _array(draw, shape, dtype, seed) -> np.ndarray:
    """Random elements; axes in any order, reversed, with steps, or of stride 0."""
    array = oracle.random(np.random.default_rng(seed), shape, dtype, exact=True)
    order = draw(st.permutations(range(len(shape))))
    array = array.transpose(order).copy().transpose(np.argsort(order))
    for axis in range(len(shape)):
        change = draw(st.sampled_from(["", "", "reverse", "step", "broadcast"]))
        at = (slice(None),) * axis
        if change == "reverse":
            array = array[(*at, slice(None, None, -1))]
        elif change == "step":
            array = np.repeat(array, 2, axis)[(*at, slice(None, None, 2))]
        elif change == "broadcast":
            array = np.broadcast_to(array[(*at, slice(0, 1))], array.shape)
    return array


@RANDOM
@given(case=expressions())
def test_random_expressions(case):
    equation, arrays, options = case
    made = plan_cases.plan(equation, arrays, **options)
    complex_conj = options["conj"] if arrays[0].dtype.kind == "c" else ()
    _agrees(made, arrays, oracle.einsum(equation, *arrays, conj=complex_conj))


# -- the checks themselves must fail on a wrong kernel -------------------------------------------------------------
_Task = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


def _step(word: int, change):
    def wrong(step: np.ndarray) -> None:
        step[word] = change(int(step[word]))

    return wrong


WRONG = {
    "swapped operands": lambda step: step.__setitem__([abi.A_SLOT, abi.B_SLOT], step[[abi.B_SLOT, abi.A_SLOT]]),
    "swapped offsets": lambda step: step.__setitem__([abi.G_TK_A, abi.G_TK_B], step[[abi.G_TK_B, abi.G_TK_A]]),
    "shifted offset": _step(abi.A_OFFSET, lambda offset: offset + 8),
    "skipped edge of N": _step(abi.G_N, lambda n: n - 1),
    "skipped panel of M": _step(abi.G_PANELS, lambda count: count - 1),
    "skipped term of K": _step(abi.G_K, lambda k: k - 1),
    "sign": _step(abi.G_SIGNS, lambda signs: signs ^ 1),
    "sign of the other": _step(abi.G_SIGNS, lambda signs: signs ^ 2),
    "accumulates": _step(abi.G_ACCUMULATE, lambda flag: 1 - flag),
}


def _roomy(array: np.ndarray, flush: str) -> np.ndarray:
    """A contiguous copy in the middle of ordinary memory: wrong kernels must not end the process."""
    memory = np.zeros(3 * array.nbytes, np.uint8)
    copy = memory[array.nbytes : 2 * array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_kernel_in_the_library_is_caught(wrong, monkeypatch):
    """The kernel that a plan calls by name, changed in one word of its step."""
    equation, sizes = "ab,bc->ac", dict(a=13, b=13, c=13)
    operands = plan_cases.operands(equation, sizes, "complex64")
    made = plan_cases.plan(equation, operands)
    name = made.steps[-1].kernel
    right = _Task(library.address(name, HOST))
    calls = []

    def task(context, step, share, worker):
        changed = np.ctypeslib.as_array((ctypes.c_int64 * abi.STEP_WORDS).from_address(step)).copy()
        if calls:
            WRONG[wrong](changed)
        calls.append(share)
        right(context, changed.ctypes.data, share, worker)

    callback = _Task(task)
    monkeypatch.setitem(library._addresses, (library.path(name, HOST).stem, HOST.name), ctypes.cast(callback, ctypes.c_void_p).value)
    _agrees(made, operands, place=_roomy)  # the first call is not changed
    assert len(calls) == 1
    with pytest.raises(AssertionError, match="ab,bc->ac"):
        _agrees(made, operands, place=_roomy)


@pytest.mark.parametrize("last_cache, past", [(480 << 20, [0, 1]), (32 << 20, [1, 1]), (0, [1, 1])])
def test_intermediates_that_the_last_cache_holds_are_stored_there(monkeypatch, last_cache, past):
    """Of an intermediate and a result of 9 MB each; lanes are those of either side."""
    monkeypatch.setattr(planners_gemm, "last_cache", lambda: last_cache)
    arrays = [np.empty(shape, "float32") for shape in ((8000, 40), (40, 300), (300, 300))]
    for text in ("ab,bc,cd->ad", "ab,bc,cd->da"):
        with plan_cases.made_anew():
            steps = plan_cases.plan(text, arrays, optimize=[(0, 1), (0, 1)]).steps
            assert [step.args.words[abi.G_STREAM] & 1 for step in steps if step.family == "gemm"] == past
