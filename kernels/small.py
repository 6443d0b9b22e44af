"""The small family on the Python side: its problem as data, lowering to a row of the step table, NumPy reference.

    C[o, t, m, n] (+)= sum_k A[o, t, m, k] * B[o, t, k, n]

Many products of matrices of a few elements, the columns n contiguous in C and best in B, too. Within a product
everything has strides; what has none is looped outside, through offset vectors (bytes).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cpu import abi
from .cpu import small_abi as sa
from .cpu.units import LINE
from .gemm import Operand
from .isa import ISA
from .loops import SHARED_TERMS, SHARES, Loops, outer_offsets, outer_total, outer_words, read, write
from .row import Row, operand_words
from .tiles import COMPLEX, DTYPES, ITEMSIZE, elements

FIXED = (2, 3, 4)  # rows and terms that are written out, for the types that small matrices mostly have
FIXED_DTYPES = ("float32", "float64", "complex64", "complex128")
LARGEST = 64  # rows or terms beyond which a GEMM nest takes over
LARGEST_COLUMNS = 16
FEW_TERMS, MOST_COLUMNS = 64, 128  # of matrices that are applied to longer rows, and these
NEAR_BYTES, FAR_BYTES = 1 << 20, 4 << 20  # of the results: in cache, and past it
GATE_TERMS, GATE_ROW = 4, 384  # of a matrix that does little, and bytes of whole lines, where results are not in cache
NEXT_BYTES = 128 << 10  # of B of a product, up to which the next one is asked for
WIDE = 5  # half vectors of columns beyond those, up to so many multiply-adds of vectors
WIDE_TERMS = 1 << 10
LONGEST_WIDE, WIDE_ROWS = 24, 4  # terms of a sum there, and times as many as there are rows
TERMS_OF_TWO, TERMS_OF_FOUR, LONGEST_OF_FOUR = 2560, 2048, 32  # of a row of so many registers, where there are 32
FAR_TERMS = 1 << 13  # of one product, from which a GEMM is faster where results are not in cache and lines are whole
LARGEST_TERMS = 1 << 14  # multiplications of one product
LARGEST_STRIDED = 1 << 11  # the same with strided columns
WIDEST_STRIDED = 16  # columns that are gathered one by one
TURNED_DTYPES = ("float32", "float64", "complex64")
LEAST_TURNED = 4  # columns and terms of the blocks that are turned round in registers
FEW_TURNED = 8  # rows for which columns are gathered once
LINES_BYTES = 24 << 10  # of A, a line for each element, that L1 has room for


@dataclass(frozen=True, kw_only=True, eq=False)
class SmallProblem:
    """Many small products.

    ``outer``: up to four loops ``(count, table_a, table_b, table_c)``, slowest first. ``t``: products, with strides
    ``(a, b, c)``; ``m``: rows, strides ``(a, c)``; ``k``: terms, strides ``(a, b)``; ``n``: columns, contiguous in C,
    with ``n_stride`` in B (``None``: contiguous). Four rows or terms may be two dimensions of 2, where there is a kernel
    for 4 x 4: ``m_half`` and ``k_half`` are the strides of the slow one (``None``: one dimension).
    """

    dtype: str
    a: Operand
    b: Operand
    c: Operand
    outer: Loops = ()
    t: int
    t_strides: tuple[int, int, int]
    m: int
    m_strides: tuple[int, int]
    n: int
    k: int
    k_strides: tuple[int, int]
    n_stride: int | None = None
    m_half: tuple[int, int] | None = None
    k_half: tuple[int, int] | None = None
    conj_a: bool = False
    conj_b: bool = False
    accumulate: bool = False
    parallel: bool = False

    @property
    def strided(self) -> bool:
        return self.n_stride is not None and self.n_stride != ITEMSIZE[self.dtype]

    @property
    def columns(self) -> str:
        """As `at_once` asks for it."""
        return columns_of(self.dtype, self.n_stride, None if self.k_half is not None else self.k_strides[1])

    def written_out(self, isa: ISA) -> bool:
        """Whether its kernel has rows and terms written out."""
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        return is_written_out(isa, self.dtype, **sizes, strided=self.strided, accumulate=self.accumulate)

    @property
    def products(self) -> int:
        return outer_total(self.outer) * self.t

    @property
    def terms(self) -> int:
        return self.products * self.m * self.n * self.k

    @property
    def flops(self) -> int:
        return self.terms * (8 if self.dtype in COMPLEX else 2)


def widths(isa: ISA, dtype: str) -> tuple[int, ...]:
    """Elements of a row at once that kernels exist for: powers of two up to a register, few for narrow types."""
    item = ITEMSIZE[dtype]
    full = isa.vector_bits // (8 * item)
    every = tuple(1 << i for i in range(full.bit_length()) if full > 1 or not i)
    if item >= 4:
        return every[1:] or every
    return tuple(sorted({8, full}))


def two_registers(isa: ISA, dtype: str) -> int:
    """Elements of two registers, of which there are kernels where their sums and broadcasts find registers; 0: there are none."""
    wide = dtype in FIXED_DTYPES and isa.registers >= 32 and isa.masks
    return 2 * widths(isa, dtype)[-1] if wide else 0


def width_for(isa: ISA, dtype: str, n: int, strided: bool = False) -> int:
    """The width for ``n`` columns: one masked vector where it holds them all, else vectors that overlap at the end."""
    known = [width for width in widths(isa, dtype) if width <= WIDEST_STRIDED or not strided]
    if isa.masks:
        return next((width for width in known if width >= n), known[-1])
    return max((width for width in known if width <= n), default=known[0])


def two_for(isa: ISA, dtype: str, n: int) -> int:
    """Elements of two registers, where ``n`` columns leave none of them idle, else 0: an element of A is read once for both."""
    wide = two_registers(isa, dtype)
    return wide if wide and -(-n // (wide // 2)) % 2 == 0 else 0


def columns_of(dtype: str, n_stride: int | None, k_stride: int | None) -> str:
    """How columns lie in B, as `at_once` asks for it, by bytes between columns (None: they are adjacent) and between terms (None:
    these have no one stride)."""
    item = ITEMSIZE[dtype]
    return "" if n_stride in (None, item) else "t" if k_stride == item else "s"


def at_once(isa: ISA, dtype: str, *, m: int, n: int, k: int, columns: str = "") -> tuple[int, str]:
    """Columns that are computed at once, where rows and terms are not written out, and how they are read, which ends a
    kernel's name: "" as they lie, "s" gathered, "t" turned round with as many terms. ``columns``: "s" where they are strided
    in B, "t" where terms are adjacent besides. A few rows take no longer with columns that are gathered."""
    width = width_for(isa, dtype, n, bool(columns))
    if not columns:
        return two_for(isa, dtype, n) or width, ""
    known = [w for w in turned_widths(isa, dtype) if w <= k <= sa.MOST_TURNED]
    if columns == "s" or n < LEAST_TURNED or not known:
        return width, "s"
    if width <= known[-1]:
        return two_for(isa, dtype, n) or width, "t"
    return (known[-1], "t") if m > FEW_TURNED else (width, "s")


def turned_widths(isa: ISA, dtype: str) -> tuple[int, ...]:
    """Of columns that are turned round in a register."""
    found = [width for width in widths(isa, dtype) if LEAST_TURNED <= width <= WIDEST_STRIDED]
    return tuple(found) if dtype in TURNED_DTYPES else ()


def kernel_for(p: SmallProblem, isa: ISA) -> str:
    """Name of the kernel: with rows and terms written out where there is one for these sizes."""
    name = f"small_{p.dtype}_"
    if p.written_out(isa):
        return f"{name}{width_for(isa, p.dtype, p.n, p.strided)}{'s' if p.strided else ''}_{p.m}x{p.k}"
    assert p.m_half is None is p.k_half, "other kernels have one stride"
    width, kind = at_once(isa, p.dtype, m=p.m, n=p.n, k=p.k, columns=p.columns)
    return f"{name}{width}{kind}"


def is_written_out(
    isa: ISA, dtype: str, *, m: int, n: int, k: int, strided: bool = False, accumulate: bool = False
) -> bool:
    """Whether there is a kernel with these rows and terms written out."""
    width = width_for(isa, dtype, n, strided)
    # Last columns that are computed again must not be added twice.
    whole = n % width == 0 or (isa.masks and n < width) or (n > width and not accumulate)
    return m == k and m in FIXED and dtype in FIXED_DTYPES and whole


def names(isa: ISA) -> tuple[str, ...]:
    """All kernels that `lower` may name."""
    found = [f"small_{dtype}_{width}" for dtype in DTYPES for width in widths(isa, dtype)]
    found += [f"{name}s" for name in found if int(name.rsplit("_", 1)[1]) <= WIDEST_STRIDED]
    fixed = [f"{name}_{size}x{size}" for name in found for size in FIXED if name.split("_")[1] in FIXED_DTYPES]
    turned = [f"small_{dtype}_{width}t" for dtype in DTYPES for width in turned_widths(isa, dtype)]
    two = {dtype: width for dtype in DTYPES if (width := two_registers(isa, dtype))}
    wide = [f"small_{dtype}_{width}" for dtype, width in two.items()]
    wide += [f"small_{dtype}_{width}t" for dtype, width in two.items() if dtype in TURNED_DTYPES]
    return (*found, *fixed, *turned, *wide)


def fits(
    isa: ISA, dtype: str, *, products: int, m: int, n: int, k: int, columns: str = "", apart: bool = False
) -> bool:
    """Whether this family is the right one for ``products`` of (m, k) by (k, n) matrices.

    They must be too small for the loops of a GEMM to pay, and their rows not much narrower than a vector; with rows and terms
    written out, rows may be of any length where a tile of a GEMM is not whole lines. ``columns``: as
    `at_once` asks for it; ``apart``: no two elements of A share a line, so that some columns after the others read them from
    a cache again.
    """
    strided = bool(columns)
    if products < 2 or n < 2 or 4 * n < width_for(isa, dtype, n, strided) or max(m, k) > LARGEST:
        return False
    width, kind = at_once(isa, dtype, m=m, n=n, k=k, columns=columns)
    if apart and n > width and m * k * LINE > LINES_BYTES:
        return False
    if kind == "s":
        return n <= LARGEST_COLUMNS and m * n * k <= LARGEST_STRIDED
    if isa.vector_bits < 8 * LINE and n > LARGEST_COLUMNS and not columns and is_written_out(isa, dtype, m=m, n=n, k=k):
        return True
    if two := two_registers(isa, dtype):
        row = n * ITEMSIZE[dtype]
        far = row % LINE == 0 and products * m * row > FAR_BYTES
        if far and m * n * k >= FAR_TERMS:
            return False
        if not far and _fits_registers(m, -(-n // (two // 2)), k):
            return True
    return m * n * k <= LARGEST_TERMS and (n <= LARGEST_COLUMNS or _fits_wide(isa, dtype, products, m, n, k))


def _fits_registers(m: int, registers: int, k: int) -> bool:
    """The same of rows of so many registers, which are summed by one or two at once, 8 rows side by side."""
    if registers <= 2:
        return m * k <= TERMS_OF_TWO
    return registers == 4 and k <= LONGEST_OF_FOUR and m * k <= TERMS_OF_FOUR


def _fits_wide(isa: ISA, dtype: str, products: int, m: int, n: int, k: int) -> bool:
    """The same of rows that are longer: a small matrix times them, as a gate is, or rows of few vectors, in fewer
    multiply-adds, and short sums: rows are summed side by side, and few of them wait for each other. A GEMM stores whole lines
    of a large result past the caches, this family does not."""
    if k > WIDE_ROWS * m:
        return False
    lanes, parts, row = elements(isa, dtype), 2 if dtype in COMPLEX else 1, n * ITEMSIZE[dtype]
    whole, nbytes = row % LINE == 0, products * m * row
    if m * k <= FEW_TERMS and n <= MOST_COLUMNS:
        gate = m * k <= GATE_TERMS * (1 if whole else parts**2) and (row <= GATE_ROW or not whole)
        if gate or nbytes <= NEAR_BYTES:
            return True
    if whole and nbytes > FAR_BYTES:
        return False
    return 2 * n <= WIDE * lanes and k <= LONGEST_WIDE and m * k * -(-n // lanes) * parts <= WIDE_TERMS


def streams(p: SmallProblem, isa: ISA) -> bool:
    """Whether C is stored past the caches, if it begins with a line."""
    if isa.vector_bits >= 8 * LINE or p.accumulate or p.strided or not p.written_out(isa):
        return False
    row = p.n * ITEMSIZE[p.dtype]
    if row % LINE or p.products * p.m * row <= FAR_BYTES:
        return False
    steps = p.t_strides[2], p.m_strides[1], *_half(p.m_strides, p.m_half)[1:]
    return not any(step % LINE for step in steps) and not any((table_c % LINE).any() for *_, table_c in p.outer)


def lower(p: SmallProblem, isa: ISA, threads: int = 1) -> Row:
    """The row of the step table that computes ``p``."""
    outer_share, t_share = outer_total(p.outer), p.t
    if p.parallel and threads > 1:
        wanted = max(1, min(SHARES * threads, p.terms // SHARED_TERMS))
        outer_share = max(1, -(-outer_share // wanted))
        t_share = max(1, -(-p.t // -(-wanted // max(1, -(-outer_total(p.outer) // outer_share)))))
    t_tasks = max(1, -(-p.t // max(1, t_share)))
    words = {
        **operand_words(p.c, p.a, p.b),
        abi.PARALLEL: abi.IN_BANDS * p.parallel,
        sa.S_OUTER_TOTAL: outer_total(p.outer),
        sa.S_T: p.t,
        sa.S_T_A: p.t_strides[0],
        sa.S_T_B: p.t_strides[1],
        sa.S_T_C: p.t_strides[2],
        sa.S_M: p.m,
        sa.S_M_A: p.m_strides[0],
        sa.S_M_C: p.m_strides[1],
        sa.S_N: p.n,
        sa.S_K: p.k,
        sa.S_K_A: p.k_strides[0],
        sa.S_K_B: p.k_strides[1],
        sa.S_OUTER_SHARE: outer_share,
        sa.S_T_SHARE: t_share,
        sa.S_T_TASKS: t_tasks,
        sa.S_ACCUMULATE: int(p.accumulate),
        sa.S_N_B: p.n_stride if p.strided else ITEMSIZE[p.dtype],
        **dict(zip((sa.S_M_A_HALF, sa.S_M_C_HALF), _half(p.m_strides, p.m_half))),
        **dict(zip((sa.S_K_A_HALF, sa.S_K_B_HALF), _half(p.k_strides, p.k_half))),
        sa.S_STREAM: int(streams(p, isa)),
        sa.S_AHEAD: p.t_strides[1] if p.k * p.n * ITEMSIZE[p.dtype] <= NEXT_BYTES else 0,
        sa.S_SIGNS: int(p.conj_a) | int(p.conj_b) << 1,
    }
    outer = outer_words(p.outer)
    empty = not p.products * p.m * p.n
    return Row(
        words=words | outer[0],
        tables=outer[1],
        kernels={abi.FN: kernel_for(p, isa)},
        tasks=0 if empty else t_tasks * -(-outer_total(p.outer) // outer_share),
    )


def _half(strides: tuple[int, int], half: tuple[int, int] | None) -> tuple[int, int]:
    return (2 * strides[0], 2 * strides[1]) if half is None else half


# -- reference ---------------------------------------------------------------------------------------------------
def reference(p: SmallProblem, memory: dict[int, np.ndarray]) -> None:
    """What the row computes, with NumPy: ``memory[slot]`` is the uint8 view that starts at the slot's base."""
    item = ITEMSIZE[p.dtype]
    t, n = (np.arange(count, dtype=np.int64) for count in (p.t, p.n))
    (m_a, m_c), (k_a, k_b) = _offsets(p.m, p.m_strides, p.m_half), _offsets(p.k, p.k_strides, p.k_half)
    in_a = _sum(t * p.t_strides[0], m_a, k_a)
    in_b = _sum(t * p.t_strides[1], k_b, n * (p.n_stride if p.strided else item))
    in_c = _sum(t * p.t_strides[2], m_c, n * item)
    for outer_a, outer_b, outer_c in zip(*(outer_offsets(p.outer, operand) for operand in range(3))):
        left = read(memory[p.a.slot], p.a.offset + outer_a + in_a, p.dtype, p.conj_a)
        right = read(memory[p.b.slot], p.b.offset + outer_b + in_b, p.dtype, p.conj_b)
        product = np.einsum("tmk,tkn->tmn", left, right)
        write(memory[p.c.slot], p.c.offset + outer_c + in_c, product, p.dtype, p.accumulate)


def _offsets(count: int, strides: tuple[int, int], half: tuple[int, int] | None) -> list[np.ndarray]:
    i = np.arange(count, dtype=np.int64)
    return [i * x if half is None else i % 2 * x + i // 2 * y for x, y in zip(strides, half or strides)]


def _sum(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return x[:, None, None] + y[None, :, None] + z[None, None, :]
