"""Predicted time of the products that need no packing: what the layout solver compares them with GEMMs by."""

from __future__ import annotations

from math import prod

from .. import cost
from ..kernels import tiles as tile_table
from ..kernels.batched import BatchedProblem, tile_for
from ..kernels.cpu.units import PAGE
from ..kernels.isa import ISA
from ..kernels.loops import Loops, outer_total
from ..kernels.small import SmallProblem, at_once
from .cache_sets import line_cycles
from .gemm_cost import CACHE_BYTES, MEMORY_RATE, SHARED_BYTES, SHARED_RATE
from .unpacked import UnpackedPlan

TILE = 10.0  # cycles: to start and end a tile of vectors
STORE = 2.0  # a vector of C
PRODUCT = 30.0  # to start and end one of many small products
GATHER = 0.3  # an element of a row of B that is strided
TURN = 5.0  # a row of a square that is turned round
PAGED = 4.0  # times as long where the elements share one cache set
WIDE_GATHER, WIDE = 7.6, 8  # of more elements than so many: two halves, which are put together


def unpacked_seconds(plan: UnpackedPlan, isa: ISA, machine: cost.Machine) -> float | None:
    """Seconds on one thread, copies included; None where there is no better prediction than a roofline."""
    problem = plan.problem
    vector = (4 if problem.dtype in tile_table.COMPLEX else 2) * tile_table.elements(isa, problem.dtype)
    second = vector / machine.peak.get(problem.dtype, 1e9)  # of a cycle
    copied = cost.seconds(0, 2 * plan.copied_bytes, problem.dtype, machine) if plan.copied_bytes else 0.0
    if plan.family == "small":
        gathers, waits = problem.strided and not problem.written_out(isa), small_waits(problem, isa)
        if not (gathers or waits):
            return None
        gathered = problem.products * problem.k * problem.n * tile_table.ITEMSIZE[problem.dtype] if gathers else 0
        seconds = _small_cycles(problem, isa) * second + (gathered / MEMORY_RATE if gathered > CACHE_BYTES else 0.0)
        streamed = cost.seconds(problem.flops, _bytes_of_small(problem), problem.dtype, machine) if waits else 0.0
        return max(seconds, streamed) + problem.products * waits * second + copied
    if plan.family != "batched":
        return None
    return _cycles(problem, isa) * second + _moved(problem) + copied


def _cycles(p: BatchedProblem, isa: ISA) -> float:
    """With the tile that dimensions ask for; the one that runs is found from tables, too (`batched.arranged`)."""
    m, n = max(p.m, p.n), min(p.m, p.n)
    mt, nt = tile_for(isa, p.dtype, m, n)
    vectors = outer_total(p.outer) * -(-p.lanes // tile_table.elements(isa, p.dtype))
    parts = 2 if p.dtype in tile_table.COMPLEX else 1
    tile = p.k * parts * (mt * nt + mt + nt) + TILE + STORE * mt * nt
    return vectors * -(-m // mt) * -(-n // nt) * tile


def small_waits(p: SmallProblem, isa: ISA) -> float:
    """Cycles that each product waits for lines of its operands; of kernels with rows and terms written out it is not known."""
    if p.written_out(isa) or p.m_half is not None or p.k_half is not None:
        return 0.0
    item = tile_table.ITEMSIZE[p.dtype]
    a = (p.m, p.m_strides[0]), (p.k, p.k_strides[0])
    b = (p.k, p.k_strides[1]), (p.n, item if p.n_stride is None else p.n_stride)
    return sum([line_cycles(steps, (p.t, p.t_strides[i]), item=item) for i, steps in enumerate((a, b))])


def _bytes_of_small(p: SmallProblem) -> int:
    """Of operands and result, each once."""
    inside = p.m * p.k, p.k * p.n, p.m * p.n
    turns = [turns * (p.t if step else 1) for turns, step in zip(_turns(p.outer), p.t_strides)]
    return tile_table.ITEMSIZE[p.dtype] * sum([count * size for count, size in zip(turns, inside)])


def _turns(outer: Loops) -> list[int]:
    """Of outer loops, those that come to other elements of A, B and C."""
    return [prod([count for count, *tables in outer if tables[tensor].any()]) for tensor in range(3)]


def _small_cycles(p: SmallProblem, isa: ISA) -> float:
    """Rows of B that are strided the family gathers or turns round."""
    parts = 2 if p.dtype in tile_table.COMPLEX else 1
    width, kind = at_once(isa, p.dtype, m=p.m, n=p.n, k=p.k, columns=p.columns)
    if kind == "t":
        return p.products * (PRODUCT + -(-p.n // width) * (p.k * TURN + p.m * (p.k * parts + STORE)))
    gather = GATHER * min(p.n, width) if min(p.n, width) <= WIDE else WIDE_GATHER
    gather = gather if p.strided else 0.0
    if min(p.n, width) > WIDE and (p.n_stride or 0) % PAGE == 0:
        gather *= PAGED
    return p.products * (PRODUCT + p.m * -(-p.n // width) * (p.k * (parts + gather) + STORE))


def _moved(p: BatchedProblem) -> float:
    """Seconds to read and write what does not fit the caches."""
    item = tile_table.ITEMSIZE[p.dtype]
    sizes = [x * y * z * p.lanes * item for x, y, z in zip(_turns(p.outer), (p.m, p.n, p.m), (p.k, p.k, p.n))]
    large = sum(size for size in sizes if size > CACHE_BYTES)
    return large / (SHARED_RATE if sum(sizes) <= SHARED_BYTES else MEMORY_RATE)
