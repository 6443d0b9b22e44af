"""Many different small calls whose results are known, for tests with threads and processes; and a long one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import oracle

import einsum_engine as engine

COUNT = 1000
DTYPES = ("float64", "float32", "complex128", "complex64", "int64", "uint8", "float16", "bool")
EXPRESSIONS = (
    "ab,bc->ac",
    "ab,cb->ca",
    "ab,ab->",
    "ab,ab->ba",
    "abc,bd->adc",
    "abc,abd->acd",
    "ab,bc,cd->ad",
    "ab,bc,cd,de->ea",
    "a,b->ab",
    "abc->cb",
    "aab->b",
    "abc->cab",
)


class Call(NamedTuple):
    """An expression with its operands and its exact result."""

    expression: str
    operands: tuple[np.ndarray, ...]
    expected: np.ndarray


@lru_cache(maxsize=None)
def calls(seed: int = 0, count: int = COUNT) -> tuple[Call, ...]:
    """All different: expression, sizes or dtypes. Small whole numbers, so that results are exact."""
    rng = random.Random(seed)
    found: dict[Any, Call] = {}
    while len(found) < count:
        expression, dtype = rng.choice(EXPRESSIONS), rng.choice(DTYPES)
        sizes = {letter: rng.randrange(1, 13) for letter in "abcde"}
        terms = expression.split("->")[0].split(",")
        shapes = tuple(tuple(sizes[letter] for letter in term) for term in terms)
        key = (expression, dtype, shapes)
        if key not in found:
            found[key] = _call(expression, dtype, shapes, len(found))
    return tuple(found.values())


def _call(expression: str, dtype: str, shapes: Iterable[tuple[int, ...]], seed: int) -> Call:
    rng = np.random.default_rng(seed)
    operands = tuple(oracle.random(rng, shape, dtype, exact=True) for shape in shapes)
    if dtype == "float16":
        operands = tuple(np.sign(array) for array in operands)  # sums of more would be rounded
    wide = [array.astype("float64") if dtype in ("float16", "float32") else array for array in operands]
    return Call(expression, operands, np.asarray(np.einsum(expression, *wide)).astype(dtype))


def check(call: Call, result: Any) -> None:
    """AssertionError unless the result is exactly the expected one, dtype and all."""
    result = np.asarray(result)
    right = result.dtype == call.expected.dtype and np.array_equal(result, call.expected)
    assert right, f"{call.expression} {[array.shape for array in call.operands]} {call.expected.dtype}: wrong result"


def einsum_all(seed: int, count: int = COUNT) -> int:
    """Runs ``count`` different calls through `einsum` in an order of its own; how many were right."""
    order = list(calls(count=COUNT))
    random.Random(seed).shuffle(order)
    for call in order[:count]:
        check(call, engine.einsum(call.expression, *call.operands))
    return count


def compile_all(seed: int, count: int = COUNT) -> int:
    """The same through `compile`, each compiled object called twice."""
    order = list(calls(count=COUNT))
    random.Random(seed).shuffle(order)
    for call in order[:count]:
        f = engine.compile(call.expression, *call.operands)
        check(call, f(*call.operands))
        check(call, f(*call.operands))
    return count


def call_shared(work: tuple[Any, Call, int]) -> int:
    """Calls a compiled object ``count`` times; how many results were right."""
    f, call, count = work
    for _ in range(count):
        check(call, f(*call.operands))
    return count
