"""Steps that need all of a row before they go over it again, as one step: softmax, layer norm, log-sum-exp.

NumPy takes the maximum of all rows, then subtracts, exponentiates and adds up, then divides. As steps, each goes over
all rows, or over a block of them that fits the cache (`blocking`). One step goes over one row as often as it takes,
in L1, or in registers where a row is a vector (`Structure.over_rows`), and what lies between has no memory.
"""

from __future__ import annotations

from math import prod

from ..kernels.fused import FusedProblem
from ..kernels.fused_over import LONG_ROW, passes, price
from ..kernels.fused_structure import LONG, MAX_OPERANDS
from ..kernels.nest_rows import STREAM_BYTES
from ..views import View
from .blocking import folds
from .divisors import divided
from .groups import FusedGroup, Member, Ref, Scheduled, Stored, moved
from .operations import Value, itemsize
from .places import MemoryView

FLOATS = ("float32", "float64")
LONGEST = 64 << 10  # bytes of a row: it comes from L2 in each pass where L1 is too small for it
FEW_BYTES = 512  # bytes, from which a function of one number takes less than those of its row
FEWEST = 8  # rows, which threads share, and elements of one: shorter ones are better vectors along the others


def over_rows(run: list[FusedGroup], steps: list[Scheduled]) -> tuple[slice, FusedGroup, FusedProblem] | None:
    """Those of a run's steps that can be one, that one, and its problem; what lies between has no memory from now on.
    ``steps``: all there are."""
    part = _whole(run)
    core = run[part]
    reduced = [group for group in core if group.axes is not None]
    if len(core) < 2 or not reduced or len(reduced[0].axes) != 1:
        return None
    made = _Together(reduced[0].shape, reduced[0].axes[0])
    if not all(made.add(group) for group in core):
        return None
    alone = folds(core, [0] * len(core), [step for step in steps if step not in core])
    found = made.group(set(alone))
    problem = None if found is None else _served(found)
    if problem is None:
        return None
    for value in (*made.gone, *(value for value, _, _ in alone.values())):
        value.nbytes, value.source = 0, None
    return part, found, problem


def _whole(run: list[FusedGroup]) -> slice:
    """The steps of a run from the first that has all elements to the last one. What is computed before and behind, one
    number for each row, is vectors by itself."""
    most = max(prod(group.shape) for group in run)
    whole = [at for at, group in enumerate(run) if prod(group.shape) == most]
    return slice(whole[0], whole[-1] + 1)


class _Together:
    """One group for several. ``stored``: what these stored, in order, along the loops of all, and of which value;
    ``gone``: values that are stored no more."""

    def __init__(self, shape: tuple[int, ...], axis: int) -> None:
        self.shape, self.axis = shape, axis
        self.made = FusedGroup(at=-1, shape=shape, row=axis)
        self.stored: list[tuple[Stored, Value]] = []
        self.gone: list[Value] = []

    def add(self, group: FusedGroup) -> bool:
        """Whether this step, which is behind the others, can be part of it. It is from now on."""
        if not self._has_shape(group):
            return False
        refs: dict[int, Ref] = {}
        needed, used = group.followed()
        for place in needed:
            found = self._read(self._along(place))
            if found is None:
                return False
            refs[id(place)] = found
        for number in used:
            member = group.members[number]
            args = tuple(refs.get(id(arg), arg) for arg in member.args)
            member = divided(Member(op=member.op, args=args, dtype=member.dtype))  # which takes no longer here
            self.made.members.setdefault(number, member)
        self.stored += [(self._store(group, store, refs), store.place.memory) for store in group.stores]
        return True

    def _has_shape(self, group: FusedGroup) -> bool:
        """Whether its loops are these, or those over rows."""
        before, behind = self.shape[: self.axis], self.shape[self.axis + 1 :]
        if group.axes is not None:
            return group.shape == self.shape and group.axes == (self.axis,)
        return group.shape in (self.shape, (*before, *behind), (*before, 1, *behind))

    def _along(self, place: MemoryView) -> MemoryView:
        """The same place along all loops; it does not move along the row where it has one number for each."""
        shape, strides, axis = place.view.shape, place.view.strides, self.axis
        if len(shape) < len(self.shape):
            shape, strides = (*shape[:axis], 1, *shape[axis:]), (*strides[:axis], 0, *strides[axis:])
        strides = tuple(0 if size == 1 else stride for size, stride in zip(shape, strides))
        return MemoryView(place.memory.memory, View(self.shape, strides, place.view.offset))

    def _read(self, place: MemoryView) -> Ref | None:
        """What a place has when it is read: a value that was stored there, or what was there before; None where it is
        parts of several."""
        for store, _ in reversed(self.stored):
            if store.place.overlaps(place):
                return store.ref if store.place.view == place.view else None
        return self.made.read(place)

    def _store(self, group: FusedGroup, store: Stored, refs: dict[int, Ref]) -> Stored:
        ref = refs.get(id(store.ref), store.ref)
        if store.reduce:
            number = next(n for n, found in group.over.items() if found == (store.ref, store.reduce))
            self.made.members[number] = Member(op=store.reduce, args=(ref,), dtype=store.place.dtype)
            ref = number
        return Stored(ref=ref, place=self._along(store.place), assigned=store.assigned)

    def group(self, alone: set[int]) -> FusedGroup | None:
        """All of it, with the stores that somebody else reads; None where one is over what is read elsewhere, or over
        an earlier version of the same value."""
        last: list[Stored] = []
        for store, value in reversed(self.stored):
            over = [other.place for other in last if other.place.overlaps(store.place)]
            if id(store.place.memory) not in alone and not over:
                last.append(store)
                continue
            if over and (value is store.place.memory or any(place.view != store.place.view for place in over)):
                return None
            self.gone.append(value)
        self.made.stores = last[::-1]
        reads, used = self.made.followed()
        self.made.members = {number: member for number, member in self.made.members.items() if number in used}
        beside = all(s.place.view == r.view or not s.place.overlaps(r) for s in last for r in reads)
        return self.made if beside and last else None


def _served(group: FusedGroup) -> FusedProblem | None:
    """The problem of a group where there is a kernel for it: operands are floats of one size that run along the row or
    do not move in it, and rows are neither few nor too long."""
    (needed, used), row = group.followed(), group.row
    places = [*(store.place for store in group.stores), *needed]
    dtypes = {*(place.dtype for place in places), *(group.members[n].dtype for n in used)} - {"bool"}
    if len(dtypes) != 1 or not dtypes <= {*FLOATS} or len(places) > MAX_OPERANDS:
        return None
    item, size = itemsize(places[0].dtype), group.shape[row]
    if size < FEWEST or size * item > LONGEST or prod(group.shape) < FEWEST * size:
        return None
    if any(place.dtype == "bool" or place.view.strides[row] not in (0, item) for place in places):
        return None
    problem = group.problem()
    structure = problem.structure
    numbers = passes(structure).numbers
    count = len(structure.inputs) + len(structure.nodes)
    long = {value for value in range(count) if price(structure, value) >= LONG}
    if size * item < FEW_BYTES and long & numbers:
        return None
    if size * item > LONG_ROW and long - numbers and moved(group) < STREAM_BYTES:
        return None  # one by one, such rows wait between passes for as long as passes of their own take from a cache
    single = [store.place.view.strides[row] == 0 for store in group.stores]
    served = structure.over_rows and single == [out.value in numbers for out in structure.outputs]
    return problem if served else None
