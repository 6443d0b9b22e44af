"""The fused family on the Python side: any scalar expression over strided operands, with reductions, as data.

A `FusedProblem` is a `Structure` (what is done to the elements) and nested loops over its operands, in any order. `lower`
turns it into a row of the step table. The row function is generated for the structure alone: no shape, stride or
number of loops is compiled in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import lcm, prod

import numpy as np

from ..errors import EngineValueError
from .cpu import abi
from .cpu import fused_abi as ua
from .cpu import nest_abi as na
from .cpu.storage import STORAGES
from .cpu.units import LINE
from .fused_boxes import choose_apart, choose_map, movement, repeats
from .fused_over import LONG_ROW, TOGETHER, passes
from .fused_reduced import BOX, Reduction
from .fused_structure import LONG, Graph, Node, Output, Structure, cost_of, goes_apart, name, parse
from .nest_boxes import Group, take
from .nest_problem import fuse
from .nest_rows import PARALLEL_BYTES, STREAM_BYTES, STREAM_ROW, even, share
from .row import Operand, Row

__all__ = ["FusedProblem", "Graph", "Node", "Output", "Structure", "lower", "parse", "temp_bytes"]

Dim = tuple[int, ...]  # size, bytes from one entry to the next in each operand: outputs, then inputs
NEAR_BYTES = 1024  # of results of a task: of fewer, those at its ends are many
LIGHT_SECONDS = 1e-5  # of a reduction on one thread, from which on others share it whatever it reads
LIGHT_BYTES = 2 * PARALLEL_BYTES  # of arithmetic alone: 256 KB of it take 3 µs, which a second thread makes no shorter
PARTS = 8  # rows of a box, and boxes, from which on sums have a part for each box


@dataclass(frozen=True, kw_only=True)
class FusedProblem:
    """``dims``: ``(size, stride of each output, stride of each input)`` of each loop, in any order; strides in bytes, of
    any sign; 0 broadcasts an input. A loop of more than one entry in which the outputs with a reduction have stride 0
    is reduced. ``operands``: where outputs and inputs start. Outputs may be inputs with the same strides, where nothing
    is reduced; they overlap nothing else.

    ``late``: the only output may be written over what is read, where both are one entry of the second loop apart: each
    row, which is the first loop, is stored after the next one is computed. All operands run along a row or are one
    element there; no stride is negative. A third loop counts tasks. Inputs of a structure with `near` lie where that
    says, whatever their operands do. Of one over rows (`Structure.over_rows`), a row is the first loop, along which
    operands run or are one element; outputs that are one number for a row have stride 0 there. Of one with
    `points`, loops are pairs of rows and of elements; its outputs in the second row of stage 1 are those of the pair
    before.

    >>> g = Graph(("float32",))
    >>> s = g.structure((g.op("mul", 0, 0), "sum"))
    >>> FusedProblem(structure=s, dims=((5, 0, 4),), operands=(Operand(slot=0, offset=0), Operand(slot=1, offset=0))).reduced
    ((5, 0, 4),)
    """

    structure: Structure
    dims: tuple[Dim, ...]
    operands: tuple[Operand, ...]
    late: bool = False

    def __post_init__(self) -> None:
        s = self.structure
        if len(self.operands) != s.operands:
            raise EngineValueError(f"fused problem: {len(self.operands)} operands for a structure of {s.operands}")
        for number, dim in enumerate(self.dims):
            if len(dim) != 1 + s.operands:
                raise EngineValueError(
                    f"fused problem: loop {number} has {len(dim) - 1} strides for {s.operands} operands"
                )
            zero = [n for n, out in enumerate(s.outputs) if dim[0] > 1 and dim[1 + n] == 0]
            if s.over_rows and number == 0:
                continue
            if bad := [n for n in zero if not s.outputs[n].reduce]:
                raise EngineValueError(f"fused problem: output {bad[0]} has stride 0 in loop {number} of size {dim[0]}")
            if zero and len(zero) != sum(bool(out.reduce) for out in s.outputs):
                raise EngineValueError(f"fused problem: loop {number} is reduced in output {zero[0]}, not in all")

    def is_reduced(self, dim: Dim) -> bool:
        return dim[0] != 1 and any(out.reduce and dim[1 + n] == 0 for n, out in enumerate(self.structure.outputs))

    @property
    def reduced(self) -> tuple[Dim, ...]:
        return tuple(d for d in self.dims if self.is_reduced(d))

    @property
    def elements(self) -> int:
        """Points of the iteration space."""
        return prod(d[0] for d in self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of all operands, each element counted once."""
        items = [STORAGES[dtype].itemsize for dtype in self.structure.stored]
        return sum(item * prod(d[0] for d in self.dims if d[1 + n]) for n, item in enumerate(items))


