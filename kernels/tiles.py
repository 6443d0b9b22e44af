"""The register tiles of the GEMM family, per instruction set and dtype: one table, read by planners and warm-up.

A tile is ``(mv, nr)``: ``mv`` vectors of lanes times ``nr`` broadcast columns. It needs ``mv * nr`` accumulators
(twice that for complex dtypes, whose products with re(b) and im(b) are kept apart), ``mv`` operand vectors and one
broadcast; `check` refuses a row that would spill. Wide rows serve large N, tall rows spend the freed registers on
the lanes side where N is small.
"""

from __future__ import annotations

from functools import lru_cache

from .cpu import cores
from .cpu.units import LINE
from .isa import ISA, ISAS

COMPLEX = ("complex64", "complex128")
NARROW = ("int8", "int16", "int32", "bool")  # rare in large products: fewer tiles, so that warm-up stays short
DTYPES = ("float32", "float64", "int64", *NARROW, *COMPLEX)
REAL = tuple(name for name in DTYPES if name not in COMPLEX)
ITEMSIZE = {
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}
# Bytes between panels: at distances of whole pages they would all fall into the same cache sets.
PANEL_GAP = 64
JUST_ENOUGH = 1.1  # times as long as their latency take accumulators that are as many as multiply-adds in flight
ADDRESSED = 8  # columns of a tile whose addresses have registers
# Ending of a kernel's name that also counts where its time goes (`cpu.stopwatch`).
TIMED = "_timed"

_TALL = ((3, 8), (1, 14), (4, 6), (6, 4), (1, 8), (2, 8), (1, 4), (8, 2), (2, 4), (2, 2), (8, 1), (1, 2), (2, 1))
# (registers or instruction set, kind) -> tiles, from the widest N down
_TILES = {
    (32, "real"): ((1, 24), (2, 14), *_TALL, (5, 5)),
    # Columns are multiplied from lanes of vectors there, and LLVM loads several of those ahead.
    # A packed B is multiplied by turns there, which wants few vectors of one side.
    ("sse2", "real"): ((2, 6), (1, 12), (1, 4), (4, 2), (2, 2), (4, 1), (1, 2), (1, 1)),
    ("sse2", "complex"): ((1, 6), (1, 4), (2, 1), (1, 1)),
    ("neon", "real"): ((2, 12), *_TALL),
    (32, "complex"): ((2, 6), (3, 4), (1, 12), (1, 6), (4, 2), (1, 4), (2, 2), (5, 2), (8, 1), (1, 2), (2, 1)),
    (16, "real"): ((2, 6), (3, 4), (1, 6), (1, 4), (4, 2), (2, 2), (4, 1), (1, 2), (1, 1)),
    (32, "narrow"): ((1, 14), (1, 8), (4, 6), (2, 4), (1, 2), (4, 1)),
    (16, "narrow"): ((2, 6), (1, 4), (4, 2), (1, 1)),
    (16, "complex"): ((2, 3), (1, 4), (1, 2), (3, 2), (2, 1), (1, 1)),
}  # fmt: skip


def reads_in_place(kernel: str) -> bool:
    """Whether a kernel of that name is a GEMM that reads rows of A or columns of B in place (`cpu.tile.TileSpec`)."""
    return kernel.startswith("gemm_") and "d" in kernel.removesuffix(TIMED)[-2:]


def tiles(isa: ISA, dtype: str) -> tuple[tuple[int, int], ...]:
    """Tiles of one dtype on one instruction set."""
    kind = "complex" if dtype in COMPLEX else "narrow" if dtype in NARROW else "real"
    known = _TILES.get((isa.name, kind)) or _TILES[isa.registers, kind]
    pairs = dtype.startswith("int")  # products of integers come two by two
    return tuple(tile for tile in known if registers_needed(isa, dtype, tile) <= isa.registers and not (pairs and odd(tile)))


def odd(tile: tuple[int, int]) -> bool:
    """Whether a tile has an odd number of products, and more than one.

    >>> odd((5, 5)), odd((1, 1)), odd((1, 6))
    (True, False, False)
    """
    return tile != (1, 1) and tile[0] * tile[1] % 2 == 1


def registers_needed(isa: ISA, dtype: str, tile: tuple[int, int]) -> int:
    """Accumulators, lanes and a broadcast; without fused multiply-add also the products before they are added."""
    mv, nr = tile
    parts = 2 if dtype in COMPLEX else 1
    return mv * nr * parts + mv + 1 + (0 if isa.fma else parts)


def turns(isa: ISA, dtype: str, nr: int) -> bool:
    """Whether columns of a packed B are multiplied as vectors, one side turned, and not each repeated in all lanes."""
    columns = nr * (2 if dtype in COMPLEX else 1)
    return not isa.repeats and dtype.startswith(("float", "complex")) and columns % _lanes(isa, dtype) == 0


def check(isa: ISA, dtype: str, tile: tuple[int, int]) -> None:
    """Raises ValueError when the tile cannot be held in registers."""
    needed = registers_needed(isa, dtype, tile)
    if needed > isa.registers:
        raise ValueError(f"tile {tile[0]}x{tile[1]} of {dtype} needs {needed} registers, {isa.name} has {isa.registers}")


def elements(isa: ISA, dtype: str) -> int:
    """Elements of ``dtype`` in one vector (a complex element takes two lanes)."""
    return isa.vector_bits // (8 * ITEMSIZE[dtype])


def moves(isa: ISA, dtype: str, run: int) -> int:
    """In how many pieces a run of elements is moved: whole vectors, then powers of two."""
    whole, rest = divmod(run, elements(isa, dtype))
    return whole + rest.bit_count()


