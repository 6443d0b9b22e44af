"""Subscripts to a frozen `Expr`: the only subscript parser of the engine.

It accepts what `np.einsum` accepts, and beyond it any Unicode letter, any integer index and a repeated output
index. The part that depends on the subscripts alone is cached apart from the shapes. No NumPy in here.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from math import prod
from string import ascii_letters
from typing import Any, NamedTuple

from .errors import EngineTypeError, EngineValueError
from .records import lazy, quick

Index = str | int
Term = tuple[Index, ...]
Shape = tuple[int, ...]

MAX_ELEMENTS = 2**63 - 1
MAX_RANK = 64  # of a result: NumPy's arrays have no more axes
_SHOWN = 160  # characters of an expression that a message shows; some have thousands of operands
_HANDWRITTEN = 4096  # characters; longer subscripts are made by a program, which may use any symbol
_ELLIPSIS = "…"  # names the axes of an ellipsis: "…0", "…1", ...; two characters, so no letter collides
_LOOKALIKES = {"…": "...", "→": "->", "⟶": "->", "，": ",", "−": "-"}
_BROKEN_TOKEN = re.compile(r"\. +\.|- +>")


@quick
@dataclass(frozen=True, kw_only=True)
class Expr:
    """A contraction with its sizes: what is contracted, not how.

    ``text`` is what the user wrote. ``inputs`` has one term per operand, the ellipsis expanded to the indices
    ``"…0"``, ``"…1"``, ... (right-aligned), repeated indices kept; ``output`` may repeat an index (``i->ii``).
    ``shapes`` are those of the operands, in elements; ``lengths`` are the broadcast sizes of all ``indices``.

    >>> expr = parse("ij,jk->ik", [(2, 3), (3, 4)])
    >>> expr.inputs, expr.output, expr.sizes["k"], expr.output_shape
    ((('i', 'j'), ('j', 'k')), ('i', 'k'), 4, (2, 4))
    """

    text: str
    inputs: tuple[Term, ...]
    output: Term
    shapes: tuple[Shape, ...]
    indices: tuple[Index, ...]
    lengths: tuple[int, ...]

    @lazy
    def sizes(self) -> dict[Index, int]:
        """Index to size, after broadcasting."""
        return dict(zip(self.indices, self.lengths))

    @lazy
    def output_shape(self) -> Shape:
        """Shape of the result, in elements."""
        sizes = self.sizes
        return tuple([sizes[index] for index in self.output])

    @lazy
    def eq(self) -> str:
        """The explicit form in letters, one per index: integers and ellipsis axes get letters that are free.

        >>> parse("...i,i", [(5, 3), (3,)]).eq
        'ai,i->a'
        """
        return spelled(self.inputs, self.output, letters(chain(*self.inputs, self.output)))

    @property
    def is_view(self) -> bool:
        """Whether NumPy's einsum returns a view: one operand, each of its indices in the result, none there twice."""
        if len(self.inputs) != 1:
            return False
        output = set(self.output)
        return len(output) == len(self.output) and set(self.inputs[0]) == output


def parse(subscripts: str | bytes, shapes: Sequence[Sequence[int]], *, strict: bool = False) -> Expr:
    """The `Expr` of a subscripts string and the shapes of its operands (one sequence of ints per operand).

    The rules are those of `np.einsum`: without ``->`` the result has the ellipsis axes, then the indices that occur
    once, sorted by code point; sizes of 1 broadcast, but not between the axes of one operand. ``strict=True``
    refuses to broadcast a named index (ellipsis axes always broadcast). Any Unicode letter is an index; so are the
    other characters beyond ASCII that `opt_einsum.get_symbol` makes.

    Raises `EngineValueError` (malformed subscripts, wrong number of operands, wrong rank, sizes that disagree, an
    output index in no operand, more than 2**63 - 1 elements) or `EngineTypeError` (not a string; sizes that are no
    integers).

    >>> parse("b...i,oi", [(7, 5, 3), (4, 3)]).output_shape
    (5, 7, 4)
    >>> parse("ij,jk", [(2, 3), (4, 5)])
    Traceback (most recent call last):
    einsum_engine.errors.EngineValueError: index 'j' is 3 in operand 0 axis 1 but 4 in operand 1 axis 0 of 'ij,jk'
    """
    if isinstance(subscripts, bytes):
        subscripts = _ascii(subscripts)
    elif not isinstance(subscripts, str):
        raise EngineTypeError(f"subscripts must be a string, not {type(subscripts).__name__}: {subscripts!r}")
    return _bind(_read(subscripts), shapes, strict)


