"""Contraction paths: checking them, cutting n-ary steps into binary ones, and counting what they cost.

Three spellings of an order occur. *Positions* (opt_einsum, NumPy): each step names places in the list of tensors
that are left; they are taken out and the result goes to the end. *Ids*: tensors keep their number, operands 0..n-1,
results n, n+1, ... A *tree* of nested pairs of operand numbers. Work is done on ids, positions are what users see.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import prod
from operator import index as as_int
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ..errors import EngineValueError
from ..expr import quoted
from ..plan import Index

Term = tuple[Index, ...]
Path = tuple[tuple[int, ...], ...]
Sizes = Mapping[Any, int] | Sequence[int]  # by index; a sequence where indices are numbers
_REMEMBERED = 32  # operands up to which the index sets of an order are kept


def shown(path: Any) -> str:
    """A path for a message, cut in the middle where it is long."""
    return quoted(str(path))[1:-1]


def show(terms: Iterable[Term], output: Term) -> str:
    """The expression of terms, for messages: ``ij,jk->ik``; indices that are not single letters stand in braces.

    >>> show([("i", "j"), ("j", 12)], ("i", 12))
    'ij,j{12}->i{12}'
    """

    def term_text(term: Term) -> str:
        return "".join(index if isinstance(index, str) and len(index) == 1 else f"{{{index}}}" for index in term)

    return f"{','.join(map(term_text, terms))}->{term_text(output)}"


def check_path(path: Any, count: int, expression: str) -> list[tuple[int, ...]]:
    """The steps of a path in positions, as ids; `EngineValueError` where it does not contract ``count`` operands.

    An empty path is a full one for a single operand.

    >>> check_path([(0, 2), (0, 1)], 3, "ij,jk,kl->il")
    [(0, 2), (1, 3)]
    """

    def wrong(problem: str) -> EngineValueError:
        where = f"{quoted(expression)} with {count} operands"
        return EngineValueError(f"path {shown(path)} does not fit {where}: {problem}")

    live = list(range(count))
    ids: list[tuple[int, ...]] = []
    for number, step in enumerate(path):
        try:
            positions = tuple(as_int(position) for position in step)
        except TypeError:
            raise wrong(f"step {number} is {step!r}, not a tuple of operand positions") from None
        if not positions:
            raise wrong(f"step {number} is empty")
        for position in positions:
            if not 0 <= position < len(live):
                raise wrong(
                    f"step {number}, {step!r}, names position {position}, but {len(live)} tensors are left then,"
                    f" 0 to {len(live) - 1}"
                )
        ordered = sorted(positions)
        if len(set(ordered)) != len(ordered):
            raise wrong(f"step {number}, {step!r}, names a position twice")
        ids.append(tuple(live[position] for position in ordered))
        for position in reversed(ordered):
            del live[position]
        live.append(count + number)
    if len(live) != 1:
        raise wrong(f"it leaves {len(live)} tensors uncontracted")
    return ids


def to_positions(ids: Iterable[tuple[int, ...]], count: int) -> Path:
    """Steps in ids as a path in positions, each step sorted.

    >>> to_positions([(0, 2), (1, 3)], 3)
    ((0, 2), (0, 1))
    """
    live = list(range(count))
    path = []
    for number, step in enumerate(ids):
        # Ids only grow, so the list stays sorted and a search finds the place.
        positions = sorted(bisect_left(live, tensor) for tensor in step)
        for position in reversed(positions):
            del live[position]
        live.append(count + number)
        path.append(tuple(positions))
    return tuple(path)


def tree_to_ids(tree: Any, count: int) -> list[tuple[int, ...]]:
    """Steps in ids of a tree of nested pairs over ``count`` operands, children first.

    >>> tree_to_ids(((0, 2), 1), 3)
    [(0, 2), (3, 1)]
    """
    ids: list[tuple[int, ...]] = []
    done: list[int] = []  # ids of finished subtrees
    todo: list[Any] = [tree]
    while todo:
        node = todo.pop()
        if node is None:
            right, left = done.pop(), done.pop()
            ids.append((left, right))
            done.append(count + len(ids) - 1)
        elif isinstance(node, int):
            done.append(node)
        else:
            todo += [None, node[1], node[0]]
    return ids


class Tensors:
    """The tensors that are left during a contraction, by id, with the indices that each still has."""

    def __init__(self, terms: Sequence[Term], output: Term):
        self.terms: dict[int, Term] = dict(enumerate(terms))
        self.output = output
        self._next = len(terms)
        # An index lives on while another tensor or the output has it.
        self._uses = Counter(chain(chain.from_iterable(terms), dict.fromkeys(output)))

    def kept(self, ids: Collection[int]) -> Term:
        """Indices of the contraction of the tensors ``ids``, in the order of first appearance."""
        here: dict[Index, int] = {}
        for tensor in ids:
            for index in self.terms[tensor]:
                here[index] = here.get(index, 0) + 1
        return tuple([index for index, uses in here.items() if self._uses[index] > uses])

    def contract(self, ids: Collection[int]) -> tuple[int, Term]:
        """Replace tensors by their contraction; its id and indices. The last one has the output's order."""
        keep = self.kept(ids)
        for tensor in ids:
            for index in self.terms.pop(tensor):
                self._uses[index] -= 1
        for index in keep:
            self._uses[index] += 1
        if not self.terms:
            keep = self.output
        number = self._next
        self._next += 1
        self.terms[number] = keep
        return number, keep


