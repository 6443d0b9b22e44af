"""What products are predicted to take: a price for each way to pack, and what is known to be slow costs more."""

import pytest
from plan_cases import typical

from einsum_engine import cost
from einsum_engine.kernels import isa, tiles
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.cpu.units import PAGE
from einsum_engine.kernels.gemm import Operand
from einsum_engine.kernels.small import SmallProblem, width_for
from einsum_engine.plan import Axis
from einsum_engine.planners import gemm_cost, unpacked_cost
from einsum_engine.planners.contraction import BinaryContraction
from einsum_engine.planners.gemm import plan_gemm

HOST = isa.active_isa()
MODES = [abi.LANES_RUN, abi.K_RUN, abi.PANEL_RUN, abi.SCATTERED]
every_dtype = pytest.mark.parametrize("dtype", tiles.DTYPES)


def _work(sizes: dict[str, int], out: dict[str, int], batch: str = "", dtype: str = "float32"):
    """Of ``...mk,...kn->...mn`` in C order, with the strides ``out``, in elements, of the result."""
    item = tiles.ITEMSIZE[dtype]

    def dense(term: str) -> dict[str, Axis]:
        axes, step = {}, item
        for index in reversed(term):
            axes[index], step = Axis.strided(index, sizes[index], step), step * sizes[index]
        return axes

    c = BinaryContraction(
        dtype=dtype,
        sizes=sizes,
        batch=tuple(batch),
        m=("m",),
        n=("n",),
        k=("k",),
        left=dense(batch + "mk"),
        right=dense(batch + "kn"),
        out={index: Axis.strided(index, sizes[index], step * item) for index, step in out.items()},
    )
    return plan_gemm(c, HOST, threads=1, machine=typical(HOST)).work


def _seconds(work) -> float:
    typical = cost.typical_machine(HOST.name, HOST.vector_bits, HOST.fma)
    return gemm_cost.product_seconds(work, HOST, typical)


@every_dtype
@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
@pytest.mark.parametrize("mode", MODES)
def test_long_runs_are_packed_for_less(mode, row, dtype):
    prices = [gemm_cost._packed(mode, run, row, dtype) for run in (1, 2, 4, 8, 16, 32, 1000)]
    assert min(prices) > 0 and prices == sorted(prices, reverse=True)
    assert (prices[0] > prices[-1]) == (mode != abi.SCATTERED)


def test_columns_in_short_rows_cost_more_than_near_ones_and_less_than_far_ones():
    """Of tiles of few columns each leaves most of a line that it reads to the next ones."""
    work = _work(dict(m=12, n=106, k=680), dict(m=106, n=1))._replace(far_b=False, narrow=False)
    narrow = _seconds(work._replace(narrow=True)) - _seconds(work)
    far = _seconds(work._replace(far_b=True)) - _seconds(work)
    assert 0 < narrow < far


def test_lanes_whole_pages_apart_cost_more_than_others():
    """A page and a line apart they fall into as many cache sets as there are; adjacent lanes are stored together."""
    sizes, page, line = dict(m=64, n=48, k=8), PAGE // 4, 16
    paged = _work(sizes, dict(m=page, n=64 * page))
    apart = _work(sizes, dict(m=page + line, n=64 * (page + line)))
    beside = _work(sizes, dict(m=1, n=page))
    assert [work.crowded for work in (paged, apart, beside)] == [True, False, False]
    assert paged.stored[2] and apart.stored[2] and not beside.stored[2]
    assert _seconds(paged) > 1.5 * _seconds(apart) > 1.5 * _seconds(beside)


def test_a_batch_of_small_products_pays_for_each():
    one = _work(dict(m=4096, n=4, k=4), dict(m=4, n=1))
    many = _work(dict(b=1024, m=4, n=4, k=4), dict(b=16, m=4, n=1), batch="b")
    assert many.outer == 1024 and _seconds(many) > _seconds(one)


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_elements_in_one_cache_set_are_gathered_for_more(row):
    """Where so many are gathered at once that the set does not hold their lines."""
    apart, paged = (unpacked_cost._small_cycles(_small(16, step), row) for step in (28, PAGE))
    if width_for(row, "float32", 16, True) > unpacked_cost.WIDE:
        assert paged > 1.5 * apart
    else:
        assert paged == apart


def _small(n: int, step: int) -> SmallProblem:
    """Of 100 products of 5 x 3 by 3 x n, whose columns lie ``step`` bytes apart."""
    nowhere, b = Operand(slot=0, offset=0), 4 * n
    strides = {"t_strides": (60, 3 * b, 5 * b), "m_strides": (12, b), "k_strides": (4, b), "n_stride": step}
    return SmallProblem(dtype="float32", a=nowhere, b=nowhere, c=nowhere, t=100, m=5, n=n, k=3, **strides)
