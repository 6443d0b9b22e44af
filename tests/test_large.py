"""More than 2**31 elements and offsets of more than 2**31 bytes, in either direction, in little memory.

Operands are broadcast, or a few rows of reserved address space: pages that nobody touches are no memory. Tests that
need real memory skip where there is too little.
"""

import mmap
from pathlib import Path

import numpy as np
import oracle
import pytest
from plan_cases import QUICK_MEMORY, machine

import einsum_engine as engine

BIG = 2**31 + 5  # elements: one dimension, more than an int32 counts
SIDE = 46349  # SIDE**2 is a little more than 2**31
FAR = 2**31 + 64  # bytes from one entry to the next


def _needs(nbytes: int) -> None:
    """Skips where less than twice so much memory is left."""
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        left = int(fields["MemAvailable"].split()[0]) * 1024
        groups = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")]
        if all(path.exists() for path in groups) and groups[0].read_text().strip() != "max":
            left = min(left, int(groups[0].read_text()) - int(groups[1].read_text()))
    except (OSError, KeyError):
        pytest.skip("the memory that is left cannot be read")
    if left < 2 * nbytes:
        pytest.skip(f"needs {2 * nbytes} bytes of free memory, {left} are left")


def _constant(shape: tuple[int, ...], dtype: str, value=1) -> np.ndarray:
    """All elements are one."""
    return np.broadcast_to(np.array(value, dtype), shape)


