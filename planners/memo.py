"""Products that were planned before, under whatever names their indices had.

Tensor networks repeat themselves: a thousand steps of a circuit, or the same sweep over other indices, have a few dozen
different products. What a plan depends on is a contraction with its indices numbered: sizes, strides, dtypes and what
it was asked to do; where no layout is free, those of its dimensions, neighbours fused. The memory is bounded, and a plan
in it does not know where its operands are.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Hashable, Iterator, NamedTuple

from .. import cost
from ..kernels.isa import ISA
from ..lru import BoundedCache
from ..plan import Index
from .contraction import BinaryContraction, Laid
from .gemm import GemmPlan
from .gemm_cost import pack_seconds, product_seconds
from .layout import Given
from .parts import Part, plan_parts
from .unpacked import UnpackedPlan
from .unpacked_cost import unpacked_seconds

REMEMBERED = 1024  # keys at least, two or three of a product, and up to twice as many
NOTHING_GIVEN = (None, None)
_place = itemgetter(slice(2, None))  # of an axis: where its elements are
MOST_ENTRIES = 1 << 14  # of the tables of a plan that is remembered


class Times(NamedTuple):
    """Seconds on one thread: of the product, and of packing its left and right side before."""

    product: float
    left: float = 0.0
    right: float = 0.0

    @property
    def total(self) -> float:
        return self.product + self.left + self.right


class Planned(NamedTuple):
    """A part, the layouts that it gives to its lanes side and its other side, and its times; None where nothing better
    is known than a roofline."""

    part: Part
    given: tuple[Given | None, Given | None] = NOTHING_GIVEN
    times: Times | None = None


_known = BoundedCache(REMEMBERED)
_met = BoundedCache(REMEMBERED)  # contractions without sizes that were looked up before, by their ids


def planned(laid: Laid, isa: ISA, threads: int, machine: cost.Machine) -> tuple[Planned, ...]:
    """`plan_parts` with what the layout solver asks of each part."""
    key = isa.name, threads, laid.objects
    found = _known.get(key)
    if found is None or found[0] is not machine:
        return _by_numbers(laid, isa, threads, machine, key)
    return found[2]  # an entry has its objects, so no others get the ids of these, names included


def _by_numbers(laid: Laid, isa: ISA, threads: int, machine: cost.Machine, objects: Hashable) -> tuple[Planned, ...]:
    """`planned` of a product that is not known by its ``objects``, but is from now on."""
    c, missed = laid.contraction, [objects]
    met = _met.get(id(laid.asked)) is not None
    if not met:
        _met.put(id(laid.asked), laid.asked)
    for key in _keys(c, isa, threads, met):
        found = _known.get(key)
        if found is not None and found[0] is machine:
            _, before, parts = found
            if before.asked.names != c.names:
                parts = tuple([_renamed(each, dict(zip(before.asked.names, c.names))) for each in parts])
            break
        missed.append(key)
    else:
        parts = tuple([_timed(part, isa, machine) for part in plan_parts(c, isa, threads, machine)])
        if not all(map(_is_small, parts)):
            return parts
    entry = machine, laid, parts
    for key in missed:
        _known.put(key, entry)
    return parts


def forget() -> None:
    """Forgets all plans."""
    _known.clear()
    _met.clear()


def _keys(c: BinaryContraction, isa: ISA, threads: int, met: bool) -> Iterator[Hashable]:
    """What a product is known by besides its objects: its numbers, its numbers once neighbours are fused.

    Products of equal numbers are equal once fused. To compare numbers takes half as long in a network that repeats itself
    under other names; one that was ``met`` under these names has other sizes now, and its numbers would not be found.
    """
    # A free layout has names, and of a batch single indices may be copied.
    unfused = c.left is None or c.right is None or bool(c.batch)
    if unfused or not met:
        yield _key(c, isa, threads)
    if unfused:
        return
    swapped = c.lanes_on_right
    places = c.swapped_places if swapped else c.places  # as the planner asks for dimensions
    if places is not None:
        (_, m), (_, n), (_, k) = places
        yield isa.name, threads, c.question, m, n, k, swapped, c.flip, c.across
    elif met:
        yield _key(c, isa, threads)  # an axis in blocks


def _key(c: BinaryContraction, isa: ISA, threads: int) -> Hashable:
    near: tuple[int, ...] = ()
    if c.near_left or c.near_right:
        near = tuple([c.names.index(i) for side in (c.near_left, c.near_right) for i in c.names if i in side])
    return (
        isa.name,
        threads,
        c.question,
        c.ranks,
        c.lengths,
        *[
            None if axes is None else tuple(map(_place, map(axes.__getitem__, indices)))
            for axes, indices in zip((c.left, c.right, c.out), c.terms)
        ],
        c.flip,
        c.across,
        len(c.near_left),
        near,
    )


def _timed(part: Part, isa: ISA, machine: cost.Machine) -> Planned:
    plan = part.plan
    if not isinstance(plan, GemmPlan):
        seconds = unpacked_seconds(plan, isa, machine) if isinstance(plan, UnpackedPlan) else None
        return Planned(part=part, times=None if seconds is None else Times(product=seconds))
    left = 0.0 if plan.pack_left is None else pack_seconds(plan.pack_left.problem, isa, machine)
    right = 0.0 if plan.pack_right is None else pack_seconds(plan.pack_right.problem, isa, machine)
    times = Times(product=product_seconds(plan.work, isa, machine), left=left, right=right)
    if plan.left_layout is None and plan.right_layout is None:
        return Planned(part=part, times=times)
    given = (None if layout is None else Given.of(layout) for layout in (plan.left_layout, plan.right_layout))
    return Planned(part=part, given=tuple(given), times=times)


def _is_small(each: Planned) -> bool:
    """Worth remembering: a whole operation with short tables."""
    plan = each.part.plan
    if each.part.contraction is not None:
        return False
    return not isinstance(plan, GemmPlan) or _entries(plan) <= MOST_ENTRIES


def _entries(plan: GemmPlan) -> int:
    """Entries of its tables, at most."""
    w = plan.work
    packed = [side.problem.lanes.size for side in (plan.pack_left, plan.pack_right) if side is not None]
    return 2 * w.panels * w.mr + 2 * w.columns + 2 * w.k + 3 * w.outer + sum(packed)


def _renamed(each: Planned, names: dict[Index, Index]) -> Planned:
    """The same for other indices."""
    if each.given == NOTHING_GIVEN:
        return each
    left, right = (None if given is None else given.renamed(names) for given in each.given)
    return Planned(part=each.part, given=(left, right), times=each.times)
