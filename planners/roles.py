"""What the layout solver asks of operations before it looks at sizes: the same for all shapes of one outline."""

from __future__ import annotations

from typing import NamedTuple

from ..lru import BoundedCache
from .contraction import BinaryContraction, asked
from .operations import REAL_PART, Operation, OperationList, Value
from .outline import REMEMBERED

_known = BoundedCache(256)


class Roles(NamedTuple):
    """Of each operation the number of the value that it writes, whether it is mixed, and what is asked for where it is a
    product (None: not yet known). ``casts``, ``products``: numbers of the values that copies and products write, of which
    products alone write through tables that are not linear."""

    written: tuple[int, ...]
    mixed: tuple[bool, ...]
    questions: tuple[BinaryContraction | None, ...]
    casts: frozenset[int]
    products: frozenset[int]


def roles_of(listed: OperationList) -> Roles:
    """The roles of the operations; looked up where they are those of an outline, one by one."""
    drawn = listed.operations is listed.drawn
    if not drawn or len(listed.operations) > REMEMBERED:
        return _found(listed)
    key = listed.outline, listed.request.layouts, listed.given
    known = _known.get(key)
    if known is None:
        known = _found(listed)
        _known.put(key, known)
    return known


def _found(listed: OperationList) -> Roles:
    operations, layouts, given = listed.operations, listed.request.layouts, listed.given
    casts, products = [
        frozenset([each.output.number for each in operations if each.kind == kind]) for kind in ("copy", "gemm")
    ]
    mixed = tuple([each.mixed for each in operations])
    return Roles(
        tuple([each.output.number for each in operations]),
        mixed,
        tuple(
            [
                None if parts or each.kind != "gemm" else question(each, False, products, layouts, given)
                for each, parts in zip(operations, mixed)
            ]
        ),
        casts,
        products,
    )


def question(
    operation: Operation, parts: bool, products: frozenset[int], layouts: str, given: bool
) -> BinaryContraction:
    """What is asked of a product, whatever its sizes and layouts. ``parts``: of complex tensors as real ones; their layouts
    are known then. ``given``: the output of the list is memory of the caller's."""
    (x, y), output = operation.inputs, operation.output
    dtype, terms = output.dtype, (x.term, y.term, output.term)
    panels = products if layouts != "merged" else frozenset()
    if parts:
        dtype = REAL_PART[dtype]
        terms = tuple([value.real_view(True)[0] for value in (x, y, output)])
    plain = x.dtype == y.dtype == dtype
    return asked(
        terms,
        (dtype, "", "") if plain else (dtype, _other(x, parts, dtype), _other(y, parts, dtype)),
        (x.conj, y.conj),
        (x.constant, y.constant),
        (x.number in panels, y.number in panels, layouts in ("panels", "nested"), layouts == "nested"),
        output.kind == "arena",
        given and output.kind == "output",
        operation.tail,
    )


def _other(value: Value, parts: bool, dtype: str) -> str:
    """The dtype of the elements of ``value`` where it is not ``dtype``."""
    if value.dtype == dtype:
        return ""
    stored = REAL_PART.get(value.dtype, value.dtype) if parts else value.dtype
    return "" if stored == dtype else stored
