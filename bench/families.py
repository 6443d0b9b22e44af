"""Families made by rule: permutations of one tensor, one large matrix product, products of a moment, batches of small ones,
long sums, gates on a state vector."""

from __future__ import annotations

import math
import random

from .cases import Case, register_family

_BYTES = 32 << 20
_ITEMSIZES = {"float32": 4, "float64": 8}
# Rank -> permutations: 57 in all.
_RANKS = {2: 5, 3: 10, 4: 14, 5: 14, 6: 14}
_SEED = 57
# How far a tensor may be from the size asked for, as a fraction.
_NEAR = 0.01
_SMALLEST = 4
_LETTERS = "abcdef"

_GEMM_SIZES = (1024, 2048, 4096)
_GEMM_DTYPES = {"float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128"}
# int64 goes to no BLAS: a peer takes seconds at 1024 already.
_INTEGER_SIZES = (512, 1024)

# Products that take a core 3 to 400 µs: rows of square matrices, both as they are and both transposed, and tensors.
_MOMENT_SIZES = (64, 80, 103, 128, 160, 200, 256)
_MOMENT_TERMS = {"": "mk,kn->mn", " transposed": "km,nk->mn"}
_MOMENT_TENSORS: tuple[tuple[str, dict[str, int]], ...] = (
    ("abcd,bedf->aecf", dict(a=12, b=8, c=12, d=8, e=12, f=12)),
    ("abc,cd->abd", dict(a=10, b=20, c=50, d=60)),
    ("ad,dbc->abc", dict(a=100, b=150, c=7, d=8)),
    ("ak,kb->ab", dict(a=500, k=300, b=80)),  # five vectors of 512 bits, of float32
    ("ak,kb->ab", dict(a=500, k=300, b=40)),  # and of float64
    ("mkb,knb->mnb", dict(m=12, k=12, n=12, b=64)),
    ("mkb,knb->nmb", dict(m=24, k=10, n=4, b=256)),
    ("ab->ba", dict(a=128, b=128)),
    ("ab->ba", dict(a=200, b=200)),
    ("ab->ba", dict(a=256, b=256)),
    ("abc->cba", dict(a=55, b=10, c=285)),
    ("bi,kij,bj->bk", dict(b=128, i=40, k=30, j=50)),  # a bilinear form
    ("abc,ar,br,cr->", dict(a=20, b=24, c=28, r=6)),  # a tensor and one of rank r
)
_MOMENT_DTYPES = ("float32", "float64", "complex64")

# Products that are as many as read and write 48 MiB together in float32, 96 in float64; sizes of M, N and K.
_BATCHES = (
    *((size, size, size) for size in (16, 32, 48, 64, 128, 256)),
    *((50, 40, 30), (12, 100, 70), (128, 80, 128)),
)
_BATCH_TERMS = {"": "bmk,bkn->bmn", " transposed": "bmk,bnk->bmn", " batch last": "mkb,nbk->bmn"}
_BATCH_ELEMENTS = 12 << 20