def _far(array: np.ndarray, axes: dict[int, int], offset: int = 0) -> np.ndarray:
    """A copy of a small array: ``axes`` have the strides given, in bytes of any sign, the others those of C order."""
    strides = list(np.empty(array.shape, array.dtype).strides)
    for axis, stride in axes.items():
        strides[axis] = stride
    reach = [(size - 1) * stride for size, stride in zip(array.shape, strides)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + array.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = np.frombuffer(mmap.mmap(-1, high - low + offset, flags), np.uint8)
    except OSError as error:
        pytest.skip(f"{high - low} bytes of address space cannot be reserved: {error}")
    copy = np.ndarray(array.shape, array.dtype, memory, offset - low, strides)
    copy[...] = array
    return copy


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return oracle.random(np.random.default_rng(seed), shape, dtype, exact=True)


# -- strides of more than 2**31 bytes --------------------------------------------------------------------------------
# expression, shapes, and for each operand the axes that are far apart: packed and direct GEMM, dot, batches, copies,
# sums, products, whose offsets are tables in some families and strides in others
FAR_APART = {
    "rows of a direct product": ("mk,kn->mn", [(5, 40), (40, 3)], [{0: FAR}, {}]),
    "sums of a direct product": ("mk,kn->mn", [(5, 4), (4, 30)], [{1: FAR}, {0: -FAR}]),
    "columns": ("mk,kn->mn", [(50, 40), (40, 3)], [{}, {1: FAR}]),
    "packed rows": ("mk,kn->mn", [(4, 300), (300, 500)], [{0: -FAR}, {}]),
    "packed sums": ("km,kn->mn", [(3, 300), (3, 500)], [{0: FAR}, {0: FAR}]),
    "batch": ("bmk,bkn->bmn", [(3, 20, 30), (3, 30, 10)], [{0: FAR}, {0: -FAR}]),
    "dot": ("bk,bk->b", [(3, 500), (3, 500)], [{0: FAR}, {0: -2 * FAR}]),
    "long dot": ("ak,ak->", [(3, 5000), (3, 5000)], [{0: FAR}, {0: -FAR}]),
    "matrix and vector": ("mk,k->m", [(4, 1000), (1000,)], [{0: -FAR}, {}]),
    "transpose": ("abc->cba", [(3, 20, 30)], [{0: FAR}]),
    "sum of far rows": ("abc->c", [(3, 20, 30)], [{0: -FAR}]),
    "sum of each row": ("abc->a", [(3, 20, 30)], [{0: FAR}]),
    "product": ("ab,ab->ba", [(3, 40), (3, 40)], [{0: FAR}, {0: -FAR}]),
    "outer": ("a,b->ab", [(4,), (50,)], [{0: -FAR}, {}]),
    "diagonal": ("aab->ab", [(3, 3, 20)], [{0: FAR, 1: -3 * FAR}]),
    "network": ("ab,bc,cd,de->ae", [(4, 20), (20, 3), (3, 30), (30, 5)], [{0: FAR}, {1: -FAR}, {0: FAR}, {1: FAR}]),
}


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8", "float16"])
@pytest.mark.parametrize("case", FAR_APART)
def test_operands_far_apart(case, dtype):
    expression, shapes, axes = FAR_APART[case]
    near = [_random(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    far = [_far(array, each) for array, each in zip(near, axes)]
    expected = np.einsum(expression, *[array.astype("f8" if dtype == "float16" else dtype) for array in near])
    expected = np.asarray(expected).astype(dtype)
    assert np.array_equal(engine.einsum(expression, *far), expected)
    assert np.array_equal(engine.compile(expression, *far, threads=3)(*far), expected)
    assert np.array_equal(engine.compile(expression, *near, optimize=False)(*far), expected)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8"])
@pytest.mark.parametrize("case", FAR_APART)
def test_results_far_apart(case, dtype):
    """In a result, its first axis and then its last one are far apart, in either direction."""
    expression, shapes, _ = FAR_APART[case]
    operands = [_random(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    expected = np.asarray(np.einsum(expression, *operands))
    for axis in dict.fromkeys((0, expected.ndim - 1) if expected.ndim else ()):
        if expected.shape[axis] > 7:
            continue  # too much address space
        for stride in (FAR, -FAR):
            out = _far(np.full_like(expected, 7), {axis: stride})
            assert engine.einsum(expression, *operands, out=out) is out
            assert np.array_equal(out, expected), (axis, stride)
            engine.einsum(expression, *operands, out=out, alpha=2, beta=1)
            assert np.array_equal(out, (3 * expected.astype(dtype)).astype(dtype)), (axis, stride)


def test_byte_swapped_and_unaligned_operands_far_apart():
    near = _random((3, 40), "float64", 0)
    far = _far(near.astype(">f8"), {0: -FAR - 3}, offset=1)
    assert not far.flags.aligned
    assert np.array_equal(engine.einsum("ab->ba", far, copy=True), near.T)
    assert np.array_equal(engine.einsum("ab,cb->ac", far, near), near @ near.T)


# -- more than 2**31 elements ----------------------------------------------------------------------------------------
# Whole numbers that wrap around as they should, or are exact.
@pytest.mark.parametrize(
    "expression, shapes, dtype, value",
    [
        ("i->", [(BIG,)], "int64", 3 * BIG),
        ("i->", [(BIG,)], "float64", 3 * BIG),
        ("i->", [(BIG,)], "int8", 3 * BIG),
        ("ij->", [(SIDE, SIDE)], "int32", 3 * SIDE**2),
        ("ij->i", [(3, BIG)], "int64", 3 * BIG),
        ("ij->j", [(BIG, 3)], "int16", 3 * BIG),
        ("ij,ij->i", [(SIDE, SIDE)] * 2, "int16", 9 * SIDE),
    ],
)
def test_more_than_2_31_terms_of_one_number(expression, shapes, dtype, value):
    result = np.asarray(engine.einsum(expression, *[_constant(shape, dtype, 3) for shape in shapes]))
    bits = 8 * result.itemsize
    expected = np.array(value % (1 << bits), f"uint{bits}").view(dtype) if result.dtype.kind == "i" else value
    assert (result == expected).all(), result


def test_dots_of_more_than_2_31_terms():
    _needs(BIG)
    a = np.zeros(BIG, np.int8)
    at = np.unique([*np.random.default_rng(0).integers(0, BIG, 1000), BIG - 1])
    a[at] = at % 100 + 1
    expected = int((a[at].astype(int) ** 2).sum())
    assert (int(engine.einsum("i,i->", a, a)) - expected) % 256 == 0
    twice = engine.einsum("ij,j->i", np.broadcast_to(a, (2, BIG)), a)
    assert twice.shape == (2,) and ((twice.astype(int) - expected) % 256 == 0).all()


def test_a_product_over_more_than_2_31_points():
    a, b = _random((2048, 1100), "int8", 1), _random((1100, 2048), "int8", 2)
    expected = (a.astype(float) @ b.astype(float)).astype(np.int64).astype(np.int8)
    assert a.shape[0] * a.shape[1] * b.shape[1] > 2**31
    assert np.array_equal(engine.einsum("mk,kn->mn", a, b), expected)


def test_a_bool_sum_finds_the_last_of_more_than_2_31():
    _needs(BIG)
    a = np.zeros(BIG, bool)
    assert not engine.einsum("i->", a)
    a[-1] = True
    assert engine.einsum("i->", a)
    assert engine.einsum("i,i->", a, a)
    assert engine.einsum("i->", a[::-1]) and not engine.einsum("i->", a[:-1])


def _sparse(count: int, seed: int) -> np.ndarray:
    """Zeros but for a few places, the last among them."""
    rng = np.random.default_rng(seed)
    vector = np.zeros(count, np.int8)
    vector[[*rng.integers(0, count, 50), -1]] = rng.integers(1, 12, 51)
    return vector


def test_results_of_more_than_2_31_elements():
    _needs(SIDE**2)
    a, b = np.stack([_sparse(SIDE, 0), _sparse(SIDE, 1)]), np.stack([_sparse(SIDE, 2), _sparse(SIDE, 3)])
    out = np.empty((SIDE, SIDE), np.int8)
    assert out.size > 2**31
    engine.einsum("ki,kj->ij", a, b, out=out)
    rows = np.array([*np.flatnonzero(a.any(0)), 1, SIDE // 2])
    assert np.array_equal(out[rows], a[:, rows].T @ b)
    total = int((a.sum(1, dtype=int) * b.sum(1, dtype=int)).sum())
    assert (int(engine.einsum("ij->", out)) - total) % 256 == 0
    # Read again, also backwards: elements far below the first one.
    vector = _sparse(SIDE, 4)
    columns = np.flatnonzero(vector)
    expected = out[:, columns] @ vector[columns]
    assert np.array_equal(engine.einsum("ij,j->i", out, vector), expected)
    assert np.array_equal(engine.einsum("ij,j->i", out[::-1, ::-1], vector[::-1]), expected[::-1])
    assert np.array_equal(engine.einsum("ji,j->i", out[::-1], vector[::-1]), vector[columns] @ out[columns])


def test_an_outer_product_of_more_than_2_31_elements():
    columns = BIG // 3 + 1
    _needs(3 * columns)
    a, b = np.array([1, 2, 3], np.int8), _sparse(columns, 0)
    result = engine.einsum("i,j->ij", a, b)
    assert result.size > 2**31
    for row in range(3):
        assert np.array_equal(result[row], a[row] * b)


def test_a_transpose_of_more_than_2_31_elements():
    """Of a broadcast operand, so that only the result is memory."""
    columns = BIG // 61 + 1
    _needs(61 * columns)
    pattern = np.arange(columns, dtype=np.int64).astype(np.int8)
    result = engine.einsum("ij->ji", np.broadcast_to(pattern, (61, columns)), copy=True)
    assert result.shape == (columns, 61) and result.size > 2**31 and result.flags.c_contiguous
    for column in (0, 17, 60):
        assert np.array_equal(result[:, column], pattern)


def test_an_intermediate_of_more_than_2_31_elements():
    _needs(SIDE**2)
    a, b, c = _sparse(SIDE, 0), _sparse(SIDE, 1), np.ones(SIDE, np.int8)
    operands = np.stack([a, a], 1), np.stack([b, 2 * b]), c  # a sum of two: an outer product would be made block by block
    with machine(**QUICK_MEMORY):
        f = engine.compile("ix,xj,j->i", *operands, optimize=[(0, 1), (0, 1)])
    assert f.plan.arena_bytes > 2**31
    assert np.array_equal(f(*operands), (3 * a * b.sum(dtype=np.int8)).astype(np.int8))


def test_an_index_space_of_more_than_2_63_points_is_refused():
    a = _constant((2**22, 2**22), "int8")
    with pytest.raises(engine.EngineValueError, match="'ij,kl->ijkl'"):
        engine.einsum("ij,kl->ijkl", a, a)
