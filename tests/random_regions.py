"""Random functions of nested branches and loops as data: state that is swapped, arrays around that are written.

    python tests/random_regions.py 1000

checks as many as that, `1000 5000` those from seed 5000 on. All numbers are small integers, so NumPy run eagerly says
exactly what is right.
"""

from __future__ import annotations

import random
import sys
from typing import Any, Callable

import numpy as np

import einsum_engine as engine

PLAIN = ("add", "mul", "shift", "einsum", "reduce", "row", "swap", "turn", "flip")
SIZE = 4


def draw(rng: random.Random, depth: int) -> list[tuple]:
    """Statements over three arrays of the caller, numbers 0 to 2, and two of the function's own."""
    lines: list[tuple] = []
    for _ in range(rng.choice((1, 2, 3))):
        kind = rng.choice((*PLAIN, *("cond", "while") * (3 if depth else 0)))
        if kind == "cond":
            lines.append((kind, rng.randrange(3), draw(rng, depth - 1), draw(rng, depth - 1)))
        elif kind == "while":
            lines.append((kind, rng.randrange(4), rng.randrange(3), draw(rng, depth - 1)))
        else:
            lines.append((kind, rng.randrange(3), rng.randrange(3)))
    return lines


def small(x: Any) -> Any:
    return np.minimum(np.maximum(x, -9), 9)


def run(lines: list[tuple], values: list[Any]) -> None:
    for kind, *rest in lines:
        if kind == "cond":
            run_cond(values, *rest)
        elif kind == "while":
            run_while(values, *rest)
        else:
            run_plain(kind, values, *rest)


def run_plain(kind: str, values: list[Any], a: int, b: int) -> None:
    x, y = values[a], values[b]
    if kind == "add":
        x += small(y)
    elif kind == "mul":
        x[...] = small(x * y)
    elif kind == "shift":
        x[1:] = small(x[:-1] + y[1:])
    elif kind == "einsum":
        x[...] = small(np.einsum("ab,bc->ac", x, y))
    elif kind == "reduce":
        x[...] = small(x + y.sum(0) + y.max())
    elif kind == "row":
        x[b] = small(values[3][0])
        values[4] = small(values[4] + x)
    elif kind == "swap":
        values[3], values[4] = values[4], values[3]
    elif kind == "turn":
        values[3] = small(values[3] * 2 + y)
        values[4] = values[4].T * 1
    else:
        x[...] = x[::-1] * 1
        values[3] = values[3] + np.arange(SIZE)


def run_cond(values: list[Any], at: int, one: list[tuple], two: list[tuple]) -> None:
    def branch(lines: list[tuple]) -> Callable[[], Any]:
        def inner() -> Any:
            own = list(values)
            run(lines, own)
            return own[3] * 1, own[4] * 1, own[0].sum()

        return inner

    values[3], values[4], total = engine.cond(values[at].sum() % 2 == 0, branch(one), branch(two))
    values[0][:1] += small(total)


def run_while(values: list[Any], turns: int, style: int, body: list[tuple]) -> None:
    def step(state: Any) -> Any:
        turn, *own = state
        own = [*values[:3], *own]
        run(body, own)
        x, y = own[3:]
        new = ((x, y), (y, small(x + own[0])), (small(x[::-1] + own[1]), x))[style]
        return turn + 1, *new

    start = (np.int64(0), values[3], values[4])
    test = lambda state: (state[0] < turns) & (state[1].sum() > -1e9)  # noqa: E731
    turn, values[3], values[4] = engine.while_loop(test, step, start)
    values[1][0] = values[1][0] + turn


def function_of(lines: list[tuple]) -> Callable[..., Any]:
    def function(p: Any, q: Any, r: Any) -> Any:
        values = [p, q, r, p * 2, q + 1]
        run(lines, values)
        return values[3], values[4], values[0].sum()

    return function


def arguments(seed: int) -> list[Any]:
    """Three arrays; of some seeds one is in Fortran order, or two share memory."""
    dtype = (float, int)[seed % 2]
    found = [np.random.default_rng(at).integers(-4, 5, (SIZE, SIZE)).astype(dtype) for at in range(3)]
    if seed % 3 == 0:
        found[2] = np.asfortranarray(found[2])
    if seed % 5 == 0:
        found[1] = found[0][::-1] if seed % 2 else found[0]
    return found


def check(seed: int) -> int:
    """Compares three calls with NumPy, results and arguments; how many loops and branches the plan has."""
    lines = draw(random.Random(seed), 2)
    function = function_of(lines)
    jitted = engine.jit(function, passes=() if seed % 4 == 1 else None)
    for call in range(3):
        eager, given = arguments(seed), arguments(seed)
        wanted, found = function(*eager), jitted(*given)
        for at, (one, two) in enumerate(zip((*wanted, *eager), (*found, *given), strict=True)):
            assert np.array_equal(one, two), f"seed {seed}, call {call}, array {at}: {lines}\n{one}\n{two}"
    plan = jitted.plan(*arguments(seed))
    assert plan is not None, jitted.explain()
    return sum(step.kernel == "branch" for step in plan.steps)


def check_many(seeds: range) -> int:
    """How many loops and branches the plans of these seeds have; the first failure is raised."""
    found = 0
    for seed in seeds:
        try:
            found += check(seed)
        except Exception as error:
            error.add_note(f"replay with: python tests/random_regions.py 1 {seed}")
            raise
    return found


if __name__ == "__main__":
    count, first = int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0
    print(check_many(range(first, first + count)), "branches and loops, all right")