def from_terms(
    terms: Iterable[Iterable[Any]],
    output: Iterable[Any] | None,
    shapes: Sequence[Sequence[int]],
    *,
    strict: bool = False,
    text: str | None = None,
) -> Expr:
    """The `Expr` of terms that are sequences of indices (letters, longer names, ints, `Ellipsis`).

    ``output=None`` derives the output: ellipsis axes, then indices that occur once, integers sorted by value.
    ``text`` is what messages and plans show. Raises as `parse` does.

    >>> from_terms([(10, 2), (2, 30)], None, [(2, 3), (3, 4)]).output
    (10, 30)
    """
    fixed = tuple([tuple(term) for term in terms])
    return _bind(_cached_structure(fixed, None if output is None else tuple(output), text), shapes, strict)


def parse_interleaved(operands: Sequence[Any]) -> tuple[list[Any], tuple[tuple[Any, ...], ...], tuple[Any, ...] | None]:
    """Split ``(array, [0, 1], array, [1, 2], [0, 2])`` into arrays, input terms and the output term or None.

    Indices are any integers (NumPy: 0 to 51) or one `Ellipsis` a term. The result feeds `from_terms`.
    Raises `EngineValueError` where a list is missing, `EngineTypeError` where a subscript is no integer.

    >>> parse_interleaved(("A", [0, 1], "B", [1, 77], [0, 77]))
    (['A', 'B'], ((0, 1), (1, 77)), (0, 77))
    """
    if len(operands) < 2:
        raise EngineValueError("einsum needs subscripts and operands: a string first, or an index list after each")
    pairs = len(operands) // 2
    terms = tuple([_index_list(operands[2 * i + 1], f"operand {i}") for i in range(pairs)])
    output = _index_list(operands[-1], "the output") if len(operands) % 2 else None
    return list(operands[0 : 2 * pairs : 2]), terms, output


def letters(indices: Iterable[Index]) -> dict[Index, str]:
    """One letter per index: single letters keep theirs, others take the first free one, in order of appearance."""
    found = dict.fromkeys(indices)
    taken = {index for index in found if isinstance(index, str) and len(index) == 1}
    free = (symbol for symbol in symbols() if symbol not in taken)
    return {index: index if index in taken else next(free) for index in found}


def spelled(terms: Sequence[Term], output: Term, names: Mapping[Index, str]) -> str:
    """Explicit subscripts of terms, with the name of each index.

    >>> spelled([(5, 7), (7,)], (5,), {5: "a", 7: "b"})
    'ab,b->a'
    """
    words = ["".join([names[index] for index in term]) for term in (*terms, output)]
    return f"{','.join(words[:-1])}->{words[-1]}"


def kept(terms: Iterable[Term], others: Iterable[Term]) -> Term:
    """Indices of what is left of ``terms`` where ``others`` still need it, in the order in which they come.

    >>> kept([("i", "j"), ("j", "k")], [("k", "l"), ("i",)])
    ('i', 'k')
    """
    needed = set(chain.from_iterable(others))
    return tuple(dict.fromkeys(index for index in chain.from_iterable(terms) if index in needed))


def symbols() -> Iterator[str]:
    """Endless single letters: a-z, A-Z, then the other Unicode letters by code point."""
    yield from ascii_letters
    yield from (chr(code) for code in count(0xC0) if chr(code).isalpha())


def quoted(text: str) -> str:
    """``text`` in quotes for a message, long ones cut in the middle."""
    if len(text) > _SHOWN:
        text = f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"
    return repr(text)


# ---- the part that depends on the subscripts alone ------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Subscripts:
    """Terms that may still hold an `Ellipsis`; ``repeats`` are the operands that name an index twice."""

    text: str
    terms: tuple[tuple[Any, ...], ...]
    output: tuple[Any, ...]
    ellipsis: bool
    repeats: tuple[int, ...]


@lru_cache(maxsize=512)
def _read(text: str) -> _Subscripts:
    if " " in text and (broken := _BROKEN_TOKEN.search(text)):
        raise EngineValueError(f"{broken.group()!r} has a space inside, in {quoted(text)}")
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = tuple([_term(chars, text, f"operand {i}") for i, chars in enumerate(left.split(","))])
    return _structure(terms, _term(right, text, "the output") if arrow else None, text)


