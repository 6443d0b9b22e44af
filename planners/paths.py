"""`contract_path` and `einsum_path`: contraction orders in the formats of opt_einsum and NumPy, with a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from math import prod
from typing import Any, Iterator, Sequence

from ..errors import EngineTypeError
from ..expr import Expr, from_terms, letters, parse, parse_interleaved
from ..plan import Index
from .order import find_order
from .steps import PathStep, Term, check_path, walk

REMAINING_SHOWN = 20  # terms; the column of what is left is not printed where more are
WIDE = 80  # characters of an expression that a line of the table shows


@dataclass(frozen=True, kw_only=True, repr=False)
class PathInfo:
    """What a contraction order costs; printing it gives a table.

    The names are opt_einsum's. ``path`` is in its convention; ``eq`` is the expression with one letter per index and
    ``size_dict`` maps the letters to sizes; ``shapes`` are the operands' (broadcast ones at their full size);
    ``indices`` are all letters. ``naive_cost`` and ``opt_cost`` are flops of one loop over all indices and of the
    path, ``speedup`` their ratio; ``largest_intermediate`` is in elements. ``scale_list`` and ``size_list`` give per
    step the number of its indices and the elements of its result. ``optimizer`` names what found the path.
    """

    path: list[tuple[int, ...]]
    eq: str
    shapes: list[tuple[int, ...]]
    size_dict: dict[str, int]
    naive_cost: Decimal
    opt_cost: Decimal
    largest_intermediate: Decimal
    scale_list: list[int]
    size_list: list[int]
    optimizer: str
    steps: tuple[PathStep, ...] = field(default=())

    @property
    def input_subscripts(self) -> str:
        return self.eq.partition("->")[0]

    @property
    def output_subscript(self) -> str:
        return self.eq.partition("->")[2]

    @property
    def indices(self) -> frozenset[str]:
        return frozenset(self.size_dict)

    @property
    def speedup(self) -> Decimal:
        return self.naive_cost / max(self.opt_cost, Decimal(1))

    def __str__(self) -> str:
        return "\n".join(_table(self))

    __repr__ = __str__


def contract_path(
    subscripts: Any,
    *operands: Any,
    optimize: Any = True,
    memory_limit: int | str | None = None,
    shapes: bool = False,
    max_time: float | None = None,
    strict: bool = False,
    seed: int = 0,
    minimize: Any = "flops",
    **unknown: Any,
) -> tuple[list[tuple[int, ...]], PathInfo]:
    """Find a contraction order without contracting: the path and a printable `PathInfo`, as opt_einsum gives them.

    ``subscripts`` and ``operands`` are as for `einsum`, interleaved too; with ``shapes=True`` the operands are
    shapes. The other options are those of `find_order`; steps are binary whatever ``optimize`` is.

    >>> path, info = contract_path("ij,jk,kl->il", (2, 9), (9, 9), (9, 3), shapes=True)
    >>> path, int(info.opt_cost), int(info.largest_intermediate)
    ([(0, 1), (0, 1)], 432, 18)
    >>> print(info)
              expression  ij,jk,kl->il
               optimizer  auto
             naive flops  1458
              path flops  432
                 speedup  3.375
    largest intermediate  18 elements
    step  operands  indices  flops  elements  contraction  remaining
       0       0,1        3    324        18  ij,jk->ik    kl,ik->il
       1       0,1        3    108         6  kl,ik->il    il->il
    """
    if unknown:
        valid = "max_time, memory_limit, minimize, optimize, seed, shapes, strict"
        raise EngineTypeError(f"contract_path() has no option {next(iter(unknown))!r}; its options are {valid}")
    expr = _expr(subscripts, operands, shapes, strict)
    order = find_order(
        search_terms(expr),
        expr.output,
        expr.sizes,
        optimize=optimize,
        memory_limit=memory_limit,
        max_time=max_time,
        seed=seed,
        text=expr.text,
        minimize=minimize,
    )
    path = [tuple(step) for step in order.path]
    return path, _info(expr, path, order.optimizer)


def einsum_path(subscripts: Any, *operands: Any, optimize: Any = "greedy", **options: Any) -> tuple[list[Any], str]:
    """Find a contraction order in NumPy's format: ``['einsum_path', (0, 1), ...]`` and a table as text.

    Arguments are those of `contract_path`. The list is accepted by ``optimize=`` of `einsum` and of `np.einsum`.

    >>> einsum_path("ij,jk,kl->il", (2, 9), (9, 9), (9, 3), shapes=True)[0]
    ['einsum_path', (0, 1), (0, 1)]
    """
    path, info = contract_path(subscripts, *operands, optimize=optimize, **options)
    return ["einsum_path", *path], str(info)


def search_terms(expr: Expr) -> tuple[Term, ...]:
    """The terms of an expression as a search should see them: no repeats, and no axes that are only broadcast."""
    return tuple(
        tuple(dict.fromkeys(index for index, size in zip(term, shape) if size == expr.sizes[index]))
        for term, shape in zip(expr.inputs, expr.shapes)
    )


def _expr(subscripts: Any, operands: Sequence[Any], shapes: bool, strict: bool) -> Expr:
    if isinstance(subscripts, (str, bytes)):
        return parse(subscripts, [_shape(operand, shapes, n) for n, operand in enumerate(operands)], strict=strict)
    arrays, terms, output = parse_interleaved((subscripts, *operands))
    return from_terms(terms, output, [_shape(operand, shapes, n) for n, operand in enumerate(arrays)], strict=strict)


def _shape(operand: Any, is_shape: bool, position: int) -> tuple[int, ...]:
    """The shape of an array or nested list, or the operand itself where shapes are given."""
    if is_shape:
        try:
            return tuple(operand)
        except TypeError:
            raise EngineTypeError(
                f"operand {position} is {type(operand).__name__}, but shapes=True expects a tuple of sizes"
            ) from None
    shape = getattr(operand, "shape", None)
    if shape is None:
        import numpy as np

        shape = np.shape(operand)
    return tuple(shape)


def _info(expr: Expr, path: list[tuple[int, ...]], optimizer: str) -> PathInfo:
    letter = letters([index for term in (*expr.inputs, expr.output) for index in term])
    terms = search_terms(expr)
    steps = tuple(walk(terms, expr.output, expr.sizes, check_path(path, len(terms), expr.text)))
    return PathInfo(
        path=path,
        eq=expr.eq,
        shapes=[tuple(expr.sizes[index] for index in term) for term in expr.inputs],
        size_dict={letter[index]: size for index, size in expr.sizes.items()},
        naive_cost=Decimal(_naive_flops(expr)),
        opt_cost=Decimal(sum(step.flops for step in steps)),
        largest_intermediate=Decimal(max(step.elements for step in steps)),
        scale_list=[len(set().union(*step.inputs, step.result)) for step in steps],
        size_list=[step.elements for step in steps],
        optimizer=optimizer,
        steps=tuple(_lettered(step, letter) for step in steps),
    )


def _naive_flops(expr: Expr) -> int:
    """Flops of one loop nest over all indices: the products, and an addition where an index is summed."""
    points = prod(expr.sizes.values())
    summed = len(expr.sizes) > len(set(expr.output))
    return points * (max(1, len(expr.inputs) - 1) + summed)


def _lettered(step: PathStep, letter: dict[Index, str]) -> PathStep:
    def term(indices: Term) -> Term:
        return tuple(letter[index] for index in indices)

    return PathStep(
        ids=step.ids,
        inputs=tuple(map(term, step.inputs)),
        result=term(step.result),
        flops=step.flops,
        elements=step.elements,
    )


# ---- the table ------------------------------------------------------------------------------------------------


def _table(info: PathInfo) -> Iterator[str]:
    facts = {
        "expression": _cut(info.eq),
        "optimizer": info.optimizer,
        "naive flops": _number(info.naive_cost),
        "path flops": _number(info.opt_cost),
        "speedup": _number(info.speedup),
        "largest intermediate": f"{_number(info.largest_intermediate)} elements",
    }
    for name, value in facts.items():
        yield f"{name:>20}  {value}"
    rows = list(_rows(info))
    headings = ("step", "operands", "indices", "flops", "elements", "contraction", "remaining")
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    for row in (headings, *rows):
        numbers = "  ".join(f"{cell:>{width}}" for cell, width in zip(row[:5], widths))
        yield f"{numbers}  {row[5]:<{widths[5]}}  {row[6]}".rstrip()


def _rows(info: PathInfo) -> Iterator[tuple[str, ...]]:
    """The columns of each step; what remains after it as terms in the order of the path's positions."""
    left = dict(enumerate(info.input_subscripts.split(",")))
    count = len(left)
    for number, (step, positions) in enumerate(zip(info.steps, info.path)):
        result = "".join(map(str, step.result))
        text = ",".join([left.pop(tensor) for tensor in step.ids])
        left[count + number] = result
        rest = f"{','.join(left.values())}->{info.output_subscript}" if len(left) <= REMAINING_SHOWN else "..."
        yield (
            str(number),
            ",".join(map(str, positions)),
            str(info.scale_list[number]),
            _number(step.flops),
            _number(step.elements),
            _cut(f"{text}->{result}"),
            _cut(rest),
        )


def _cut(text: str) -> str:
    return text if len(text) <= WIDE else f"{text[: WIDE // 2]}...{text[-WIDE // 2 :]}"


def _number(value: Any) -> str:
    """Small integers as they are, others with four digits."""
    exact = Decimal(value)
    return str(int(exact)) if exact == int(exact) and exact < 1000 else f"{exact:.4g}"
