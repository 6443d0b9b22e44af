"""Memory: what plans say against what the system measures, tables, limits that are kept, and running out."""

import json
import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import random_cases
from dense import numpy_dtype
from opt_einsum.testing import rand_equation
from random_cases import KERNEL_DTYPES, draw_case

import einsum_engine as engine
from einsum_engine import executor, fastcall, machine_memory, recycle
from einsum_engine.kernels.cpu import result_abi as words

MB = 1_000_000


def _python(code: str, *arguments: str, **environment: str) -> str:
    """What ``code`` prints, run by a Python of its own: its memory holds nothing of other tests."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- measured against planned ----------------------------------------------------------------------------------------
# expression, shapes, dtypes, options: more than 100 MB each besides the operands, and little arithmetic
LARGE = {
    "packing": ("mk,kn->mn", [(4000, 4000), (4000, 300)], ["float64"] * 2, {}),
    "packing, complex": ("mk,kn->mn", [(2000, 2000), (2000, 2400)], ["complex128"] * 2, {"conj": [0]}),
    "packed and scattered": ("aebd,ce->dcba", [(88, 44, 88, 88), (24, 44)], ["complex64"] * 2, {}),
    "intermediate": ("ij,jk,kl->il", [(3000, 60), (60, 6000), (6000, 40)], ["float64"] * 3, {"optimize": False}),
    "two intermediates": (
        "ij,jk,kl,lm->im",
        [(3000, 40), (40, 4000), (4000, 40), (40, 3000)],
        ["float64"] * 4,
        {"optimize": False},
    ),
    "operands cast": ("ij,ij->i", [(4000, 3500)] * 2, [">f4"] * 2, {}),
    "fused": ("ij,ij,i->ij", [(2000, 8000), (2000, 8000), (2000,)], ["float64"] * 3, {}),
    "operand of halves": ("mk,kn->mn", [(8000, 3500), (3500, 240)], ["float16"] * 2, {}),
    "operand widened": ("mk,kn->mn", [(4000, 4000), (4000, 256)], ["int8", "int64"], {}),
    "other byte order": ("mk,kn->mn", [(4000, 4000), (4000, 64)], [">f8", "float64"], {}),
    "transpose": ("ijkl->lkji", [(64, 64, 64, 60)], ["float64"], {}),
    "cast": ("ij->ij", [(4000, 4000)], ["int16"], {"dtype": "complex64"}),
    "outer": ("i,j->ij", [(5000,), (4000,)], ["float64"] * 2, {}),
    "Fortran order": ("i,j->ij", [(5000,), (4000,)], ["float64"] * 2, {"order": "F"}),
    "product": ("ij,ij->ij", [(2000, 8000)] * 2, ["float64"] * 2, {}),
    "batch": ("bmk,bkn->bmn", [(100, 400, 50), (100, 50, 600)], ["float64"] * 2, {}),
    "batch last": ("mkb,nbk->bmn", [(200, 20, 400), (200, 400, 20)], ["float64"] * 2, {}),
    "tall": ("mk,kn->mn", [(3_000_000, 4), (4, 5)], ["float64"] * 2, {}),
    "diagonal of the result": ("i,i->ii", [(4000,)] * 2, ["float64"] * 2, {}),
    "constant": ("mk,kn->mn", [(2000, 2000), (2000, 6000)], ["float64"] * 2, {"constants": [1]}),
}
NOTHING_KEPT = {"EINSUM_ENGINE_POOL_BYTES": "0", "EINSUM_ENGINE_ARENA_BYTES": "0"}
# A smaller call of the same kind comes first, and the kernels of the measured one are compiled and loaded: code is no
# memory of a call.
MEASURE = """
import gc, json, sys, numpy as np, einsum_engine as engine
expression, shapes, dtypes, options = json.loads(sys.argv[1])
constants = options.get("constants", [])

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