def _term(chars: str, text: str, where: str) -> tuple[Any, ...]:
    if "." not in chars:
        if not (chars.isalpha() or not chars):
            _check_letters(chars, text, where)
        return tuple(chars)
    before, dots, after = chars.partition("...")
    if not dots or "." in before or "." in after:
        raise EngineValueError(f"{where} of {quoted(text)} has a '.' that is not part of a single '...': {chars!r}")
    _check_letters(before + after, text, where)
    return (*before, Ellipsis, *after)


def _check_letters(chars: str, text: str, where: str) -> None:
    """Beyond ASCII, the symbols of `opt_einsum.get_symbol` pass: consecutive code points, also marks and signs.

    In what a person may have typed, blanks and the look-alikes of "->" and "..." are errors all the same. Digits pass
    where there are more indices than letters of ASCII: programs that number their indices go on with them.
    """
    typed = len(text) <= _HANDWRITTEN
    many = len(set(text)) > len(ascii_letters)
    for char in chars:
        typo = char.isascii() or (typed and (char.isspace() or char in _LOOKALIKES))
        if char.isalpha() or (many and char.isdigit()) or not typo:
            continue
        hint = f"write {_LOOKALIKES[char]!r} in ASCII" if char in _LOOKALIKES else "subscripts are letters"
        raise EngineValueError(f"invalid subscript {char!r} in {where} of {quoted(text)}: {hint}")


def _ascii(subscripts: bytes) -> str:
    if not subscripts.isascii():
        raise EngineValueError(f"subscripts given as bytes must be ASCII: {subscripts!r:.{_SHOWN}}")
    return subscripts.decode("ascii")


def _structure(terms: tuple[tuple[Any, ...], ...], output: tuple[Any, ...] | None, text: str | None) -> _Subscripts:
    text = _spell(terms, output) if text is None else text
    counts = Counter(chain.from_iterable(terms))
    ellipsis = Ellipsis in counts
    if output is None:
        once = [index for index, number in counts.items() if number == 1 and index is not Ellipsis]
        output = ((Ellipsis,) if ellipsis else ()) + tuple(_sorted(once))
    for index in output:
        if index not in counts and index is not Ellipsis:
            raise EngineValueError(f"output index {index!r} is in no operand of {quoted(text)}")
    repeats = tuple([i for i, term in enumerate(terms) if len(set(term)) != len(term)])
    return _Subscripts(text=text, terms=terms, output=output, ellipsis=ellipsis or Ellipsis in output, repeats=repeats)


_cached_structure = lru_cache(maxsize=512)(_structure)


def _sorted(indices: list[Any]) -> list[Any]:
    try:
        return sorted(indices)
    except TypeError:  # ints beside letters: ints first
        return sorted(indices, key=lambda index: (isinstance(index, str), index))


def _index_list(entries: Any, where: str) -> tuple[Any, ...]:
    try:
        listed = tuple(entries)
    except TypeError:
        name = type(entries).__name__
        raise EngineTypeError(f"the subscripts of {where} must be a list of integers, not {name}") from None
    term = tuple([entry if entry is Ellipsis else _integer(entry, where) for entry in listed])
    if term.count(Ellipsis) > 1:
        raise EngineValueError(f"the subscripts list of {where} has more than one ellipsis: {_spell_term(term)}")
    return term


def _integer(entry: Any, where: str) -> int:
    try:
        if isinstance(entry, bool):
            raise TypeError
        return operator.index(entry)
    except TypeError:
        raise EngineTypeError(
            f"each subscript must be an integer or an ellipsis; {where} has {type(entry).__name__} {entry!r:.80}"
        ) from None


def _spell(terms: tuple[tuple[Any, ...], ...], output: tuple[Any, ...] | None) -> str:
    """Canonical string of terms: letters as a user would write them, other indices as bracketed lists."""
    plain = all(index is Ellipsis or (isinstance(index, str) and len(index) == 1) for t in terms for index in t)
    spell = _spell_letters if plain else _spell_term
    return ",".join(map(spell, terms)) + ("" if output is None else "->" + spell(output))


def _spell_letters(term: tuple[Any, ...]) -> str:
    return "".join(["..." if index is Ellipsis else str(index) for index in term])


