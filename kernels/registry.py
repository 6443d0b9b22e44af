"""The kernel families in one table, with the compiled kernels of each.

Warm-up and the tests walk ``names`` to have every kernel that a plan can ask for. A family without compiled kernels
does not exist: NumPy references are oracles, never a row here. What a family asks of its operands is no column:
`fits` of its module says it, or its problem cannot be made of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Callable, Iterator

from . import batched, fused_products, indexed, nest_strips, packs, random, small, sort, tiles
from .cpu.storage import STORAGES, canonical_pair
from .isa import ISA
from .nest_rows import kernel_target


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kernel family. ``names``: kernels on an instruction set.

    ``timed``: with `tiles.TIMED` behind it, each is the name of one that counts packing and unpacking. These are compiled
    when somebody profiles, never by warm-up. ``fails``: it may find its operands wrong (`failures`).
    """

    name: str
    names: Callable[[ISA], tuple[str, ...]]
    timed: bool = False
    fails: bool = False


def _gemm(isa: ISA) -> tuple[str, ...]:
    return tuple(
        f"gemm_{dtype}_{mv}x{nr}_{modes}"
        for dtype in tiles.DTYPES
        for mv, nr in tiles.tiles(isa, dtype)
        for modes in ("pp", "pd", "dp", "dd")
    )


def _pack(isa: ISA) -> tuple[str, ...]:
    return ("packtask", *packs.names(), *(f"unpack_{size}" for size in packs.ITEM_SIZES))


def _dot(isa: ISA) -> tuple[str, ...]:
    kinds = tuple(f"dot_{dtype}_{kind}" for dtype, kind in product(tiles.DTYPES, ("tile", "rows")))
    return kinds + tuple(f"dotsum_{dtype}" for dtype in tiles.DTYPES)


def _batched(isa: ISA) -> tuple[str, ...]:
    return tuple(f"batched_{dtype}_{mt}x{nt}" for dtype in tiles.DTYPES for mt, nt in batched.tiles(isa, dtype))


def _copy(isa: ISA) -> tuple[str, ...]:
    moves = [f"nest_move_{size}" for size in packs.ITEM_SIZES]
    strips = [f"nest_strips_{size}" for size in nest_strips.ITEM_SIZES]
    strips += [f"nest_short_{size}" for size in nest_strips.SHORT_SIZES]
    strips += [f"nest_whole_{size}" for size in nest_strips.ITEM_SIZES]
    return tuple(dict.fromkeys(["nest_copy", *moves, *strips, "nest_lines", *_casts()]))


def _casts() -> Iterator[str]:
    """Storage to compute dtype and back, in either byte order; with alpha and beta, compute to storage."""
    for a, b in product(STORAGES, STORAGES):
        if a not in (STORAGES[a].compute, STORAGES[b].compute) and b != STORAGES[b].compute:
            continue
        source, target = canonical_pair(a, b)
        yield f"nest_cast_{source}_{target}"
        if STORAGES[a].bits > 8 and b == STORAGES[b].compute:
            # an operand in the other byte order; results are swapped by NumPy
            yield f"nest_cast_{source}_{target}_swap"
    for name, storage in STORAGES.items():
        yield f"nest_axpby_{storage.compute}_{kernel_target(name)}"


def _mul(isa: ISA) -> tuple[str, ...]:
    return tuple(f"nest_mul_{d}_{d}_{d}" for d in tiles.DTYPES)


def _sum(isa: ISA) -> tuple[str, ...]:
    return tuple(f"nest_sum_{d}_{d}" for d in tiles.DTYPES)


def _fused(isa: ISA) -> tuple[str, ...]:
    """Row functions of other structures are compiled when a program has them, and come from disk from then on."""
    return ("fused_run", "fused_tile", "fused_stage", *fused_products.names())


def _indexed(isa: ISA) -> tuple[str, ...]:
    return indexed.names()


def _random(isa: ISA) -> tuple[str, ...]:
    return random.names()


def _sort(isa: ISA) -> tuple[str, ...]:
    return sort.names()


def _guard(isa: ISA) -> tuple[str, ...]:
    return ("guard",)


def _walk(isa: ISA) -> tuple[str, ...]:
    """What every call goes through, and the loops that `calibrate.quick_rates` runs before the first plan."""
    results = tuple(f"results_{kind}" for kind in ("malloc", "calloc", "realloc", "free", "clear"))
    return ("walk", "worker_loop", "blocks", "entry", *results, "fmapeak_float32", "fmapeak_float64", "fmachain_float32", "copy_plain", "copy_stream")


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(name="gemm", names=_gemm, timed=True),
        Family(name="pack", names=_pack),
        Family(name="dot", names=_dot),
        Family(name="batched", names=_batched),
        Family(name="small", names=small.names),
        Family(name="copy", names=_copy),
        Family(name="mul", names=_mul),
        Family(name="sum", names=_sum),
        Family(name="fused", names=_fused),
        Family(name="indexed", names=_indexed, fails=True),
        Family(name="random", names=_random),
        Family(name="sort", names=_sort),
        Family(name="guard", names=_guard, fails=True),
        Family(name="walk", names=_walk),
    )
}


def kernel_names(isa: ISA) -> tuple[str, ...]:
    """Every kernel that a plan for ``isa`` can name, most often needed first."""
    order = ("walk", "pack", "gemm", "dot", "copy", "mul", "sum")
    rest = [name for name in FAMILIES if name not in order]
    return tuple(dict.fromkeys(k for name in (*order, *rest) for k in FAMILIES[name].names(isa)))