def carries(isa: ISA, dtype: str, tile: tuple[int, int]) -> bool:
    """Whether a vector is a line, parts of it can be stored, and a column has more than one: else all of its lines would be
    put together of two parts, which takes longer than it saves."""
    return isa.masks and isa.vector_bits == 8 * LINE and isa.vector_bits // _lanes(isa, dtype) >= 32 and tile[0] > 1


def chunk(isa: ISA, dtype: str, run: int, equal: int) -> int:
    """How many elements of a run are moved at a time: a vector or a part of it, ``equal``, or all of them in pieces. These
    take longer to begin: there should be less than half as many."""
    return run if 2 * moves(isa, dtype, run) * equal < run else equal


def units(isa: ISA, dtype: str, in_flight: int) -> float:
    """How many times as many multiply-adds a cycle as on a common core, where ``in_flight`` are under way (0: as many as there).
    Integers multiply in one unit."""
    return max(1.0, in_flight / isa.in_flight) if dtype.startswith(("float", "complex")) else 1.0


def _lanes(isa: ISA, dtype: str) -> int:
    """Real numbers in a vector."""
    return elements(isa, dtype) * (2 if dtype in COMPLEX else 1)


@lru_cache(maxsize=None)
def efficiency(isa: ISA, dtype: str, tile: tuple[int, int], in_place: bool = False, in_flight: int = 0) -> float:
    """Share of the FMA peak that the K loop of a tile can reach: operand loads and accumulator latency bound it.

    A k step issues one FMA a cycle (two where vectors are narrower), a load of a lanes vector from L2 takes two
    cycles, and every accumulator is updated once per step, so a step takes at least the FMA latency of four cycles, and
    of floats on a common core a tenth more where there is just one for each multiply-add under way, which may start late.
    The constants are measured ones; `docs/performance.md` has the table. ``in_place``: so B is read, column by column.
    ``in_flight``: multiply-adds under way at the peak of this machine, 0: of a common core; twice as many are two a cycle,
    as many as there are loads, broadcasts included, and a lanes vector takes `cpu.cores.Core.lanes_load` of them.
    """
    mv, nr = tile
    columns = nr * (2 if dtype in COMPLEX else 1)
    fmas = mv * columns
    if not isa.repeats:
        return fmas / max(fmas + 2 + 0.7 * shuffles(isa, dtype, tile, in_place), 2 * mv + 0.3, 6.3)
    if units(isa, dtype, in_flight) > 1:
        return fmas / (max(fmas, 1.04 * (mv + columns), cores.here().lanes_load * mv, 1.05 * in_flight) + 0.3)
    enough = fmas >= isa.in_flight and dtype.startswith(("float", "complex"))
    chains = isa.in_flight * (JUST_ENOUGH if enough else 1.0)
    return fmas / (max(fmas, 2 * mv, chains) + 0.3)


def halves(isa: ISA, dtype: str, tile: tuple[int, int]) -> bool:
    """Whether a tile has a K loop for the first half of its columns, for the last ones of a product. Products of integers
    come in pairs."""
    mv, nr = tile
    return nr >= 4 and nr % 2 == 0 and mv * nr % 4 == 0 and not turns(isa, dtype, nr)


@lru_cache(maxsize=1024)
def columns_run(
    isa: ISA, dtype: str, tile: tuple[int, int], columns: int, in_place: bool = False, in_flight: int = 0
) -> float:
    """How many columns whole tiles would have in the time that those take which ``columns`` need. Where no tile is whole,
    half of one is not counted: there are narrower tiles, which ask for what few columns read.

    >>> from .isa import get
    >>> [columns_run(get("avx512"), "float32", (3, 8), n) for n in (16, 17, 20, 21)]
    [16, 20.0..., 20.0..., 24]
    """
    mv, nr = tile
    rest = columns % nr
    if columns < nr or not 0 < rest <= nr // 2 or not halves(isa, dtype, tile):
        return -(-columns // nr) * nr
    half, whole = [efficiency(isa, dtype, (mv, n), in_place, in_flight) for n in (nr // 2, nr)]
    return columns - rest + nr // 2 * whole / half


def adjoins(isa: ISA, dtype: str, tile: tuple[int, int]) -> bool:
    """Whether a tile that reads columns in place has a K loop for adjacent ones: more than have registers for addresses. One
    address is enough for these."""
    return isa.vector_bits == 512 and tile[1] > ADDRESSED and dtype not in NARROW


def most_in_place(dtype: str) -> int:
    """Columns of a tile that are read in place one by one: with more, addresses and broadcasts want too many registers
    where there are 16."""
    return 4 if dtype in COMPLEX else 8


def follows(tile: tuple[int, int]) -> bool:
    """Whether a tile that reads A in place asks for what it reads of it later: few columns, by which memory bounds it."""
    mv, nr = tile
    return nr <= 4 and mv >= 3


def shuffles(isa: ISA, dtype: str, tile: tuple[int, int], in_place: bool) -> int:
    """Of a k step where no load repeats an element: each takes a part of a cycle from multiplying and adding."""
    mv, nr = tile
    columns, lanes = nr * (2 if dtype in COMPLEX else 1), _lanes(isa, dtype)
    if in_place or not turns(isa, dtype, nr):
        return columns
    return min(mv, columns // lanes) * (lanes - 1)


for _isa in ISAS.values():
    for _dtype in DTYPES:
        for _tile in tiles(_isa, _dtype):
            check(_isa, _dtype, _tile)