def _spell_term(term: tuple[Any, ...]) -> str:
    return "[" + ",".join(["..." if index is Ellipsis else str(index) for index in term]) + "]"


# ---- the part that depends on the shapes ----------------------------------------------------------------------


def _bind(subscripts: _Subscripts, shapes: Sequence[Sequence[int]], strict: bool) -> Expr:
    text, inputs, output = subscripts.text, subscripts.terms, subscripts.output
    fixed = _integer_shapes(shapes, text)
    if len(fixed) != len(inputs):
        raise EngineValueError(
            f"wrong number of operands for {quoted(text)}: {len(inputs)} in the subscripts, {len(fixed)} given"
        )
    if subscripts.ellipsis:
        inputs, output = _expand(subscripts, fixed)
    axes = _axes(inputs)
    flat = tuple(chain.from_iterable(fixed))
    agree = tuple(map(len, fixed)) == axes.ranks
    lengths = tuple(map(flat.__getitem__, axes.first)) if agree else ()
    if not agree or tuple(map(lengths.__getitem__, axes.indices_of_all)) != flat:
        lengths = tuple(_broadcast(subscripts, inputs, fixed, strict).values())
    for position in subscripts.repeats:
        _check_repeats(position, inputs[position], fixed[position], text)
    expr = Expr(text=text, inputs=inputs, output=output, shapes=fixed, indices=axes.indices, lengths=lengths)
    # Where no tensor has an index twice, none has more elements than all indices together.
    repeats = subscripts.repeats or len(set(output)) < len(output)
    if repeats or len(output) > MAX_RANK or not 0 < prod(lengths) <= MAX_ELEMENTS:
        _check_extent(expr)
    return expr


class _Axes(NamedTuple):
    """The axes of all terms, one after the other: how many each term has, the distinct indices in order, the first axis of
    each index, and the number of the index of each axis."""

    ranks: tuple[int, ...]
    indices: tuple[Index, ...]
    first: tuple[int, ...]
    indices_of_all: tuple[int, ...]


@lru_cache(maxsize=512)
def _axes(terms: tuple[Term, ...]) -> _Axes:
    """Of an expression whatever its shapes.

    >>> _axes((("i", "j"), ("j", "k")))
    _Axes(ranks=(2, 2), indices=('i', 'j', 'k'), first=(0, 1, 3), indices_of_all=(0, 1, 1, 2))
    """
    every = tuple(chain.from_iterable(terms))
    numbers: dict[Index, int] = {}
    found = tuple([numbers.setdefault(index, len(numbers)) for index in every])
    first: dict[Index, int] = {}
    for at, index in enumerate(every):
        first.setdefault(index, at)
    return _Axes(tuple(map(len, terms)), tuple(numbers), tuple(first.values()), found)


def _broadcast(
    subscripts: _Subscripts, inputs: tuple[Term, ...], shapes: tuple[Shape, ...], strict: bool
) -> dict[Index, int]:
    """The size of each index where shapes do not simply agree: sizes of 1 give way."""
    sizes: dict[Index, int] = {}
    for term, shape in zip(inputs, shapes):
        if len(term) != len(shape):
            raise _rank_error(subscripts, shapes)
        for index, size in zip(term, shape):
            known = sizes.setdefault(index, size)
            if known != size:
                if (known != 1 and size != 1) or (strict and not _is_ellipsis_axis(index)):
                    raise _size_error(index, inputs, shapes, subscripts.text)
                if known == 1:
                    sizes[index] = size
    return sizes


def _integer_shapes(shapes: Sequence[Sequence[int]], text: str) -> tuple[Shape, ...]:
    try:
        plain = set(map(type, chain.from_iterable(shapes))) <= {int}  # tuples of them stay the objects that they are
        fixed = tuple(map(tuple, shapes) if plain else [tuple(map(operator.index, shape)) for shape in shapes])
    except TypeError:
        raise EngineTypeError(f"the shapes of {quoted(text)} must be lists of integers, not {shapes!r:.200}") from None
    if min(chain.from_iterable(fixed), default=0) < 0:
        position = next(position for position, shape in enumerate(fixed) if min(shape, default=0) < 0)
        axis, size = next((axis, size) for axis, size in enumerate(fixed[position]) if size < 0)
        raise EngineValueError(f"operand {position} of {quoted(text)} has size {size} in axis {axis}")
    return fixed


