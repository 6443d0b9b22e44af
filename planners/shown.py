"""What only `explain` and JSON show of a plan: made when somebody asks, from the values that steps read and write."""

from __future__ import annotations

from functools import lru_cache
from typing import Mapping, Sequence

from ..plan import Buffer, Index, Layout
from .operations import Value, itemsize


def buffers(values: Sequence[Value], outputs: Mapping[int, str]) -> tuple[Buffer, ...]:
    """All tensors of a plan; ``outputs``: names of results by number of the value, where they are not ``out``."""
    return tuple([_buffer(value, outputs) for value in values])


def _buffer(value: Value, outputs: Mapping[int, str]) -> Buffer:
    if value.kind == "arena":
        name = f"t{value.memory.number}"
    else:
        name = f"in{value.slot}" if value.kind == "input" else outputs.get(value.number, "out")
    return Buffer(
        name=name,
        kind=value.kind,
        slot=value.slot,
        offset=value.offset,
        nbytes=value.nbytes,
        dtype=value.dtype,
        layout=_layout(value),
    )


def _layout(value: Value) -> Layout:
    axes = tuple([value.axes[i] for i in value.term])
    return Layout(kind=value.layout_kind, axes=axes, itemsize=itemsize(value.dtype), panel=value.panel)


def described(values: Sequence[Value], modes: tuple[str, ...]) -> tuple[str, ...]:
    """How values lie, and ``modes``."""
    return (*[_layout(value).describe() for value in values], *modes)


def dimensions(values: Sequence[Value], dims: Mapping[Index, tuple]) -> dict:
    """Dimension types of an operation that reads all ``values`` but the last, which it writes."""
    *terms, out = [value.term for value in values]
    if len(terms) > 2:
        terms = [tuple(dict.fromkeys([index for term in terms for index in term]))] * 2
    groups = _typed(terms[0], terms[-1] if len(terms) == 2 else (), out)
    return {kind: tuple([dims[index] for index in indices]) for kind, indices in groups}


@lru_cache(maxsize=2048)
def _typed(
    left: tuple[Index, ...], right: tuple[Index, ...], out: tuple[Index, ...]
) -> tuple[tuple[str, tuple[Index, ...]], ...]:
    """Indices by dimension type, in the order in which the inputs name them."""
    groups: dict[str, list[Index]] = {"B": [], "M": [], "N": [], "K": []}
    for index in left:
        groups[("B" if index in right else "M") if index in out else "K"].append(index)
    for index in right:
        if index not in left:
            groups["N" if index in out else "K"].append(index)
    return tuple([(kind, tuple(indices)) for kind, indices in groups.items()])


@lru_cache(maxsize=2048)
def term_text(term: tuple[Index, ...]) -> str:
    """A term as it stands in the expression of a step."""
    return "".join([i if i.__class__ is str and len(i) == 1 else _name(str(i)) for i in term])


def _name(index: str) -> str:
    return index if len(index) == 1 else f"{{{index}}}"


def expression(*values: Value) -> str:
    """What computes the last of ``values`` from the others."""
    *terms, out = [term_text(value.term) for value in values]
    return ",".join(terms) + "->" + out