def step_cost(term_a: Term, term_b: Term, keep: Collection[Index], sizes: Sizes) -> tuple[int, int]:
    """Flops and elements of the result of one binary contraction; ``keep`` holds the indices of the result.

    Real multiplications and additions both count one: a contraction with a summed index costs 2 per point of its
    index space, one without (outer product, Hadamard product) costs 1. An index that only one operand has and that
    is not kept is summed over before: one addition per element of that operand.

    >>> step_cost(("i", "j"), ("j", "k"), ("i", "k"), {"i": 2, "j": 3, "k": 5})
    (60, 10)
    >>> step_cost(("i",), ("k",), ("i", "k"), {"i": 2, "k": 5})
    (10, 10)
    """
    keep = frozenset(keep)
    summed, space, each = _space(term_a, term_b, keep)
    flops = sum([prod([sizes[index] for index in mine]) for mine in summed])
    flops += each * prod([sizes[index] for index in space])
    return flops, prod([sizes[index] for index in space & keep])


def _space(term_a: Term, term_b: Term, keep: frozenset) -> tuple[list[frozenset], frozenset, int]:
    """Indices of the operands that are summed before, of what is contracted then, and its flops per point."""
    left, right = frozenset(term_a), frozenset(term_b)
    lone = (left ^ right) - keep
    space = (left | right) - lone
    return [mine for mine in (left, right) if mine & lone], space, 1 if keep.issuperset(space) else 2


def reduction_cost(term: Term, keep: Collection[Index], sizes: Sizes) -> tuple[int, int]:
    """Flops and elements of the result of a step with one operand: an addition per element, none where nothing sums.

    >>> reduction_cost(("i", "j"), ("i",), {"i": 2, "j": 3})
    (6, 2)
    """
    flops = 0 if set(term) <= set(keep) else prod(sizes[index] for index in term)
    return flops, prod(sizes[index] for index in keep)


@dataclass(frozen=True, kw_only=True)
class PathStep:
    """One step of an order: ``ids`` of its operands, their indices, those of the result, flops and result elements."""

    ids: tuple[int, ...]
    inputs: tuple[Term, ...]
    result: Term
    flops: int
    elements: int


def walk(terms: Sequence[Term], output: Term, sizes: Sizes, ids: Iterable[tuple[int, ...]]) -> Iterator[PathStep]:
    """The steps of an order in ids, each of one or two tensors, with what they cost."""
    left = Tensors(terms, output)
    for step in ids:
        inputs = tuple(left.terms[tensor] for tensor in step)
        _, keep = left.contract(step)
        if len(step) == 1:
            flops, elements = reduction_cost(inputs[0], keep, sizes)
        else:
            flops, _ = step_cost(*inputs, keep, sizes)
            elements = prod(sizes[index] for index in keep)  # the output may repeat an index
        yield PathStep(ids=step, inputs=inputs, result=keep, flops=flops, elements=elements)


def totals(terms: Sequence[Term], output: Term, sizes: Sizes, ids: Iterable[tuple[int, ...]]) -> tuple[int, int]:
    """Flops of an order, and the elements of its largest intermediate (the output counts as one)."""
    spaces = _spaces if len(terms) <= _REMEMBERED else _spaces.__wrapped__
    flops, largest, size = 0, 0, sizes.__getitem__
    for summed, space, each, keep in spaces(tuple(terms), output, tuple(ids)):
        for mine in summed:
            flops += prod(map(size, mine))
        flops += each * prod(map(size, space))
        largest = max(largest, prod(map(size, keep)))  # the output may repeat an index
    return flops, largest


@lru_cache(maxsize=256)
def _spaces(
    terms: tuple[Term, ...], output: Term, ids: tuple[tuple[int, ...], ...]
) -> list[tuple[list, frozenset, int, Term]]:
    """What `totals` adds up for each step, without sizes: an expression comes again with others."""
    left = Tensors(terms, output)
    found: list[tuple[list, frozenset, int, Term]] = []
    for step in ids:
        inputs = [left.terms[tensor] for tensor in step]
        _, keep = left.contract(step)
        if len(inputs) == 2:
            found.append((*_space(*inputs, frozenset(keep)), keep))
        else:
            summed = [] if set(inputs[0]) <= set(keep) else inputs
            found.append((summed, frozenset(), 0, keep))
    return found


# Plans one n-ary step: (terms, output) of the step -> steps in ids over those terms.
SplitStep = Callable[[Sequence[Term], Term], list[tuple[int, ...]]]


def binary_ids(
    terms: Sequence[Term], output: Term, ids: Sequence[tuple[int, ...]], split: SplitStep
) -> list[tuple[int, ...]]:
    """The same order in binary steps: n-ary ones are planned by ``split``, those of one tensor are dropped.

    A step of one tensor (third-party paths write one where an index can be summed early) is part of the step that
    uses its result. Only a single operand keeps it.
    """
    count = len(terms)
    if count == 1:
        return [(0,)]
    if all(len(step) == 2 for step in ids):
        return list(ids)
    binary: list[tuple[int, ...]] = []
    left = Tensors(terms, output)
    now: dict[int, int] = {tensor: tensor for tensor in range(count)}  # id in the old order -> id in the new one
    for number, step in enumerate(ids):
        tensors = [now.pop(tensor) for tensor in step]
        if len(tensors) > 2:
            local = split([left.terms[tensor] for tensor in tensors], left.kept(tensors))
        else:
            local = [(0, 1)] if len(tensors) == 2 else []
        for pair in local:
            binary.append(tuple(tensors[tensor] for tensor in pair))
            tensors.append(left.contract(binary[-1])[0])
        now[count + number] = tensors[-1]
    return binary