def lower(problem: FusedProblem, threads: int = 1, temp: Operand | None = None, part: bool = False) -> tuple[Row, ...]:
    """Rows of the step table, cut into tasks for ``threads`` threads; none where the outputs have no elements.

    ``part``: the outputs are parts of what does not fit in cache, and are not read soon.

    A reduction of nothing writes its identity. Tasks share a reduction to a few results where `temp_bytes` of memory
    (8-byte aligned) are at ``temp``: they write partial results there, which one more row combines. What is stored
    besides is each task's own part of the loops, so that the next step's tasks find it where they were.
    """
    kept_size = prod(d[0] for d in problem.dims if not problem.is_reduced(d))
    if kept_size == 0:
        return ()
    if problem.elements == 0:
        return _identities(problem, threads)
    if temp is not None and threads > 1 and problem.reduced:
        partial = _Partial(problem)
        first = _Lowering(normalise(partial.first(temp)), threads, shared=True)
        tasks = first.sharers()
        if tasks > 1:
            return first.row(sharers=tasks, share=partial.stride), *lower(partial.second(temp, tasks))
    return (_Lowering(normalise(problem), threads, part).row(),)


def temp_bytes(problem: FusedProblem, threads: int = 1) -> int:
    """Bytes of temporary memory that `lower` can use."""
    if problem.elements == 0 or threads == 1 or not problem.reduced:
        return 0
    partial = _Partial(problem)
    tasks = _Lowering(normalise(partial.first(Operand(slot=0, offset=0))), threads, shared=True).sharers()
    return tasks * partial.stride if tasks > 1 else 0


def seconds(problem: FusedProblem, vector_bits: int = 512) -> float:
    """What a problem that reduces something is predicted to take on one thread (`Reduction.seconds`)."""
    if problem.elements == 0:
        return 0.0
    return _Lowering(normalise(problem), threads=1).seconds(vector_bits=vector_bits)


