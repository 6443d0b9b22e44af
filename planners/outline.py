"""What a contraction consists of whatever its sizes: the values and operations of a path.

Users compile one expression in ever new shapes, as bonds grow. What terms, path and dtypes say is found once for all of
them; `operations` gives it sizes and places.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from ..kernels.tiles import COMPLEX
from ..plan import Index
from .elements import REAL_PART, itemsize, same_bits

Term = tuple[Index, ...]
REMEMBERED = 64  # operands up to which an outline is kept


class Asked(NamedTuple):
    """What a path is asked to compute besides its terms: fields of `request.PlanRequest`, and the dtype of products."""

    dtypes: tuple[str, ...]
    dtype: str
    compute: str
    conj: tuple[int, ...]
    byteswapped: tuple[int, ...]
    constants: tuple[int, ...]
    scaled: bool


class ValueOutline(NamedTuple):
    """An `operations.Value` without sizes and places; ``item``: bytes of an element."""

    term: Term
    dtype: str
    kind: str
    item: int
    conj: bool = False
    swapped_bytes: bool = False
    constant: bool = False


class OperationOutline(NamedTuple):
    """An `operations.Operation`, its values by number. ``term``: the indices of the result as its operands name them; the
    output of the contraction may have another order."""

    kind: str
    inputs: tuple[int, ...]
    output: int
    scaled: bool
    term: Term


@dataclass(frozen=True, eq=False)
class Outline:
    """Operands come first, then the output, then what is between them; operations in execution order."""

    values: tuple[ValueOutline, ...]
    operations: tuple[OperationOutline, ...]


@lru_cache(maxsize=256)
def outlined(terms: tuple[Term, ...], out: Term, path: tuple[tuple[int, ...], ...], asked: Asked) -> Outline:
    """The outline of a path; ``terms`` have no index twice.

    >>> asked = Asked(("float64",) * 2, "float64", "float64", (), (), (), False)
    >>> outline = outlined((("i", "j"), ("j",)), ("i",), ((0, 1),), asked)
    >>> [value.kind for value in outline.values], outline.operations[0][:3]
    (['input', 'input', 'output'], ('gemm', (0, 1), 2))
    """
    drawing = _Drawing(asked)
    current = [drawing.operand(slot, term) for slot, term in enumerate(terms)]
    output = drawing.new(out, asked.dtype, "output")
    current = [drawing.cast(number) for number in current]
    values = drawing.values
    for pair in pairs(tuple([values[number].term for number in current]), out, path):
        current.append(drawing.pair(current[pair.first], current[pair.second], pair))
    drawing.finish(current[-1], output)
    return Outline(tuple(values), tuple(drawing.operations))


class _Drawing:
    """Values are their numbers."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.values: list[ValueOutline] = []
        self.operations: list[OperationOutline] = []

    def new(self, term: Term, dtype: str, kind: str = "arena", **more: Any) -> int:
        self.values.append(ValueOutline(term, dtype, kind, itemsize(dtype), **more))
        return len(self.values) - 1

    def operand(self, slot: int, term: Term) -> int:
        asked, dtype = self.asked, self.asked.dtypes[slot]
        conj, swapped = slot in asked.conj and dtype in COMPLEX, slot in asked.byteswapped
        return self.new(term, dtype, "input", conj=conj, swapped_bytes=swapped, constant=slot in asked.constants)

    def change(self, number: int, **fields: Any) -> None:
        self.values[number] = self.values[number]._replace(**fields)

    def apply(self, kind: str, inputs: tuple[int, ...], output: int, scaled: bool = False) -> int:
        made = self.values[output]
        if made.kind == "arena" and all([self.values[number].constant for number in inputs]):
            self.change(output, constant=True)
        self.operations.append(OperationOutline(kind, inputs, output, scaled, made.term))
        return output

    def cast(self, number: int) -> int:
        """The operand in the compute dtype; a real one stays real beside complex ones."""
        value, compute = self.values[number], self.asked.compute
        wanted = compute if value.dtype in REAL_PART else REAL_PART.get(compute, compute)
        if same_bits(value.dtype, wanted) and not value.swapped_bytes:
            self.change(number, dtype=wanted)
            return number
        self.change(number, conj=False)
        return self.apply("copy", (number,), self.new(value.term, wanted, conj=value.conj))

    def lone(self, number: int, kept: Term) -> int:
        """Sums the indices that nobody else needs: all but ``kept``."""
        value = self.values[number]
        if len(kept) == len(value.term):
            return number
        return self.apply("sum", (number,), self.new(kept, value.dtype, conj=value.conj))

    def pair(self, first: int, second: int, pair: Pair) -> int:
        inputs = self.lone(first, pair.kept_first), self.lone(second, pair.kept_second)
        x, y = [self.values[number] for number in inputs]
        if x.dtype == y.dtype:
            return self.apply(pair.kind, inputs, self.new(pair.term, x.dtype))
        for number in inputs:  # of a complex tensor times a real one: of the product as well
            self.change(number, conj=False)
        return self.apply(pair.kind, inputs, self.new(pair.term, self.asked.compute, conj=x.conj or y.conj))

    def finish(self, number: int, output: int) -> None:
        """Writes the output with the last operation itself where that needs no cast, scaling or conjugation."""
        value, out = self.values[number], self.values[output]
        number = self.lone(number, tuple([i for i in value.term if i in out.term]))
        value, last = self.values[number], self.operations[-1] if self.operations else None
        made = last is not None and last.output == number
        if made and same_bits(out.dtype, value.dtype) and not value.conj and not self.asked.scaled:
            self.change(output, dtype=value.dtype)
            self.operations[-1] = last._replace(output=output)
            self.values.pop()  # the last operation made it
        else:
            self.apply("copy", (number,), output, scaled=self.asked.scaled)


class Pair(NamedTuple):
    """A step of a path: the numbers of two tensors (operands, then products in order), the indices that each keeps,
    those of their product, and its kind."""

    first: int
    second: int
    kept_first: tuple[Index, ...]
    kept_second: tuple[Index, ...]
    term: tuple[Index, ...]
    kind: str


def pairs(terms: tuple[tuple[Index, ...], ...], out: tuple[Index, ...], path: tuple) -> tuple[Pair, ...]:
    """The steps of a path, without sizes.

    >>> pairs((("i", "j"), ("j", "k")), ("i",), ((0, 1),))
    (Pair(first=0, second=1, kept_first=('i', 'j'), kept_second=('j',), term=('i',), kind='gemm'),)
    """
    uses = Counter(chain(out, *terms))
    made, left, found = list(terms), list(range(len(terms))), []
    for group in path:
        if len(group) == 1:  # nothing is computed, but it is the last one now
            left.append(left.pop(group[0]))
            continue
        at, behind = sorted(group)
        second, first = left.pop(behind), left.pop(at)
        x, y = made[first], made[second]
        uses.subtract(x + y)
        kept_x = tuple([i for i in x if uses[i] > 0 or i in y])
        kept_y = tuple([i for i in y if uses[i] > 0 or i in x])
        both = dict.fromkeys(kept_x + kept_y)
        term = tuple([i for i in both if uses[i] > 0])
        found.append(Pair(first, second, kept_x, kept_y, term, "mul" if len(term) == len(both) else "gemm"))
        uses.update(term)
        left.append(len(made))
        made.append(term)
    return tuple(found)