def call(shapes):
    arrays = [np.full(shape, 1, dtype) for shape, dtype in zip(shapes, dtypes)]
    gc.collect()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak is what is held now
    except OSError:
        pass
    before, now = status("VmHWM"), status("VmRSS")
    f = engine.compile(expression, *arrays, threads=2, **options)
    variables = [array for position, array in enumerate(arrays) if position not in constants]
    copied = sum(arrays[position].nbytes for position in constants)
    peaks, held = [], []
    for _ in range(2):
        result = f(*variables)
        peaks.append(status("VmHWM") - before - copied)
        del result
        held.append(status("VmRSS") - now - copied)
    return {"planned": f.plan.peak_bytes, "output": f.plan.output_bytes, "constant": f.plan.constant_bytes,
            "tables": f.plan.table_bytes, "threads": f.plan.threads, "peaks": peaks, "held": held,
            "slack": before - now}

call([[max(size // 8, 1) for size in shape] for shape in shapes])
engine.compile(expression, *shapes, dtypes=dtypes, threads=2, **options if not constants else {})
print(json.dumps(call(shapes)))
"""


@pytest.mark.parametrize("family", LARGE)
def test_measured_peak(family):
    """Within 5 %, at the first call and at later ones; afterwards a call holds its tables and constants alone."""
    # With a threshold of its own, malloc gives all freed memory back at once.
    text = _python(MEASURE, json.dumps(LARGE[family]), **NOTHING_KEPT, MALLOC_MMAP_THRESHOLD_="100000")
    found = json.loads(text)
    if found["slack"] > MB:
        pytest.skip("this system does not tell the peak of a part of a process")
    assert found["planned"] > 100 * MB and found["threads"] == 2
    for peak in found["peaks"]:
        planned = found["planned"]
        assert 0.95 <= peak / planned <= 1.05, f"{peak / MB:.1f} MB measured, {planned / MB:.1f} planned"
    for held in found["held"]:
        assert held <= found["tables"] + found["constant"] + 0.05 * found["planned"], f"{held / MB:.1f} MB are kept"


def test_large_cases_cover_packing_intermediates_and_casts():
    families = {}
    for name, (expression, shapes, dtypes, options) in LARGE.items():
        arrays = [np.broadcast_to(np.ones(1, dtype), shape) for shape, dtype in zip(shapes, dtypes)]
        options = {key: value for key, value in options.items() if key != "constants"}
        families[name] = {step.family for step in engine.compile(expression, *arrays, **options).plan.steps}
    assert "pack" in families["packing"] and "copy" in families["operands cast"]
    assert families["operand widened"] == {"pack", "gemm"} and families["fused"] == {"fused"}
    assert {"gemm", "pack", "copy", "mul"} <= set().union(*families.values())


# -- the parts of a plan ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 3])
def test_parts_of_the_plans_of_random_calls(threads):
    for seed in range(200):
        case = draw_case(random.Random(30_000_000 + seed).choice, dtypes=KERNEL_DTYPES)
        arrays = [operand.make() for operand in case.operands]
        f = engine.compile(case.expression, *arrays, constants=case.constants, **case.keywords | {"threads": threads})
        plan = f.plan
        context = random_cases.replay(case)
        assert plan.peak_bytes == plan.output_bytes + plan.arena_bytes + plan.table_bytes, context
        count = math.prod(case.sizes[letter] for letter in case.output)
        assert plan.output_bytes == count * numpy_dtype(plan.dtype).itemsize, context
        assert 0 <= plan.constant_bytes <= plan.arena_bytes, context
        assert bool(plan.constant_bytes) == any(step.once for step in plan.steps), context
        assert all(not step.once for step in plan.steps) or case.constants, context
        for buffer in plan.buffers:
            if buffer.kind == "arena":
                assert 0 <= buffer.offset <= buffer.offset + buffer.nbytes <= plan.arena_bytes, context
        if case.output and len(set(case.output)) == len(case.output):
            # The caller's memory is not counted, unless NumPy copies a result into it.
            out = np.empty(plan.expr.output_shape, numpy_dtype(plan.dtype))
            kinds = tuple((array.dtype, array.strides) for array in arrays)
            into = f._contractor.route(kinds, (out.dtype, out.strides), "alpha" in case.options).plan
            assert into.output_bytes == (0 if into.steps else out.nbytes), context


# -- tables ----------------------------------------------------------------------------------------------------------
# float64, more than 10 MB
ADDRESSED = [
    ("mk,kn->mn", (1500, 1500), (1500, 1500)),
    ("mk,kn->mn", (64, 20000), (20000, 64)),
    ("mk,kn->mn", (1000000, 4), (4, 4)),
    ("mk,k->m", (2000, 2000), (2000,)),
    ("km,k->m", (2000, 2000), (2000,)),
    ("mk,k->m", (4, 1000000), (1000000,)),
    ("i,i->", (2000000,), (2000000,)),
    ("bi,bi->b", (2000, 1000), (2000, 1000)),
    ("bmk,bkn->bmn", (20000, 8, 8), (20000, 8, 8)),
    ("mkb,knb->mnb", (8, 8, 20011), (8, 8, 20011)),
    ("bmk,bkn->bmn", (100, 100, 100), (100, 100, 100)),
    ("mkb,knb->mnb", (8, 8, 20000), (8, 8, 20000)),
    ("abc,bd->adc", (32, 64, 1024), (64, 64)),
    ("abc,bd->adc", (1024, 2, 1024), (2, 2)),
    ("ij->ji", (1500, 1500)),
    ("ijk->kji", (100, 150, 100)),
    ("ij->i", (1500, 1500)),
    ("ij->j", (1500, 1500)),
    ("i,j->ij", (1500,), (1500,)),
    ("ij,ij->ij", (1500, 1500), (1500, 1500)),
    ("ij,jk,kl->il", (800, 800), (800, 800), (800, 800)),
    ("a,b,c->abc", (150,), (150,), (100,)),
    ("i,i,i->i", (1000000,), (1000000,), (1000000,)),
    ("abcd,befg,cdjl,fhij,gikl->aehk", *[(12, 12, 12, 12)] * 5),
    ("mk,kn->mn", (20000, 64), (64, 64)),
    ("mk,kn->mn", (1000003, 4), (4, 4)),
    ("mk,kn->mn", (4, 1000003), (1000003, 4)),
    ("mk,kn->mn", (4, 4), (4, 1000003)),
    ("mk,k->m", (1000000, 4), (4,)),
    ("bi,bi->b", (100000, 20), (100000, 20)),
    ("aebd,ce->dcba", (48, 44, 48, 24), (24, 44)),
]


@pytest.mark.parametrize("case", ADDRESSED, ids=lambda case: f"{case[0]} {case[1]}")
def test_tables_are_small_beside_what_they_address(case):
    plan = engine.compile(*case, threads=2).plan
    elements = [math.prod(axis.size for axis in buffer.layout.axes) for buffer in plan.buffers]
    addressed = sum(count * buffer.layout.itemsize for count, buffer in zip(elements, plan.buffers))
    assert addressed > 10 * MB
    share = plan.table_bytes / addressed
    assert share < 0.01, f"{plan.table_bytes} bytes of tables for {addressed}: {100 * share:.1f} %"


@pytest.mark.parametrize("size", [1 << 20, 1000003])
def test_tables_of_a_dot_of_strided_vectors_are_small(size):
    """At 2**31 elements one of a number each would have 16 GiB."""
    a = np.ones(2 * size)[::2]
    plan = engine.compile("i,i->", a, a, threads=2).plan
    assert plan.table_bytes < 0.01 * 2 * a.nbytes


# -- limits ----------------------------------------------------------------------------------------------------------
def _network(seed: int) -> tuple[str, list[tuple[int, ...]]]:
    operands = random.Random(seed).randrange(3, 9)
    return rand_equation(operands, regularity=3, n_out=2, d_min=4, d_max=7, seed=seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_limit_in_elements_is_kept(seed):
    """opt_einsum's meaning: no intermediate has more elements; an error where there is no such order."""
    equation, shapes = _network(seed)
    free = engine.compile(equation, *shapes)
    sizes = free.plan.expr.sizes
    output = math.prod(free.plan.expr.output_shape)
    for limit in sorted({1, output, 2 * output, output + 50, 4 * output, 10**6}):
        try:
            f = engine.compile(equation, *shapes, memory_limit=limit)
        except engine.EngineValueError as error:
            assert f"memory_limit={limit} " in str(error) and limit < 10**6
            continue
        made = [buffer for buffer in f.plan.buffers if buffer.kind != "input"]
        largest = max(math.prod(sizes[axis.index] for axis in buffer.layout.axes) for buffer in made)
        assert largest <= limit


@pytest.mark.parametrize("seed", range(12))
def test_a_limit_in_bytes_is_kept(seed):
    """Never a plan of more bytes: another order, or an error with the numbers. Both are right."""
    equation, shapes = _network(seed)
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-2, 3, shape).astype(float) for shape in shapes]
    free = engine.compile(equation, *arrays)
    expected = free(*arrays)
    peak = free.plan.peak_bytes
    for limit in (peak, peak - 1, 3 * peak // 4, peak // 2):
        for text in (f"{limit}", f"{limit} B"):
            try:
                f = engine.compile(equation, *arrays, memory_limit=text)
            except engine.EngineValueError as error:
                message = str(error)
                assert f"memory_limit={text!r} is {limit} bytes" in message and "needs" in message and limit < peak
                needed = int(message.rpartition("needs ")[2].split()[0])
                assert limit < needed <= peak
                with pytest.raises(engine.EngineValueError, match="memory_limit="):
                    engine.einsum(equation, *arrays, memory_limit=text)
                continue
            assert f.plan.peak_bytes <= limit
            assert np.array_equal(f(*arrays), expected)
            assert np.array_equal(engine.einsum(equation, *arrays, memory_limit=text), expected)


@pytest.mark.parametrize("text, nbytes", [("1MB", 10**6), ("0.5 MiB", 1 << 19), ("600k", 600 << 10)])
def test_texts_of_limits(text, nbytes):
    """A result of half the limit fits, one of one and a half does not."""
    count = math.isqrt(nbytes // 16)
    f = engine.compile("i,j->ij", (count,), (count,), memory_limit=text)
    assert f.plan.peak_bytes <= nbytes
    with pytest.raises(engine.EngineValueError, match=f"memory_limit='{text}' is {nbytes} bytes"):
        engine.compile("i,j->ij", (3 * count,), (count,), memory_limit=text)


def test_an_output_of_the_callers_does_not_count_for_the_limit():
    a, b, out = np.ones((300, 20)), np.ones((20, 300)), np.empty((300, 300))
    with pytest.raises(engine.EngineValueError, match="memory_limit='600kB'"):
        engine.einsum("ij,jk->ik", a, b, memory_limit="600kB")
    out[...] = 0
    engine.einsum("ij,jk->ik", a, b, out=out, memory_limit="600kB")
    assert (out == 20).all()


# -- running out -----------------------------------------------------------------------------------------------------
OUT_OF_MEMORY = """
import resource, sys, numpy as np, einsum_engine as engine
a, b, c = np.ones((4000, 8)), np.ones((8, 4000)), np.ones((4000, 8))
out = np.full((4000, 8), 7.0)
free = resource.getrlimit(resource.RLIMIT_AS)
f = engine.compile("ij,jk,kl->il", a, b, c, optimize=False)  # an intermediate of 128 MB
g = engine.compile("ij,jk->ik", a, b)  # a result of 128 MB
small = engine.compile("ij,jk->ik", (4, 5), (5, 6))
f(a, b, c), f(a, b, c, out=out.copy()), g(a, b), small(np.ones((4, 5)), np.ones((5, 6)))  # threads start, code is loaded
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
for _ in range(3):
    resource.setrlimit(resource.RLIMIT_AS, (used + 60_000_000, free[1]))
    for call in (lambda: f(a, b, c), lambda: f(a, b, c, out=out), lambda: g(a, b)):
        try:
            call()
        except MemoryError as error:
            assert isinstance(error, engine.EngineMemoryError)
            print(error)
        else:
            sys.exit("there was memory")
        assert (out == 7).all()
        assert (small(np.ones((4, 5)), np.ones((5, 6))) == 5).all()
    resource.setrlimit(resource.RLIMIT_AS, free)
    assert (f(a, b, c) == 32000).all() and (g(a, b) == 8).all()
print(f.plan.arena_bytes, f.plan.peak_bytes, g.plan.output_bytes)
"""


def test_running_out_of_memory_names_the_bytes_and_breaks_nothing():
    *messages, figures = _python(OUT_OF_MEMORY, **NOTHING_KEPT).splitlines()
    arena, peak, output = map(int, figures.split())
    peaks = (peak, peak - 4000 * 8 * 8)  # without and with out=
    assert len(messages) == 9
    for number, message in enumerate(messages):
        if number % 3 < 2:
            assert "'ij,jk,kl->il'" in message and f"{arena} bytes" in message
            assert f"(peak_bytes of this plan: {peaks[number % 3]})" in message
        else:
            assert f"{output} bytes" in message and "(4000, 4000)" in message and "float64" in message


def _held(pool) -> list[int]:
    """Bytes of the blocks that are kept, the oldest first."""
    return pool.words[words.R_BLOCKS + 1 :: 2][: pool.words[words.R_COUNT]].tolist()


def test_the_buffer_that_came_back_last_is_used_first():
    pool = recycle.BufferPool()
    first, second = pool.take(1 << 20), pool.take(1 << 20)
    older, newer = first.ctypes.data, second.ctypes.data
    del first, second
    assert pool.nbytes == sum(_held(pool)) == 2 * ((1 << 20) + words.ROOM)
    assert pool.take(1 << 20).ctypes.data == newer
    kept = pool.take(1 << 20)
    assert kept.ctypes.data == newer and pool.take(1 << 20).ctypes.data == older
    larger = pool.take(1 << 21)
    assert larger.ctypes.data not in (newer, older) and len(_held(pool)) == 1
    pool.clear()
    assert not pool.nbytes and not _held(pool)


def test_the_oldest_buffers_go_first(monkeypatch):
    monkeypatch.setenv("EINSUM_ENGINE_POOL_BYTES", str(100_000))
    pool = recycle.BufferPool()
    many = [pool.take(size) for size in (10_000, 20_000, 30_000, 40_000, 200_000)]
    while many:
        del many[0]
    assert _held(pool) == [30_000 + words.ROOM, 40_000 + words.ROOM]
    monkeypatch.setenv("EINSUM_ENGINE_POOL_BYTES", "0")
    small = pool.take(10)
    assert not pool.nbytes
    del small
    assert not pool.nbytes
    monkeypatch.setenv("EINSUM_ENGINE_POOL_BYTES", "1GiB")
    many = [pool.take(10_000 + n) for n in range(words.MOST_BLOCKS + 3)]
    while many:
        del many[0]
    assert _held(pool) == [10_003 + n + words.ROOM for n in range(words.MOST_BLOCKS)]
    pool.clear()


@pytest.mark.parametrize("beside, place", (([], 0), ([8208], 0), ([100, 4096 + 300, 3000], 2944), ([64, 4160], 64)))
def test_results_begin_beside_what_is_read(beside, place):
    pool = recycle.BufferPool()
    array = pool.take(1000, beside=beside)
    assert array.ctypes.data % words.PAGE == place
    assert pool.take(1000).ctypes.data % words.PAGE == 0


def test_recycled_arrays_own_their_memory(monkeypatch):
    """They may be resized, and be made zero, by the same handler; large results of entries have it too."""
    old = fastcall.set_handler(recycle.results.handler)
    try:
        zeros = np.zeros(100_000)
    finally:
        fastcall.set_handler(old)
    assert not zeros.any() and zeros.flags.owndata
    zeros[:] = np.arange(100_000)
    for size in (300_000, 50_000, 120_000):
        kept = min(size, len(zeros))
        zeros.resize(size, refcheck=False)
        assert (zeros[:kept] == np.arange(kept)).all() and not zeros[kept:].any()
        zeros[kept:] = np.arange(kept, size)
    a = np.ones((512, 512))
    double = engine.jit(lambda x: x * 2)
    results = [double(a) for _ in range(4)]
    names = {np._core.multiarray.get_handler_name(each) for each in (*results, zeros)}
    assert names == {"einsum_engine"} and all((each == 2).all() for each in results)
    assert np._core.multiarray.get_handler_name(np.ones(3)) == "default_allocator"


def _looks(pool):
    """A buffer comes back to ``pool``, which looks at a safe point of the main thread."""
    first = pool.take(1 << 20)
    del first
    return [None for _ in range(1000)]


def test_little_memory_lets_go_of_buffers(monkeypatch):
    pool, asked = recycle.BufferPool(), []
    monkeypatch.setattr(machine_memory, "share_left", lambda: asked.append(1) or 0.05)
    assert _looks(pool) and asked and not pool.nbytes


def test_new_memory_has_it_look_too(monkeypatch):
    """A program may keep all results. What is handed out again makes nothing scarce."""
    pool, asked = recycle.BufferPool(), []
    used = [pool.take(1 << 20), pool.take(1 << 22)]
    del used
    monkeypatch.setattr(machine_memory, "share_left", lambda: asked.append(1) or 0.05)
    pool.words[words.R_NEXT_NEW] = 0
    again = [pool.take(1 << 20), *(None for _ in range(1000))]
    assert again and not asked and pool.nbytes
    new = [pool.take(1 << 21), *(None for _ in range(1000))]
    assert new and asked and not pool.nbytes


def test_ctrl_c_while_it_looks_for_memory_reaches_the_program(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    pool = recycle.BufferPool()
    monkeypatch.setattr(machine_memory, "share_left", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _looks(pool)
    assert pool.nbytes and not capsys.readouterr().err
    pool.clear()


@pytest.mark.parametrize("off, kept", [("ARENA", "results"), ("POOL", "arenas")])
def test_results_and_arenas_are_kept_apart(off, kept, monkeypatch):
    """Each in a pool of its own, with a bound of its own; the arena is too large for the common one."""
    monkeypatch.setenv(f"EINSUM_ENGINE_{off}_BYTES", "0")
    pools = {"results": recycle.results, "arenas": recycle.arenas}
    a, b, c = np.ones((2000, 3)), np.ones((3, 2000)), np.ones((2000, 200))
    f = engine.compile("ij,jk,kl->il", a, b, c, optimize=False)
    assert f.plan.arena_bytes > recycle.COMMON_BYTES and f.plan.output_bytes > recycle.SMALLEST
    for pool in pools.values():
        pool.clear()
    for _ in range(2):
        assert (f(a, b, c) == 6000).all()
        assert [name for name, pool in pools.items() if pool.nbytes] == [kept]
    pools[kept].clear()


@pytest.mark.parametrize("columns", [20, 600], ids=["stays with its plan", "from the pool"])
def test_arenas_begin_as_zeros(columns, monkeypatch):
    """Kernels compute with lanes of panels that nobody writes, and denormal numbers there take a hundred cycles each."""
    monkeypatch.setattr(recycle, "arenas", recycle.BufferPool("EINSUM_ENGINE_ARENA_BYTES", zeros=True))
    a, b, c = np.ones((90, 37)), np.ones((37, columns)), np.ones((columns, 70))
    native = executor.bind(engine.compile("ij,jk,kl->il", a, b, c, optimize=[(0, 1), (0, 1)]).plan)
    frames = []  # what one has does not come back
    for _ in range(3):
        used = [np.full(native.plan.arena_bytes + 64, 255, np.uint8) for _ in range(20)]
        del used  # what the heap gives next
        frames.append(native._frame())
        assert not frames[-1]._memory.any() and (frames[-1]._nbytes > executor._KEPT_BYTES) == (columns > 20)


def test_an_arena_has_numbers_of_one_kind(monkeypatch):
    """What comes back from a plan of the same kind is as it was, from others zeros; the common arenas are different ones."""
    monkeypatch.setattr(recycle, "arenas", recycle.BufferPool("EINSUM_ENGINE_ARENA_BYTES", zeros=True))
    kinds = [("float64", "float64", 7), ("float64", "float32", 0), ("other", "float32", 0), ("other", "other", 7)]
    for before, after, kept in kinds:
        memory = recycle.arena(1 << 20, before)
        address, memory[:] = memory.ctypes.data, 7
        assert address % 64 == 0 and len(memory) >= 1 << 20
        del memory
        again = recycle.arena(1 << 20, after)
        assert again.ctypes.data == address and (again == kept).all()
        del again
        recycle.arenas.clear()
    kinds = [recycle.kind_of(dtypes) for dtypes in (["float32", "complex64"], ["complex128"], ["float64", "int64"])]
    assert kinds == ["float32", "float64", "other"]
    assert len({id(recycle.common(64, kind)) for kind in kinds}) == 3
    assert recycle.common(64, "other") is recycle.common(64, "other")


def test_arrays_outlive_the_modules():
    script = "import einsum_engine as e, numpy as np, builtins\na = np.ones((512, 512))\nf = e.jit(lambda x: x * 2)\n"
    assert _python(script + "builtins.kept = [f(a) for _ in range(5)]") == ""