# Expressions that are mostly a sum, and their sizes: results small beside operands, and products of corresponding elements.
_SUMS: tuple[tuple[str, dict[str, int]], ...] = (
    ("ka,kb->ab", dict(k=262144, a=48, b=40)),
    ("ka,kb->ab", dict(k=262147, a=48, b=40)),  # a prime
    ("ka,kb->ab", dict(k=262144, a=16, b=16)),
    ("ka,kb->ab", dict(k=1048573, a=6, b=10)),  # a prime
    ("ka,kb->ab", dict(k=60000, a=13, b=29)),
    ("bsd,bse->de", dict(b=25, s=357, d=52, e=27)),
    ("ak,bk->ab", dict(k=100003, a=24, b=24)),  # a prime
    ("ak,bk->ab", dict(k=262144, a=4, b=50)),
    ("ak,kb->ab", dict(k=1024, a=16, b=1024)),
    ("k,kb->b", dict(k=1024, b=1024)),
    ("cdefghijkla,cdefghijklb->ab", dict.fromkeys("cdefghijkl", 4) | dict(a=2, b=2)),
    ("ka,kb,kc->abc", dict(k=20000, a=10, b=10, c=10)),
    ("kb,kb->b", dict(k=30000, b=100)),
    ("kb,kb->b", dict(k=3000, b=1000)),
    ("abc,abc->c", dict(a=67, b=151, c=26)),
    ("abc,abc->b", dict(a=100, b=160, c=5)),
    ("ab,ba->", dict(a=1000, b=900)),
    ("abcd,dc->ab", dict.fromkeys("abcd", 40)),
    ("cabd,dab->acb", dict(a=20, b=185, c=3, d=19)),
    ("ab->a", dict(a=20000, b=15)),
    ("cab->a", dict(c=20, a=300, b=25)),
    ("cab->ba", dict(c=30, a=150, b=140)),
    ("dabc->cba", dict(d=4, a=60, b=70, c=80)),
    ("abc,cab->b", dict(a=60, b=150, c=200)),
    ("kb,bk->b", dict(k=2000, b=600)),
    ("ak,ak,kb->ab", dict(k=3000, a=3000, b=16)),
    ("abc->b", dict(a=15, b=140, c=166)),
    ("daebc,cedba->ec", dict(d=12, a=14, e=10, b=13, c=11)),
)

_QUBITS = 22
_GATES = ((0,), (10,), (17,), (20,), (21,), (3, 10), (16, 19), (20, 21))
_GATE_DTYPES = ("complex64",)