class _Partial:
    """A reduction in two steps: each task has results of its own, ``stride`` bytes apart, contiguous; ``results`` are
    the outputs that are results."""

    def __init__(self, problem: FusedProblem):
        self.p = problem
        s = problem.structure
        self.results = [n for n, out in enumerate(s.outputs) if out.reduce]
        self.items = {n: STORAGES[s.stored[n]].itemsize for n in self.results}
        count = prod(d[0] for d in problem.dims if not problem.is_reduced(d))
        self.places, self.stride = {}, 0
        for n, item in self.items.items():
            self.places[n] = self.stride
            self.stride += -(-item * count // LINE) * LINE

    def _kept(self) -> list[tuple[Dim, dict[int, int]]]:
        """Loops that are not reduced, and the strides of partial results in them, which lie as the first of the results
        does: what is one loop of that is one of these."""
        kept, count = [], 1
        loops = [dim for dim in self.p.dims if not self.p.is_reduced(dim)]
        for dim in sorted(loops, key=lambda dim: abs(dim[1 + self.results[0]])):
            kept.append((dim, {n: count * item for n, item in self.items.items()}))
            count *= dim[0]
        return kept

    def _temp(self, temp: Operand) -> dict[int, Operand]:
        return {n: Operand(slot=temp.slot, offset=temp.offset + place) for n, place in self.places.items()}

    def first(self, temp: Operand) -> FusedProblem:
        dims = [d for d in self.p.dims if self.p.is_reduced(d)]
        dims += [(d[0], *(partial.get(n, s) for n, s in enumerate(d[1:]))) for d, partial in self._kept()]
        own = self._temp(temp)
        operands = tuple(own.get(n, operand) for n, operand in enumerate(self.p.operands))
        return replace(self.p, dims=tuple(dims), operands=operands)

    def second(self, temp: Operand, tasks: int) -> FusedProblem:
        s = self.p.structure
        g = Graph(tuple(s.stored[n] for n in self.results))
        dims = [(tasks, *(0 for _ in self.items), *(self.stride for _ in self.items))]
        dims += [(d[0], *(d[1 + n] for n in self.results), *partial.values()) for d, partial in self._kept()]
        structure = g.structure(*((at, s.outputs[n].reduce) for at, n in enumerate(self.results)))
        operands = (*(self.p.operands[n] for n in self.results), *self._temp(temp).values())
        return FusedProblem(structure=structure, dims=tuple(dims), operands=operands)


def normalise(problem: FusedProblem) -> FusedProblem:
    """The same in as few loops as possible, the first output's fastest first; none of them runs backwards in the first
    operand that moves in it."""
    shifts, dims = [0] * problem.structure.operands, []
    for number, (size, *strides) in enumerate(problem.dims):
        if size == 1 and not (number == 0 and problem.structure.over_rows):
            continue
        if next((s for s in strides if s), 0) < 0:
            shifts = [shift + s * (size - 1) for shift, s in zip(shifts, strides, strict=True)]
            strides = [-s for s in strides]
        dims.append((size, *strides))
    if problem.late:
        return problem
    row, dims = (dims[:1], dims[1:]) if problem.structure.over_rows else ([], dims)
    dims.sort(key=lambda d: tuple(map(abs, d[1:])))
    moved = (Operand(slot=o.slot, offset=o.offset + s) for o, s in zip(problem.operands, shifts, strict=True))
    return replace(problem, dims=(*row, *fuse(dims)), operands=tuple(moved))


def _identities(problem: FusedProblem, threads: int) -> tuple[Row, ...]:
    """Rows that fill the results of a reduction of nothing; EngineValueError where it has no identity."""
    rows: list[Row] = []
    for number, out in enumerate(problem.structure.outputs):
        if not out.reduce:
            continue
        if out.reduce in ("max", "min"):
            raise EngineValueError(f"fused problem: output {number}: {out.reduce} of no elements")
        g = Graph(())
        structure = g.structure(g.const(out.reduce in ("prod", "all"), problem.structure.dtype(out.value)))
        dims = tuple((d[0], d[1 + number]) for d in problem.dims if not problem.is_reduced(d))
        fill = FusedProblem(structure=structure, dims=dims, operands=(problem.operands[number],))
        rows += lower(fill, threads)
    return tuple(rows)


class _Lowering:
    """Makes the row of a normalised problem."""

    def __init__(self, problem: FusedProblem, threads: int, part: bool = False, shared: bool = False):
        self.part, self.shared = part, shared
        self.p, self.s = problem, problem.structure
        self.items = [STORAGES[dtype].itemsize for dtype in self.s.stored]
        self.count, self.outputs = len(self.items), len(self.s.outputs)
        self.tasks, self.threads = share(problem.bytes, threads), threads
        self.one = (1, *(0 for _ in self.items))
        dims = list(problem.dims) or [(1, *self.items)]
        budget = max(256, problem.elements // self.tasks)
        reduced = [d for d in dims if problem.is_reduced(d)]
        apart = None
        if goes_apart(self.s) and not problem.late:
            apart = choose_apart(dims, self.items, self.outputs, budget)
        self.apart = 2 if apart else 1  # how many elements neighbours along O are apart
        self.mode, self.inner = ua.MAP, []
        if self.s.points:
            self.apart = 2  # and rows, too
        if self.s.over_rows:
            self.o, _ = take(dims[:1], dims[0][0])
            self.j, self.outer = take(dims[1:], max(1, min(512, min(budget, 4 * BOX) // dims[0][0])))
        elif reduced:
            how = Reduction(structure=self.s, items=self.items, tasks=self.tasks, threads=threads, shared=shared)
            cut = how.cut(dims, reduced, budget)
            self.seconds = partial(how.seconds, cut)
            self.mode, self.o, self.j, self.inner, self.outer = cut.mode, cut.o, cut.j, cut.inner, cut.outer
        elif problem.late:
            self.o, _ = take(dims[:1], dims[0][0])
            self.j, self.outer = take([], 1)[0], dims[1:]
            if self.s.near:
                self.j, self.outer = take(dims[1:2], dims[1][0])[0], dims[2:]
            self.tasks = dims[2][0] if len(dims) > 2 else 1
        elif apart:
            self.o, self.j, self.outer = apart
        else:
            price = len(self.s.nodes)
            held = frozenset(self.outputs + n for n in self.s.divisors)
            self.o, self.j, outer = choose_map(tuple(dims), tuple(self.items), self.outputs, price, budget, held)
            self.outer = list(outer)
        self.scratch, self.moves = 0, {}
        self._parts: list[np.ndarray] = []
        self._places: dict[bytes, int] = {}

    # -- the table -------------------------------------------------------------------------------------------
    @property
    def reduces(self) -> bool:
        """Boxes are combined, or in a map what each turn of the reduced loops has."""
        return self.mode != ua.MAP or bool(self.inner)

    def sharers(self) -> int:
        """Tasks that may share the reduction of a single box of results; 1: none."""
        boxes = prod(d[0] for d in self._kept_rows())
        stores = not all(out.reduce for out in self.s.outputs)
        if not self.reduces or boxes > 1 or stores and (self.p.late or self.s.over_rows or self.s.near or self.s.points):
            return 1
        return min(self.tasks, prod(d[0] for d in self._reduced_rows()))

    def _kept_rows(self) -> list[Dim]:
        chunks_o, chunks_j = (self._chunks(group) for group in (self.o, self.j))
        rows, columns = self.mode == ua.ROWS, self.mode == ua.COLUMNS
        return [self.one if rows else chunks_o, self.one if columns else chunks_j, *self.outer]

    def _reduced_rows(self) -> list[Dim]:
        chunks_o, chunks_j = (self._chunks(group) for group in (self.o, self.j))
        rows, columns = self.mode == ua.ROWS, self.mode == ua.COLUMNS
        return [chunks_o if rows else self.one, chunks_j if columns else self.one, *self.inner]

    def row(self, sharers: int = 1, share: int = 0) -> Row:
        """``sharers``: tasks that share the reduced boxes, with results ``share`` bytes apart."""
        head = self.count * ua.O_WORDS
        kept, reduced = self._kept_rows(), self._reduced_rows()
        odometers = [np.array(rows, np.int64).ravel() for rows in (kept, reduced)]
        self._start = head + sum(part.size for part in odometers)
        operands = np.zeros((self.count, ua.O_WORDS), np.int64)
        for number in range(self.count):
            self._operand(number, operands[number])
        boxes = prod(d[0] for d in kept)
        late = self._late() if self.p.late else self._over() if self.s.over_rows else {}
        words = late | {
            ua.U_OPERANDS: self.count,
            ua.U_OUTPUTS: self.outputs,
            ua.U_KEPT: 8 * head,
            ua.U_KEPT_RANK: len(kept),
            ua.U_KEPT_BOXES: boxes,
            ua.U_REDUCED: 8 * (head + odometers[0].size),
            ua.U_REDUCED_RANK: len(reduced),
            ua.U_REDUCED_BOXES: prod(d[0] for d in reduced),
            ua.U_O: self.o.count,
            ua.U_O_TOTAL: self.o.total,
            ua.U_J: self.j.count,
            ua.U_J_TOTAL: self.j.total,
            ua.U_MODE: self.mode,
            ua.U_STREAM: int(self._streams()),
            ua.U_APART: int(self.apart > 1 and not self.s.points),
            ua.U_ALIGN: int(self._aligns()),
            ua.U_PERIOD: self._period(),
            ua.U_PARTS: int(self._has_parts()),
            ua.U_SHARE: share,
            ua.U_SHARED: sum(1 << n for n, out in enumerate(self.s.outputs) if out.reduce) if share else 0,
        }
        tasks = sharers if share else max(1, even(self.tasks, boxes))
        long = any(cost_of(node.op) >= LONG for node in self.s.nodes)
        worth = self.p.bytes >= (PARALLEL_BYTES if long else LIGHT_BYTES) or (self.reduces and self.seconds() >= LIGHT_SECONDS)
        words[abi.PARALLEL] = abi.IN_BANDS * (tasks > 1 and worth)
        if not words[abi.PARALLEL] and not share:
            tasks = 1  # beginning one takes as long as two thousand elements
        table = np.concatenate([operands.ravel(), *odometers, *self._parts])
        kernels = {abi.FN: "fused_run", ua.U_ROW: name(self.s), **self.moves}
        scratch = self.scratch + (LINE if self.scratch else 0)
        return Row(words=words, tables={ua.U_TABLE: table}, kernels=kernels, scratch=scratch, tasks=tasks)

    def _late(self) -> dict[int, int]:
        """Words of two rows of the output in scratch, or of one that is read."""
        nbytes = self.o.count * self.items[0]
        if self.s.near:
            # with points, every second element is counted, three vectors are kept for each two, and there is another row
            place, self.scratch = self.scratch, self.scratch + nbytes * (5 if self.s.points else 1) + ua.NEAR_SCRATCH
            return {ua.U_NEAR: self.p.dims[1][1] // self.apart, ua.U_NEAR_STAGE: place}
        stride = -(-nbytes // LINE) * LINE + ua.PAGE
        place, self.scratch = self.scratch, self.scratch + 2 * stride
        return {ua.U_LATE: nbytes, ua.U_LATE_STAGE: place, ua.U_LATE_STRIDE: stride}

    def _over(self) -> dict[int, int]:
        """Words of the values of a row that its passes keep in scratch, a line behind what is staged, which may begin and end
        that much later (`_aligns`)."""
        place, nbytes = self.scratch + (LINE if self.scratch else 0), self.o.count * self.items[0]
        rows = TOGETHER if nbytes <= LONG_ROW else 1
        self.scratch = place + len(passes(self.s).kept) * rows * -(-nbytes // LINE) * LINE
        return {ua.U_NEAR_STAGE: place}

    def _chunks(self, group: Group) -> Dim:
        return (*group.chunks, *self.one)[: 1 + self.count]

    def _streams(self) -> bool:
        """Outputs that do not fit in cache, in long rows."""
        large = self.part or self.items[0] * self.p.elements >= STREAM_BYTES
        nbytes = self.o.count * self.items[0]
        large = large and (nbytes >= STREAM_ROW or self.s.over_rows and nbytes % LINE == 0)
        return self.mode == ua.MAP and large and self.apart == 1 and not (self.p.late or self._in_place())

    def _aligns(self) -> bool:
        """Rows of the first output are so long that they are written by lines, and something is staged beside it."""
        runs = self.mode == ua.MAP and self.apart == 1 and not self.p.late and self.o.contiguous(0, self.items[0])
        return bool(runs and self.scratch and self.o.count * self.items[0] >= ua.LONG_ROW)

    def _period(self) -> int:
        """Elements of O after which all divisors of quotients repeat themselves; 0: they do not."""
        counts = [repeats(self.o, self.outputs + n, self.items[self.outputs + n]) for n in self.s.divisors]
        return lcm(*counts)

    def _in_place(self) -> bool:
        """An output lies where an input does: its lines are in cache when they are written."""
        starts = {(o.slot, o.offset) for o in self.p.operands[: self.outputs]}
        return any((o.slot, o.offset) in starts for o in self.p.operands[self.outputs :])

    def _vector(self, values: np.ndarray) -> int:
        """Place of an offset vector, in bytes from the start of the table."""
        key = values.tobytes()
        if key not in self._places:
            self._places[key] = 8 * (self._start + sum(part.size for part in self._parts))
            self._parts.append(values)
        return self._places[key]

    def _operand(self, number: int, words: np.ndarray) -> None:
        place, item, o, j = self.p.operands[number], self.items[number], self.o, self.j
        words[ua.O_SLOT], words[ua.O_OFFSET] = place.slot, place.offset
        output = number < self.outputs
        result = output and self.mode != ua.MAP and bool(self.s.outputs[number].reduce)
        words[ua.O_ROWS] = int(not result if output else j.varies(number))
        beside = output and self.reduces and bool(self.s.outputs[number].reduce) and self._beside_others(item)
        runs = o.contiguous(number, item * self.apart) and not beside
        if runs or (result and self.mode == ua.ROWS) or (o.constant(number) and (not output or self.s.over_rows)):
            words[ua.O_MODE] = na.CONTIGUOUS if runs or output else na.BROADCAST
            words[ua.O_ALONG_J] = self._vector(j.offsets(number))
        else:
            self._stage(number, item, output, words)
        if result and self._has_parts():
            words[ua.O_PART] = self.scratch
            self.scratch += (-(-o.count * item // LINE) | 1) * LINE

    def _has_parts(self) -> bool:
        """Whether the sums of a box are added to the others at once, so that each has few roundings. Not beside a product:
        where one box has a zero, that of another may overflow."""
        results = [(STORAGES[name], out.reduce) for name, out in zip(self.s.stored, self.s.outputs) if out.reduce]
        some = any(reduce == "sum" and dtype.floating for dtype, reduce in results)
        many = min(self.j.count, prod(d[0] for d in self._reduced_rows())) >= PARTS
        return self.mode == ua.COLUMNS and many and some and all(reduce != "prod" for _, reduce in results)

    def _beside_others(self, item: int) -> bool:
        """Whether columns that one task adds to, row after row, are in lines with those of another for the most part."""
        if self.mode == ua.ROWS or self.tasks == 1:
            return False
        rows = self.j.count if self.mode == ua.MAP else 1
        return rows * self.o.count * item * prod(d[0] for d in self._kept_rows()) < NEAR_BYTES * self.tasks

    def _stage(self, number: int, item: int, output: bool, words: np.ndarray) -> None:
        """Through scratch, where it runs along O."""
        o, j = self.o, self.j
        rows = j.count if words[ua.O_ROWS] else 1
        offsets, (mode, wide, run) = o.offsets(number), movement(o, j, number, item, output)
        move = ua.U_MOVES + (item << wide).bit_length() - 1
        self.moves[move] = f"nest_move_{item << wide}"
        words[ua.O_MODE], words[ua.O_RUN], words[ua.O_WIDE] = na.STAGED + mode, run, wide
        words[ua.O_MOVE] = move
        words[ua.O_ALONG_O] = self._vector(offsets[:: 1 << wide])
        words[ua.O_FAR_J] = self._vector(j.offsets(number))
        pitch = (-(-o.count * item // LINE) | 1) * LINE  # an odd number of lines: rows fall into different cache sets
        words[ua.O_ALONG_J] = self._vector(np.arange(j.count, dtype=np.int64) * (pitch if rows > 1 else 0))
        words[ua.O_STAGE] = self.scratch
        self.scratch += pitch * (rows | 1)
