"""A traced function: its program, what is around it, and how it is called.

A call takes the arguments to the inputs of the program, runs its plan (or, where it has none, the program itself), and
puts the results together. Of arguments that it writes, those that lie apart are written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .ir import Program
from .lru import BoundedCache
from .overlap import at_address, memory_of
from .program_route import NoPlan, ProgramRoute, RunOptions, injective, make_route
from .records import lazy
from .routes import giving_arrays
from .trace_memory import numpy_memory
from .trees import LEAF, unflatten
from .views import View

ROUTES = 16  # plans that a program keeps, at least: one for each combination of strides


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """Where a leaf of the result comes from.

    ``kind``: ``output`` number ``at`` of the program (seen through ``view``, if others share it), a part of ``input``
    array ``at`` (``view`` in bytes), or ``static``, the value itself.
    """

    kind: str
    at: int = 0
    view: View | None = None
    scalar: bool = False
    locked: bool = False
    value: Any = None


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A program with what is around it: how results are put together, and which inputs it writes.

    ``source`` is the program as it was traced, ``stages`` what passes made of it: the last one is ``program``.
    ``written``: pairs of input of the program and the output that it becomes. ``groups``: for each input of the
    program, the arrays of the call that lie in it and their views; one with itself where nothing overlaps.
    Otherwise the input is the memory around them (`spans`).
    ``routes``: the plan, or why there is none, by the strides of the inputs.
    """

    program: Program
    source: Program
    stages: tuple[tuple[str, Program], ...]
    tree: Any
    leaves: tuple[Leaf, ...]
    written: tuple[tuple[int, int], ...]
    groups: tuple[tuple[tuple[int, View], ...], ...]
    options: RunOptions
    routes: BoundedCache = field(default_factory=lambda: BoundedCache(ROUTES), compare=False)

    @lazy
    def spans(self) -> tuple[bool, ...]:
        """Whether each input is memory around arrays: several that overlap, one whose elements do, or one that was traced in
        the order of its memory."""
        # Of one axis, stride 0 alone repeats elements, and the memory around is one element.
        pairs = zip(self.groups, self.program.inputs)
        return tuple([len(group) > 1 or group[0][1].shape != var.shape for group, var in pairs])

    @lazy
    def filled(self) -> tuple[bool, ...]:
        """Whether each input has the elements of one array and no others, each once: it is written in place."""
        pairs = zip(self.groups, self.program.inputs)
        return tuple([len(group) == 1 and group[0][1].covers(var.aval.size) for group, var in pairs])

    def route(self, strides: tuple[tuple[int, ...], ...], name: str) -> ProgramRoute | NoPlan:
        """How the program runs on inputs of these strides; made once."""
        found = self.routes.get(strides)
        if found is None:
            found = make_route(self.program, self.written, strides, name, self.options)
            self.routes.put(strides, found)
        return found


# -- a call ------------------------------------------------------------------------------------------------------------
def run(traced: Traced, arrays: list[Any], name: str) -> tuple[Any, ProgramRoute | NoPlan]:
    """The result of a call, and how it was computed."""
    given = inputs_of(traced, arrays)
    route = traced.route(strides_of(given), name)
    if isinstance(route, NoPlan):
        made = traced.program.eval(*given)
        left = {at: made[output] for at, output in traced.written}
    else:
        own = route.run(given)
        made = tuple(None if place is None else own[place] for place in route.places)
        left = {at: given[at] for at, _ in traced.written}
    for at, array in left.items():
        for array_at, view in traced.groups[at]:
            if traced.filled[at] and np.may_share_memory(array, arrays[array_at]):
                continue
            if arrays[array_at].flags.writeable:
                arrays[array_at][...] = view.of(array) if traced.spans[at] else array
    return unflatten(traced.tree, [_leaf(leaf, made, arrays) for leaf in traced.leaves]), route


def inputs_of(traced: Traced, arrays: list[Any]) -> list[np.ndarray]:
    """The inputs of the program: the arguments, or copies of those that it writes and cannot write in place."""
    found = []
    written = {at for at, _ in traced.written}
    for at, (group, var) in enumerate(zip(traced.groups, traced.program.inputs)):
        first = arrays[group[0][0]]
        if traced.spans[at]:
            first = memory_of(arrays, tuple(member for member, _ in group))
        first = first if isinstance(first, np.ndarray) else np.asarray(first)
        if first.dtype != var.dtype:
            first = first.astype(var.dtype)
        elif at in written and not (traced.filled[at] and injective(first)):
            first = np.array(first, order="C")
        found.append(first)
    return found


def strides_of(arrays: Sequence[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    return tuple([array.strides for array in arrays])


def quick_of(traced: Traced, route: ProgramRoute) -> Callable[..., Any] | None:
    """A function for the arrays that a route was made for, NotImplemented for others, and where one that is written
    shares memory with another; None where a call does more than to compute fresh results and to write arguments."""
    fresh = all(leaf.kind != "input" and leaf.view is None and not leaf.locked for leaf in traced.leaves)
    alone = not any(traced.spans) and all(group[0][0] == at for at, group in enumerate(traced.groups))
    if not fresh or not alone:
        return None
    entry = route.quick()
    if traced.tree == LEAF and entry is not None and traced.leaves[0].kind == "output":
        leaf = traced.leaves[0]
        return entry if leaf.scalar or traced.program.outputs[leaf.at].shape else giving_arrays(entry)

    def several(*arrays: Any) -> Any:
        own = route.enter(arrays)
        if own is None:
            return NotImplemented
        return unflatten(traced.tree, [_fresh_leaf(leaf, own, route.places) for leaf in traced.leaves])

    return several


def _fresh_leaf(leaf: Leaf, own: list[np.ndarray], places: Sequence[int | None]) -> Any:
    if leaf.kind == "static":
        return leaf.value
    found = own[places[leaf.at]]
    return found[()] if leaf.scalar else found


def _leaf(leaf: Leaf, made: tuple[np.ndarray, ...], arrays: list[Any]) -> Any:
    if leaf.kind == "static":
        return leaf.value
    if leaf.kind == "input":
        found = _seen(arrays[leaf.at], leaf.view)
    else:
        found = made[leaf.at] if leaf.view is None else leaf.view.of(made[leaf.at])
    if leaf.scalar:
        return found[()]
    if leaf.locked:
        found = found.view()
        found.flags.writeable = False
    return found


def _seen(array: np.ndarray, view: View) -> np.ndarray:
    if view == numpy_memory(array):
        return array
    return at_address(array, array.__array_interface__["data"][0] + view.offset, view.shape, view.strides)
