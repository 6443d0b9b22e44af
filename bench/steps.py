"""What a contraction costs at least: its binary steps along a path, with flops, bytes and summed extents.

Computed from the expression and the path alone, independently of the engine, so that limits and error bounds do
not depend on what they judge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

from ..errors import EngineValueError

# NumPy and PyTorch know these letters only; expressions with more indices are out of their reach.
ASCII = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

Path = Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """One step of a path.

    ``positions`` are those of the path, ``eq`` is the step's own einsum. ``elements`` are the distinct elements
    touched in each input and in the output. ``multiply_adds`` and ``adds`` count scalar operations of the dtype;
    ``summed`` is the number of terms in each sum.
    """

    positions: tuple[int, ...]
    eq: str
    elements: tuple[int, ...]
    multiply_adds: int
    adds: int
    summed: int


@dataclass(frozen=True, kw_only=True)
class Expression:
    """An expression in explicit form: one term per operand, an output term, the size of every index."""

    terms: tuple[str, ...]
    output: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every index; an axis of size 1 broadcasts."""
        sizes: dict[str, int] = {}
        for term, shape in zip(self.terms, self.shapes):
            for index, size in zip(term, shape):
                sizes[index] = size if sizes.get(index, 1) == 1 else sizes[index]
        return sizes

    @property
    def eq(self) -> str:
        return f"{','.join(self.terms)}->{self.output}"

    @property
    def output_shape(self) -> tuple[int, ...]:
        sizes = self.sizes
        return tuple(sizes[index] for index in self.output)

    @property
    def loop_size(self) -> int:
        """Iterations of one loop over all indices: what `np.einsum` without a path executes."""
        return math.prod(self.sizes.values())

    def ascii_eq(self) -> str | None:
        """The expression in the 52 ASCII letters, or None if it has more indices."""
        letters = list(dict.fromkeys("".join(self.terms) + self.output))
        if len(letters) > len(ASCII):
            return None
        table = str.maketrans(dict(zip(letters, ASCII)))
        return self.eq.translate(table)


def parse(expr: str, shapes: Sequence[tuple[int, ...]]) -> Expression:
    """The explicit form of ``expr`` (an ellipsis gets letters of its own), read by opt_einsum's parser.

    >>> parse("ij,jk", [(2, 3), (3, 4)]).eq
    'ij,jk->ik'
    """
    if "->" in expr and "." not in expr:
        inputs, _, output = expr.replace(" ", "").partition("->")
    else:
        inputs, output = _canonical(expr, shapes)
    expression = Expression(terms=tuple(inputs.split(",")), output=output, shapes=tuple(map(tuple, shapes)))
    _check(expression, expr)
    return expression


def _canonical(expr: str, shapes: Sequence[tuple[int, ...]]) -> tuple[str, str]:
    from opt_einsum.parser import parse_einsum_input

    try:
        inputs, output, _ = parse_einsum_input((expr, *shapes), shapes=True)
    except (ValueError, TypeError, IndexError) as error:
        raise EngineValueError(f"{expr!r} with shapes {list(shapes)}: {error}") from error
    return inputs, output


def _check(expression: Expression, expr: str) -> None:
    sizes = expression.sizes
    if len(expression.terms) != len(expression.shapes):
        raise EngineValueError(f"{expr!r}: {len(expression.terms)} terms but {len(expression.shapes)} shapes")
    for number, (term, shape) in enumerate(zip(expression.terms, expression.shapes)):
        if len(term) != len(shape):
            raise EngineValueError(f"{expr!r}: operand {number} has rank {len(shape)}, its term {term!r} {len(term)}")
        for index, size in zip(term, shape):
            if size not in (1, sizes[index]):
                known = sizes[index]
                raise EngineValueError(f"{expr!r}: index {index!r} is {size} in operand {number}, {known} before")
    unknown = [index for index in expression.output if index not in sizes]
    if unknown:
        raise EngineValueError(f"{expr!r}: output index {unknown[0]!r} is in no operand")


def walk(expression: Expression, path: Path) -> list[StepCost]:
    """The steps of ``path``: each takes the terms at its positions away and appends the result.

    Indices that no later step needs are summed as early as possible. What a path leaves over is contracted in one
    last step; a last term that is not yet the output becomes a step of one operand.
    """
    sizes = expression.sizes
    live = [(term, _elements(term, shape)) for term, shape in zip(expression.terms, expression.shapes)]
    steps = []
    for positions in path:
        steps.append(_step(expression, sizes, live, tuple(positions)))
    if not steps or len(live) > 1 or live[0][0] != expression.output:
        steps.append(_step(expression, sizes, live, tuple(range(len(live)))))
    return steps


def _elements(term: str, shape: Sequence[int]) -> int:
    return math.prod(dict(zip(term, shape)).values())


def _step(
    expression: Expression, sizes: dict[str, int], live: list[tuple[str, int]], positions: tuple[int, ...]
) -> StepCost:
    if not positions or max(positions) >= len(live) or len(set(positions)) != len(positions):
        raise EngineValueError(f"{expression.eq!r}: path step {positions} does not fit {len(live)} operands")
    taken = [live[position] for position in positions]
    for position in sorted(positions, reverse=True):
        del live[position]
    needed = set("".join(term for term, _ in live)) | set(expression.output)
    joined = dict.fromkeys("".join(term for term, _ in taken))
    result = expression.output if not live else "".join(index for index in joined if index in needed)
    kept = math.prod(sizes[index] for index in set(result))
    live.append((result, kept))

    # An index of one operand alone, needed nowhere else, is summed before the product.
    cores = [_core(term, result, [other for other, _ in taken], slot) for slot, (term, _) in enumerate(taken)]
    loop = set("".join(cores)) | set(result)
    product = math.prod(sizes[index] for index in loop)
    presummed = sum(count for core, (term, count) in zip(cores, taken) if set(core) != set(term))
    binary = len(taken) > 1
    return StepCost(
        positions=positions,
        eq=f"{','.join(term for term, _ in taken)}->{result}",
        elements=(*(count for _, count in taken), kept),
        multiply_adds=product * (len(taken) - 1) if binary else 0,
        adds=presummed,
        summed=math.prod(sizes[index] for index in joined if index not in result),
    )


def _core(term: str, result: str, terms: Sequence[str], slot: int) -> str:
    others = set(result).union(*(other for number, other in enumerate(terms) if number != slot))
    return "".join(index for index in dict.fromkeys(term) if index in others)


def auto_path(expression: Expression) -> tuple[tuple[int, ...], ...]:
    """The path that opt_einsum's `auto` finds, remembered."""
    return _auto_path(expression.eq, expression.shapes)


@lru_cache(maxsize=64)
def _auto_path(eq: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    import opt_einsum

    return tuple(map(tuple, opt_einsum.contract_path(eq, *shapes, shapes=True, optimize="auto")[0]))