def _expand(subscripts: _Subscripts, shapes: tuple[Shape, ...]) -> tuple[tuple[Term, ...], Term]:
    """Replace each `Ellipsis` by indices counted from the left of the widest one, aligned at the right."""
    widths = [len(s) - len(t) + 1 if Ellipsis in t else 0 for t, s in zip(subscripts.terms, shapes)]
    if min(widths, default=0) < 0:
        raise _rank_error(subscripts, shapes)
    widest = max(widths, default=0)
    if widest and Ellipsis not in subscripts.output:
        position = widths.index(widest)
        raise EngineValueError(
            f"the output of {quoted(subscripts.text)} has no '...' for {widest} of the axes of operand {position}, "
            f"shape {shapes[position]}"
        )
    names = [f"{_ELLIPSIS}{i}" for i in range(widest)]
    inputs = tuple([_replace(term, names[widest - width :]) for term, width in zip(subscripts.terms, widths)])
    return inputs, _replace(subscripts.output, names)


def _replace(term: tuple[Any, ...], names: list[str]) -> Term:
    if Ellipsis not in term:
        return term
    at = term.index(Ellipsis)
    return (*term[:at], *names, *term[at + 1 :])


def _is_ellipsis_axis(index: Index) -> bool:
    return isinstance(index, str) and len(index) > 1 and index[0] == _ELLIPSIS


def _check_repeats(position: int, term: Term, shape: Shape, text: str) -> None:
    """The axes of a diagonal do not broadcast, as in NumPy."""
    for axis, index in enumerate(term):
        first = term.index(index)
        if shape[axis] != shape[first]:
            raise EngineValueError(
                f"index {index!r} is {shape[first]} in operand {position} axis {first} but {shape[axis]} in "
                f"operand {position} axis {axis} of {quoted(text)} (axes of one operand do not broadcast)"
            )


def _check_extent(expr: Expr) -> None:
    for position, shape in enumerate(expr.shapes):
        _check_product(shape, f"operand {position}", expr.text)
    if len(expr.output) > MAX_RANK:
        raise EngineValueError(
            f"the output of {quoted(expr.text)} has {len(expr.output)} axes, but arrays have at most {MAX_RANK}"
        )
    _check_product(expr.output_shape, "the output", expr.text)


def _check_product(shape: Shape, where: str, text: str) -> None:
    # Zeros are left out of the product, as NumPy does: the strides would overflow all the same.
    total = prod(shape) or prod([size or 1 for size in shape])
    if total > MAX_ELEMENTS:
        raise EngineValueError(
            f"{where} of {quoted(text)} has shape {shape}: {total} elements overflow int64 (at most {MAX_ELEMENTS})"
        )


def _rank_error(subscripts: _Subscripts, shapes: tuple[Shape, ...]) -> EngineValueError:
    for position, (term, shape) in enumerate(zip(subscripts.terms, shapes)):
        dots = Ellipsis in term
        named = len(term) - dots
        if len(shape) < named or (len(shape) > named and not dots):
            hint = " or more" if dots else "; '...' would take the other axes" if len(shape) > named else ""
            return EngineValueError(
                f"operand {position} of {quoted(subscripts.text)} has rank {len(shape)}, shape {shape}, but its "
                f"subscripts are for rank {named}{hint}"
            )
    raise AssertionError("no operand of wrong rank")


def _size_error(index: Index, inputs: tuple[Term, ...], shapes: tuple[Shape, ...], text: str) -> EngineValueError:
    places = [
        (shape[axis], position, axis)
        for position, (term, shape) in enumerate(zip(inputs, shapes))
        for axis, name in enumerate(term)
        if name == index
    ]
    # Two sizes that are not 1 disagree in any mode: those are named before a 1.
    real = [place for place in places if place[0] != 1]
    others = [place for place in (*real, *places) if place[0] != real[0][0]]
    first, other = sorted((real[0], others[0]), key=lambda place: place[1:])
    what = "an axis of '...'" if _is_ellipsis_axis(index) else f"index {index!r}"
    note = " (strict=True refuses to broadcast size 1)" if 1 in (first[0], other[0]) else ""
    return EngineValueError(
        f"{what} is {first[0]} in operand {first[1]} axis {first[2]} but {other[0]} in operand {other[1]} "
        f"axis {other[2]} of {quoted(text)}{note}"
    )
