"""The layout solver: which layout each intermediate gets, over the whole tree.

Every operation may be drawn up in several ways: either operand may hold the lanes, and a free one may keep its indices
in several orders, in panels or as a plain matrix. A draft fixes the layouts of the free operands, and so what their
producers have to write.
`LayoutSolver.best` finds the drafts of least predicted time by dynamic programming, from the consumer down: the best
way to compute a value in a given layout does not depend on who asks for it. Only operations whose time is worth it are
drawn up more than once, and after `EVALUATIONS` drafts the rest keep to their first one.

Plans of less than a millisecond are drawn up as a whole, and a second time with all intermediates in natural order; the
better one is taken.
Other policies than ``solve`` (`request.LAYOUTS`) draw up one way of each, with one kind of layout for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, NamedTuple, TypeVar

from .. import cost
from ..kernels.isa import ISA
from ..plan import Axis, Index
from ..records import quick
from .across import worth_drawing
from .beside import inherited
from .casts import axes_like, fold, foldable
from .contraction import Axes, BinaryContraction, Laid
from .layout import Given, dense_axes
from .memo import NOTHING_GIVEN, Planned, planned
from .merged import LEAST_BYTES, Merged, merged_matrix, merged_seconds
from .nests import natural_axes, plan_nest
from .operations import PARTS, REAL_PART, Operation, OperationList, Value, itemsize
from .parts import Part, is_slender
from .roles import question, roles_of
from .sides import SPLIT_ABOVE
from .unpacked import choose

WORTH_SECONDS = 5e-4  # an operation that takes less is not drawn up in all ways
WORTH_SHARE = 0.02  # of all predicted time
WORTH_KNOWN = 2e-5  # one of two operands of the plan is drawn up with the lanes on either side from here on
WORTH_FLIP, FLIP_SHARE = 2e-6, 0.05  # so is any product that takes so long, and so much of all predicted time,
FLIP_MOST = 1e-4  # where all of it is less than this: longer plans gain nothing
TINY_SECONDS = 5e-7  # a plan whose work takes less keeps natural order: all is in L1, and planning takes longest
SMALL_SECONDS = 5e-3  # one that takes less is drawn up in natural order too,
MOMENT, NATURAL_SHARE = 2e-5, 0.1  # which has to save so much where it takes longer than a moment
SURE_SHARE = 0.15  # of a short product, that another draft has to save: predictions are off by as much
AGAINST = 2e-10  # seconds an element of a product of elements, for each operand that does not run along it
RUN = 1e-9  # to begin a run of its elements
MOVE_RATE = 60e9  # bytes a second of an operand that a product of elements moves into its order
EVALUATIONS = 160  # plans drawn up in search of better ones
_NOTHING: frozenset[Index] = frozenset()
T = TypeVar("T")


@quick
@dataclass(frozen=True, kw_only=True)
class Orientation:
    """What a draft decides: whether the lanes side is the other one than the output suggests, and which side of its
    producer a free right operand keeps fastest (0: as the output has them, 1 or 2: the producer's first or second); so
    does a free operand of a product of elements, which moves it into the order of the output box by box.

    ``across``: lanes run along an operand (`across`). ``inherit``: free operands lie as the large operands of their
    producers do. ``merged``: a free operand on the lanes side is a matrix in plain strides, no panels (`merged`)."""

    flip: bool = False
    near: int = 0
    across: bool = False
    inherit: bool = False
    merged: bool = False


AS_OUTPUT = Orientation()  # the first draft


class Draft(NamedTuple):
    """A drawn-up operation: its parts, the layouts that it gives to free inputs by number of the value, its time."""

    parts: tuple[Planned, ...]
    given: Mapping[int, Given]
    seconds: float


class LayoutSolver:
    """Draws up the operations of a list; `solve` leaves axes on the values and parts on the operations."""

    def __init__(self, listed: OperationList, isa: ISA, machine: cost.Machine, seconds: Mapping[int, float]):
        """``seconds``: predicted for each operation by what it computes and moves, by its id."""
        self.list, self.isa, self.machine, self.seconds = listed, isa, machine, seconds
        self.threads, self.policy = listed.request.threads, listed.request.layouts
        operations, roles = listed.operations, roles_of(listed)
        self.producers: dict[int, Operation] = dict(zip(roles.written, operations))
        # by id; casts make operations look mixed that are not, once they are gone
        self.mixed: dict[int, bool] = dict(zip(map(id, operations), roles.mixed))
        self.asked: dict[int, BinaryContraction | None] = dict(zip(map(id, operations), roles.questions))
        self.casts, self.products = roles.casts, roles.products
        self.sizes_of_parts = {**listed.sizes, PARTS: 2} if True in roles.mixed else listed.sizes
        self.whole: set[int] = set()  # ids of those of `worth` that are drawn up in all ways
        self.short: set[int] = set()  # and of those whose first draft stays unless another one is surely faster
        self.worth = self._worth()
        self.inherited = inherited(listed) if self.policy == "solve" else {}
        # what reads or writes values that may inherit their order is drawn up in that order too
        self.several = self.worth
        if self.inherited:
            heirs = {id(o) for o in listed.operations for v in (o.output, *o.inputs) if v.number in self.inherited}
            self.several = self.worth | heirs
            self.short -= heirs
        self.long = max(listed.sizes.values(), default=0) > SPLIT_ABOVE
        self.looked_at: set[int] = set()
        self.dense: dict[int, Mapping[Index, Axis]] = {}  # of what casts write for products that read in place
        self.folded: set[int] = set()  # ids of casts that packing does, and of their outputs
        self.evaluations = 0
        self.found: dict[tuple, tuple[float, Draft]] = {}

    def solve(self) -> float:
        """Predicted seconds; a small plan has natural order for all intermediates where that is predicted to be less."""
        work = sum(self.seconds.values()) - len(self.seconds) * self.machine.step_seconds
        if self.policy == "solve" and work < TINY_SECONDS:
            self.policy = "natural"
        if self.policy == "natural":
            self._put_in_order()
        drafts = self._drafts()
        seconds = sum([draft.seconds for _, draft in drafts])
        if self.policy == "solve" and seconds < SMALL_SECONDS and len(drafts) > 1:
            seconds = self._in_natural_order(drafts, seconds)
        if self.folded:
            self.list.drop(self.folded)
        return seconds

    def _in_natural_order(self, drafts: list[tuple[Operation, Draft]], before: float) -> float:
        """Predicted seconds of the better one: all intermediates in natural order, or again ``drafts``, ``before`` seconds."""
        most = before * (1 - NATURAL_SHARE if before > MOMENT else 1)
        self._take_back(drafts)
        self.policy = "natural"
        ordered = self._put_in_order()
        natural = self._drafts(most=most)
        seconds = sum([draft.seconds for _, draft in natural])
        if seconds >= most:
            self._take_back(natural)
            for value in ordered:
                value.axes = None
            for operation, draft in drafts:
                self._take(operation, draft)
            return before
        return seconds

    def _put_in_order(self) -> list[Value]:
        """Gives the results of operations the order of their indices; what casts read and write has that of result and
        operands."""
        found = []
        for operation in self.list.operations:
            for value in operation.inputs if operation.kind != "copy" else ():
                if value.axes is None and value.number in self.producers and value.number not in self.casts:
                    value.axes = dense_axes(value.term[::-1], self.list.sizes, itemsize(value.dtype))
                    found.append(value)
        return found

    def _drafts(self, most: float = math.inf) -> list[tuple[Operation, Draft]]:
        """What each operation does, given up where all together take ``most`` seconds or more. Consumers first: an
        operation's output has its layout when its turn comes."""
        self.found.clear()
        drafts, seconds = [], 0.0
        for operation in reversed(self.list.operations):
            if id(operation) not in self.folded:
                several = id(operation) in self.several
                draft = self.best(operation, operation.output.axes)[1] if several else self._draft(operation, AS_OUTPUT)
                self._take(operation, draft)
                drafts.append((operation, draft))
                seconds += draft.seconds
                if seconds >= most:
                    break
        return drafts

    def _take(self, operation: Operation, draft: Draft) -> None:
        operation.parts = draft.parts
        for value in operation.inputs if draft.given else ():
            if value.number in draft.given:
                _give(value, draft.given[value.number])

    def _take_back(self, drafts: list[tuple[Operation, Draft]]) -> None:
        for operation, draft in drafts:
            for value in operation.inputs:
                if value.number in draft.given:
                    value.axes, value.layout_kind, value.panel, value.nbytes = None, "strided", 0, 0

    def best(self, operation: Operation, out: Axes) -> tuple[float, Draft]:
        """Least predicted time of an operation that is worth it and of those before it that are, and its draft."""
        key = (operation.output.number, tuple(out.items()))
        if key not in self.found:
            drafts = [self._draw_up(operation, out, orientation) for orientation in self._orientations(operation, out)]
            times = [draft.seconds + self._before(operation, draft) for draft in drafts]
            least = min(range(len(times)), key=times.__getitem__)
            if id(operation) in self.short and times[0] - times[least] < SURE_SHARE * drafts[0].seconds:
                least = 0
            self.found[key] = times[least], drafts[least]
        return self.found[key]

    def _before(self, operation: Operation, draft: Draft) -> float:
        """Predicted time of what computes the inputs that got a layout."""
        makers = [(self.producers[number], given) for number, given in draft.given.items() if number in self.producers]
        return sum(self.best(maker, given.axes)[0] for maker, given in makers if id(maker) in self.several)

    # -- drafts ----------------------------------------------------------------------------------------------
    def _orientations(self, operation: Operation, out: Axes) -> Iterator[Orientation]:
        yield AS_OUTPUT
        free = [value for value in operation.inputs if value.axes is None]
        if self.policy == "solve" and operation.kind == "mul" and id(operation) in self.whole:
            for near in (1, 2):
                if any(self._near(value, near) for value in free) and self.evaluations < EVALUATIONS:
                    yield Orientation(near=near)
        if operation.kind != "gemm" or self.policy != "solve":
            return
        if any(value.number in self.inherited for value in free):
            yield Orientation(inherit=True)
        if id(operation) not in self.worth:
            return
        if not free and self._with_output(operation, out, lambda each: worth_drawing(self._contraction(each))):
            yield Orientation(across=True)
        for flip in (False, True):
            for near in range(3 if self._orders(operation, free) else 1):
                if (flip or near) and self.evaluations < EVALUATIONS:
                    yield Orientation(flip=flip, near=near)
        for flip in (False, True) if any(map(self._may_merge, free)) else ():
            if self.evaluations < EVALUATIONS and self._with_output(operation, out, self._merged, flip):
                yield Orientation(flip=flip, merged=True)

    def _orders(self, operation: Operation, free: list[Value]) -> bool:
        """Whether it is drawn up with a free operand in several orders: where it is long, or the operand is made of
        operands of the plan. How these are read depends on that order alone; other producers may ask for theirs."""
        if id(operation) in self.whole:
            return bool(free)
        makers = [self.producers[value.number] for value in free if value.number in self.producers]
        return any([id(maker) in self.worth and _of_operands(maker) for maker in makers])

    def _with_output(self, operation: Operation, out: Axes, ask: Callable[..., T], *more: Any) -> T:
        """What ``ask`` says of an operation whose output has the axes ``out``."""
        before, operation.output.axes = operation.output.axes, out
        try:
            return ask(operation, *more)
        finally:
            operation.output.axes = before

    def _draw_up(self, operation: Operation, out: Axes, orientation: Orientation) -> Draft:
        """A draft for an output that has the axes ``out``."""
        self.evaluations += id(operation) in self.worth
        return self._with_output(operation, out, self._draft, orientation)

    def _draft(self, operation: Operation, orientation: Orientation) -> Draft:
        """Axes are written on the values while a draft is made, and taken back."""
        draft = (self._gemm if operation.kind == "gemm" else self._nest)(operation, orientation)
        for value in operation.inputs if draft.given else ():
            if value.number in draft.given:
                value.axes = None
        return draft

    def _nest(self, operation: Operation, orientation: Orientation) -> Draft:
        given = self._natural(operation, operation.inputs)
        seconds = self.seconds[id(operation)]
        for value in operation.inputs if orientation.near else ():
            near = self._near(value, orientation.near)
            if value.number in given and near:
                order = sorted(value.axes, key=lambda i: (i not in near, value.axes[i].stride))
                value.axes = dense_axes(order, self.list.sizes, itemsize(value.dtype))
                given[value.number] = Given(axes=value.axes)
                seconds += self.list.nbytes(value) / MOVE_RATE
        threads = self._threads(operation)
        if not self.machine.is_shared(self.seconds[id(operation)], threads, cost.WORTH_MOVING):
            threads = 1
        if operation.kind == "mul":
            seconds += self._across_runs(operation)
        if operation.kind == "fused":
            from .joined import fused_part  # loads what programs are made of

            part = fused_part(operation, self.list.sizes, threads)
        else:
            part = Part(plan=plan_nest(operation, self.list.sizes, threads))
        return Draft(parts=(Planned(part=part),), given=given, seconds=seconds)

    def _across_runs(self, operation: Operation) -> float:
        """Seconds that a product of elements takes besides what it reads and writes: to begin runs of its output, and for
        operands that run along another index."""
        output, sizes = operation.output, self.list.sizes
        fast = min((i for i in output.axes if sizes[i] > 1), key=lambda i: abs(output.axes[i].stride), default=None)
        steps = [(value.axes[fast].stride, itemsize(value.dtype)) for value in operation.inputs if fast in value.axes]
        against = sum([step != item for step, item in steps])
        return output.size / itemsize(output.dtype) * (AGAINST * against + RUN / sizes.get(fast, 1))

    def _natural(self, operation: Operation, values) -> dict[int, Given]:
        """Contiguous axes for those of ``values`` that are free."""
        given = {}
        for value in values:
            if value.axes is None:
                value.axes = natural_axes(value, operation.output, self.list.sizes, itemsize(value.dtype))
                given[value.number] = Given(axes=value.axes)
        return given

    def _gemm(self, operation: Operation, orientation: Orientation) -> Draft:
        if self.casts:
            self._read_through_casts(operation)
        given = self._inherit(operation) if orientation.inherit else {}
        if operation.inputs[0].axes is None or operation.inputs[1].axes is None:
            given |= self._settled(operation) or self._beside(operation)
            if self.policy == "solve":
                given |= self._as_read(operation)
        merged = self._merged(operation, orientation.flip) if orientation.merged else None
        if merged is not None:
            merged.value.axes = merged.axes
            given[merged.value.number] = Given(axes=merged.axes)
        found = planned(self._laid(operation, orientation), self.isa, self._threads(operation), self.machine)
        seconds = 0.0
        for each in found:
            if each.times is None:
                seconds += each.part.share * self.seconds[id(operation)]
                continue
            seconds += each.times.total + self.machine.step_seconds
            if merged is not None:
                seconds += merged_seconds(each, merged.row)
            if each.given == NOTHING_GIVEN:
                continue
            sides = operation.inputs[:: -1 if each.part.plan.swapped else 1]
            for value, layout in zip(sides, each.given):
                if layout is not None:
                    given[value.number] = layout
        return Draft(parts=found, given=given, seconds=seconds)

    def _threads(self, operation: Operation) -> int:
        """That share its tasks."""
        return 1 if operation.alone else self.threads

    def _inherit(self, operation: Operation) -> dict[int, Given]:
        """The order of the large operand of their producer, for free inputs that may have it."""
        given = {}
        for value in operation.inputs:
            if value.axes is None and value.number in self.inherited:
                value.axes = dense_axes(self.inherited[value.number], self.list.sizes, itemsize(value.dtype))
                given[value.number] = Given(axes=value.axes)
        return given

    def _settled(self, operation: Operation) -> dict[int, Given]:
        """Layouts of free inputs that the product cannot choose."""
        given = {}
        mixed = self.mixed[id(operation)]
        if not (self.dense or mixed or self.long):
            return given
        for value in operation.inputs if self.dense else ():
            if value.axes is None and value.number in self.dense:
                value.axes = self.dense[value.number]
                given[value.number] = Given(axes=value.axes)
        if mixed:
            given |= self._natural(operation, [v for v in operation.inputs if v.dtype in REAL_PART])
        free = self.long and any(value.axes is None for value in operation.inputs)
        if free and is_slender(self._contraction(operation)):
            given |= self._natural(operation, operation.inputs)
        return given

    def _as_read(self, operation: Operation) -> dict[int, Given]:
        """Free inputs that are sums, products or casts lie as what these read, which they go along: a product that packs
        them takes little more, and they would take several times as long to write them in another order."""
        given = {}
        for value in operation.inputs:
            found = self._read_by(value) if value.axes is None else None
            if found is not None:
                value.axes = axes_like(value, found.axes, self.list.sizes)
                given[value.number] = Given(axes=value.axes)
        return given

    def _read_by(self, value: Value) -> Value | None:
        """The largest operand that a value is made of element by element, where it has all of its indices."""
        found = value
        while found.axes is None:
            producer = self.producers.get(found.number)
            if producer is None or producer.kind == "gemm":
                return None
            found = max(producer.inputs, key=self.list.nbytes)
        strided = all(index in found.axes and found.axes[index].linear for index in value.term)
        return found if strided else None

    def _merged(self, operation: Operation, flip: bool) -> Merged | None:
        """A free operand on the lanes side that a product writes, as a matrix in plain strides."""
        if self.mixed[id(operation)]:
            return None
        c = self._laid(operation, Orientation(flip=flip)).contraction
        value = operation.inputs[c.lanes_on_right]
        return merged_matrix(c, value) if value.axes is None and self._may_merge(value) else None

    def _may_merge(self, value: Value) -> bool:
        """Whether it would be asked for in panels, as far as its size tells."""
        return value.number in self.products and self.list.nbytes(value) > LEAST_BYTES

    def _beside(self, operation: Operation) -> dict[int, Given]:
        """A free operand that has no dimension of its own can lie as the other one does, where the product can then read
        both in place. What a sum, a product or a cast writes lies as it is read, where a copy of it does as well."""
        given = {}
        for value, other in (operation.inputs, operation.inputs[::-1]):
            free = value.axes is None and other.axes is not None and other.kind == "input"
            if free and all(i in other.axes for i in value.term) and not self.mixed[id(operation)]:
                read = self._read_by(value)
                if read is not None:
                    value.axes = axes_like(value, read.axes, self.list.sizes)
                    chosen = choose(self._contraction(operation), self.isa)
                    if chosen is not None and chosen.copied is not None:
                        given[value.number] = Given(axes=value.axes)
                        continue
                value.axes = axes_like(value, other.axes, self.list.sizes)
                if choose(self._contraction(operation), self.isa) is None:
                    value.axes = None
                else:
                    given[value.number] = Given(axes=value.axes)
        return given

    def _read_through_casts(self, operation: Operation) -> None:
        """Once for an operation: a GEMM packs, and does what casts of its inputs do; what reads in place has them
        write densely, in the order in which they read."""
        if id(operation) in self.looked_at:
            return
        casts = [self.producers[v.number] for v in operation.inputs if v.number in self.casts]
        casts = [cast for cast in casts if cast.output.number not in self.dense]
        if not casts:
            return
        self.looked_at.add(id(operation))
        before = [value.axes for value in operation.inputs]
        for cast in casts:
            cast.output.axes = axes_like(cast.output, cast.inputs[0].axes, self.list.sizes)
        self._settled(operation)
        in_place = choose(self._contraction(operation), self.isa) is not None
        if in_place:
            self.dense |= {cast.output.number: cast.output.axes for cast in casts}
        for value, axes in zip(operation.inputs, before):
            value.axes = axes
        for cast in casts:
            if not in_place and foldable(cast, self.list.sizes):
                fold(cast, operation)
                self.asked[id(operation)] = None
                self.folded |= {id(cast), id(cast.output)}

    def _contraction(self, operation: Operation) -> BinaryContraction:
        """The product with the layouts that its values have now."""
        return self._laid(operation, AS_OUTPUT).contraction

    def _laid(self, operation: Operation, orientation: Orientation) -> Laid:
        x, y = operation.inputs
        left, right, out, sizes = x.axes, y.axes, operation.output.axes, self.list.sizes
        parts, asked = self.mixed[id(operation)], self.asked[id(operation)]
        if parts:
            left, right, out = [value.real_view(True)[1] for value in (x, y, operation.output)]
            sizes = self.sizes_of_parts
        if asked is None:
            asked = question(operation, parts, self.products, self.list.request.layouts, self.list.given)
            self.asked[id(operation)] = asked
        if orientation is AS_OUTPUT:
            return Laid(asked, sizes, left, right, out)
        near = [self._near(value, orientation.near) for value in (x, y)]
        return Laid(asked, sizes, left, right, out, orientation.flip, orientation.across, *near)

    def _near(self, value: Value, side: int) -> frozenset[Index]:
        """Indices that the value has from one operand of its producer alone."""
        producer = self.producers.get(value.number) if side else None
        if producer is None or producer.kind != "gemm":
            return _NOTHING
        mine, other = producer.inputs[side - 1], producer.inputs[2 - side]
        return frozenset(i for i in value.term if i in mine.term and i not in other.term)

    def _worth(self) -> set[int]:
        """Ids of the operations that are drawn up several times."""
        seconds, times = self.seconds, self.seconds.values()
        if max(times, default=0.0) < min(WORTH_FLIP, WORTH_SECONDS):
            return set()
        most, operations = sum(times), self.list.operations
        long = {id(each) for each in operations if seconds[id(each)] >= max(WORTH_SECONDS, WORTH_SHARE * most)}
        known = {id(each) for each in operations if seconds[id(each)] >= WORTH_KNOWN and _of_operands(each)}
        flip = max(WORTH_FLIP, FLIP_SHARE * most) if most < FLIP_MOST else math.inf
        turned = {id(each) for each in operations if each.kind == "gemm" and seconds[id(each)] >= flip}
        self.whole = long | self._readers(long)
        self.short = (turned | self._readers(turned)) - self.whole - known
        return self.whole | known | self.short

    def _readers(self, made: set[int]) -> set[int]:
        """Ids of the products that read what the operations with the ids ``made`` write, and so say how it is to lie."""
        makers = self.producers
        return {
            id(operation)
            for operation in self.list.operations
            if operation.kind == "gemm" and any(id(makers.get(value.number)) in made for value in operation.inputs)
        }


def _of_operands(operation: Operation) -> bool:
    """Whether it reads operands of the plan alone."""
    return all([value.kind == "input" for value in operation.inputs])


def _give(value: Value, given: Given) -> None:
    value.axes, value.layout_kind, value.panel, value.nbytes = given.axes, given.kind, given.panel, given.nbytes