def permutation_cases(large: bool = False) -> list[Case]:
    """57 random permutations of rank 2 to 6, float32 and float64: tensors of 32 MiB, within 1 %.

    No two dimensions stay neighbours, since they would be one dimension. Shapes and permutations are always the same.
    """
    rng = random.Random(_SEED)
    drawn = [(rank, _permutation(rng, rank)) for rank, count in _RANKS.items() for _ in range(count)]
    return [
        _permuted(number, permutation, _shape(rng, rank, _BYTES // itemsize), dtype)
        for dtype, itemsize in _ITEMSIZES.items()
        for number, (rank, permutation) in enumerate(drawn)
    ]


def _permuted(number: int, permutation: tuple[int, ...], shape: tuple[int, ...], dtype: str) -> Case:
    letters = _LETTERS[: len(shape)]
    output = "".join(letters[axis] for axis in permutation)
    return Case(
        family=f"permutations_f{dtype[-2:]}",
        name=f"permutation {number:02} {'x'.join(map(str, shape))} {output}",
        expr=f"{letters}->{output}",
        shapes=(shape,),
        dtype=dtype,
        peers=("numpy", "torch"),
        copied=True,
    )


def _permutation(rng: random.Random, rank: int) -> tuple[int, ...]:
    while True:
        drawn = tuple(rng.sample(range(rank), rank))
        if all(right != left + 1 for left, right in zip(drawn, drawn[1:])):
            return drawn


def _shape(rng: random.Random, rank: int, elements: int) -> tuple[int, ...]:
    """Random sizes, evenly distributed by their logarithms, whose product is ``elements`` within 1 %."""
    while True:
        weights = [rng.uniform(0.4, 1.6) for _ in range(rank)]
        sizes = [round(elements ** (weight / sum(weights))) for weight in weights[:-1]]
        shape = (*sizes, max(1, round(elements / math.prod(sizes))))
        if min(shape) >= _SMALLEST and abs(math.prod(shape) / elements - 1) <= _NEAR:
            return shape


def gemm_cases(large: bool = False) -> list[Case]:
    """One large square matrix product in each dtype, against OpenBLAS through NumPy and MKL through PyTorch."""
    cases = [_gemm(size, dtype, short) for dtype, short in _GEMM_DTYPES.items() for size in _GEMM_SIZES]
    return cases + [_gemm(size, "int64", "i64") for size in _INTEGER_SIZES]


def _gemm(size: int, dtype: str, short: str) -> Case:
    return Case(
        family=f"gemm_{short}",
        name=f"gemm {size}",
        expr="ij,jk->ik",
        shapes=((size, size), (size, size)),
        dtype=dtype,
        peers=("numpy", "numpy-optimize", "torch") if dtype == "int64" else ("numpy-optimize", "torch"),
    )


def moment_cases(large: bool = False) -> list[Case]:
    """Matrix products, contractions and transpositions so short that threads share them for a moment, in three dtypes."""
    squares = [
        (f"{size}{kind}", terms, dict.fromkeys("mnk", size)) for kind, terms in _MOMENT_TERMS.items() for size in _MOMENT_SIZES
    ]
    tensors = [(_together(sizes), terms, sizes) for terms, sizes in _MOMENT_TENSORS]
    return [_moment(*each, dtype) for dtype in _MOMENT_DTYPES for each in squares + tensors]


def _moment(name: str, terms: str, sizes: dict[str, int], dtype: str) -> Case:
    family = f"moments_{dtype[0]}{dtype[-2:]}"
    return Case(family=family, name=f"moment {terms} {name}", expr=terms, shapes=_shapes(terms, sizes), dtype=dtype)


def _shapes(terms: str, sizes: dict[str, int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(sizes[index] for index in term) for term in terms.split("->")[0].split(","))


def _together(sizes: dict[str, int]) -> str:
    return "x".join(str(size) for size in sizes.values())


def batch_cases(large: bool = False) -> list[Case]:
    """Many products of equal small size in one call, the second operand transposed or not; one size with the batch last."""
    plain = [_batch(sizes, kind, dtype) for dtype in _ITEMSIZES for kind in list(_BATCH_TERMS)[:2] for sizes in _BATCHES]
    return plain + [_batch((64, 64, 64), " batch last", dtype) for dtype in _ITEMSIZES]


def _batch(sizes: tuple[int, int, int], kind: str, dtype: str) -> Case:
    m, n, k = sizes
    count = _BATCH_ELEMENTS // (m * k + k * n + m * n)
    size = {"b": count, "m": m, "n": n, "k": k}
    terms = _BATCH_TERMS[kind]
    return Case(
        family=f"batches_f{dtype[-2:]}",
        name=f"batch {count} of {m}x{n}x{k}{kind}",
        expr=terms,
        shapes=_shapes(terms, size),
        dtype=dtype,
        peers=("numpy-optimize", "torch"),
    )


def sum_cases(large: bool = False) -> list[Case]:
    """Long sums with small results, and sums of products of corresponding elements, float32 and float64."""
    return [_sum(terms, sizes, dtype) for dtype in _ITEMSIZES for terms, sizes in _SUMS]


def _sum(terms: str, sizes: dict[str, int], dtype: str) -> Case:
    family, name = f"sums_f{dtype[-2:]}", f"sum {terms} {_together(sizes)}"
    return Case(family=family, name=name, expr=terms, shapes=_shapes(terms, sizes), dtype=dtype)


def gate_cases(large: bool = False) -> list[Case]:
    """Gates on one and two qubits of a state vector of 22, complex64: 2 x 2 and 4 x 4 matrices, 32 MiB in and out."""
    return [_gate(qubits, dtype) for dtype in _GATE_DTYPES for qubits in _GATES]


def _gate(qubits: tuple[int, ...], dtype: str) -> Case:
    """The qubits between those of the gate are one dimension each: ``abc,bd->adc`` for a gate on one."""
    edges = (-1, *qubits, _QUBITS)
    between = [1 << (right - left - 1) for left, right in zip(edges, edges[1:])]
    old, new, rest = "BD"[: len(qubits)], "xy"[: len(qubits)], "ace"[: len(between)]
    state = "".join(x for pair in zip(rest, old + " ") for x in pair).strip()
    shape = tuple(x for size in between for x in (size, 2))[:-1]
    return Case(
        family="gates",
        name=f"gate on {' and '.join(map(str, qubits))}",
        expr=f"{state},{old}{new}->{state.replace('B', 'x').replace('D', 'y')}",
        shapes=(shape, (2,) * len(old + new)),
        dtype=dtype,
    )


register_family("permutations", permutation_cases)
register_family("gemm", gemm_cases)
register_family("moments", moment_cases)
register_family("batches", batch_cases)
register_family("sums", sum_cases)
register_family("gates", gate_cases)
