"""A plan run row by row, its memory watched: what the storage table says of it is what its steps do."""

import ctypes
from dataclasses import replace

import numpy as np

from einsum_engine import fastcall
from einsum_engine.dtypes import as_numpy
from einsum_engine.executor import address, lower
from einsum_engine.kernels import isa as isa_table
from einsum_engine.kernels.cpu import abi
from einsum_engine.traced import inputs_of, strides_of
from einsum_engine.trees import flatten

GARBAGE = 0xA5
SILENT = ("control", "pack", "guard")  # families of steps that write no value


def check_storage(jitted, *arrays, table=None):
    """Runs the plan of a call on ``arrays``, which it may write, and holds all that its storage table (or ``table``)
    says against what is in memory after each step; the table, None where there is no plan."""
    traced, given = jitted._traced(*flatten((arrays, {})))
    given = inputs_of(traced, given)
    route = traced.route(strides_of(given), "watched")
    if not hasattr(route, "plan"):
        assert jitted.storage(*arrays) is None
        return None
    _Watched(route, given, table or route.plan.storage).run()
    return route.plan.storage


class _Watched:
    def __init__(self, route, given, table):
        self.plan, self.native, self.table = route.plan, route.native, table
        results = [np.empty(shape, dtype) for shape, dtype in route._results]
        for array in results:
            array.reshape(-1).view(np.uint8)[...] = GARBAGE
        first, *more = results or [np.zeros(1, np.uint8)]
        self.arrays = [*given, *route.consts, *more, first]
        self.frame = self.native._frame()
        self.frame.take_memory()
        self.frame._memory.view(np.uint8)[...] = GARBAGE
        self.frame.bases[: len(self.arrays)] = [address(array) for array in self.arrays]
        self.frame.context[abi.CTX_POOL] = self.native._pool_address()
        self.memory = [self.bytes_of(each) for each in table.memory]
        variables = [var for eqn in table.program.eqns for var in eqn.outputs]
        program = replace(table.program, outputs=(*variables, *table.program.outputs))
        with np.errstate(all="ignore"):
            values = program.eval(*(array.copy() for array in given))
        self.values = dict(zip((var.number for var in variables), values))
        self.wanted = values[len(variables) :]
        self.isa = isa_table.get(self.plan.isa)
        self.checked, self.rows = set(), {}

    # -- memory
    def bytes_of(self, memory):
        """The bytes of a memory as an array, and where its first element is among them."""
        start, count, origin = int(self.frame.bases[memory.slot]) + memory.offset, memory.nbytes, 0
        if memory.kind in ("input", "const"):
            low, high = np.lib.array_utils.byte_bounds(self.arrays[memory.slot])
            origin, start, count = start - low, low, high - low
        if not count:
            return np.zeros(0, np.uint8), 0
        return np.frombuffer((ctypes.c_uint8 * count).from_address(start), np.uint8), origin

    def at(self, place):
        """What is at a place."""
        data, origin = self.memory[place.memory]
        dtype = as_numpy(self.table.memory[place.memory].dtype)
        if not place.view.size:
            return np.empty(place.view.shape, dtype)
        return np.ndarray(place.view.shape, dtype, data, origin + place.view.offset, place.view.strides)

    def watched(self, number):
        memory = self.table.memory[number]
        return not memory.blocks and memory.slot >= 0

    def claims(self):
        """Step -> memory -> its bytes that are said to be written; and all steps that are said to do something."""
        found, named = {}, set()
        for table in self.table.tables():
            for row in table.rows:
                named.update(row.steps)
                place = None if row.tables else row.target if row.kind in ("write", "begin") else row.place
                self.claim(found, place, row.steps)
            for move in table.moved:
                named.update(move.steps)
                self.claim(found, move.place, move.steps)
        return found, named

    def claim(self, found, place, steps):
        if place is None or not place.view.size or not self.watched(place.memory):
            return
        data, origin = self.memory[place.memory]
        for step in steps:
            mask = found.setdefault(step, {}).setdefault(place.memory, np.zeros(data.size, np.uint8))
            shape, strides = (*place.view.shape, place.item), (*place.view.strides, 1)
            np.ndarray(shape, np.uint8, mask, origin + place.view.offset, strides)[...] = 1

    # -- running
    def run(self):
        self.relations(self.table)
        claimed, named = self.claims()
        steps = self.plan.steps
        silent = {step.number for step in steps if step.family in SILENT}
        assert {step.number for step in steps} - silent <= named, "a step does what the table does not say"
        at = 0
        while at < len(steps):
            if steps[at].depth == 0:
                self.look(at)
            if steps[at].family == "control":
                at = self.jump(at)
                continue
            before = [data.copy() for data, _ in self.memory]
            if at not in self.rows:
                self.rows[at] = lower([steps[at]], self.isa)
            assert self.native._walk(self.frame.context_address, fastcall.place(self.rows[at][0]), 0) == -1
            for number, (memory, old) in enumerate(zip(self.table.memory, before)):
                if self.watched(number) and (memory.kind != "arena" or memory.first <= at <= memory.last):
                    changed = self.memory[number][0] != old
                    mask = claimed.get(at, {}).get(number, 0)
                    assert not (changed & (mask == 0)).any(), f"step {at} writes what the table does not say: @{number}"
            at += 1
        self.look(len(steps))
        for number, (place, wanted) in enumerate(zip(self.table.results, self.wanted, strict=True)):
            self.compare(f"result {number}", self.at(place), wanted)

    def jump(self, at):
        words = self.plan.steps[at].args.words
        if words[abi.KIND] == abi.JUMP:
            return words[abi.NEXT]
        if words[abi.KIND] == abi.BLOCKS:
            return at + 1  # what threads share is in order, too
        flag = ctypes.c_uint8.from_address(int(self.frame.bases[words[abi.A_SLOT]]) + words[abi.A_OFFSET])
        return at + 1 if flag.value else words[abi.NEXT]

    def look(self, at):
        """Values that are there since the last step are right; of a version of a root, the part that was written."""
        views = {eqn.outputs[0].number: eqn.named["view"] for eqn in self.table.program.eqns if eqn.op == "assign"}
        for row in self.table.rows:
            number = row.var.number
            if not row.steps or max(row.steps) >= at or number in self.checked or number < 0:
                continue
            self.checked.add(number)
            if any(self.plan.steps[step].block[1] > 1 for step in row.steps):
                continue  # the steps behind write over its first rows before the last are there
            wanted, place = np.asarray(self.values[number]), row.target or row.place
            if place is None or not self.watched(place.memory):
                continue
            memory = self.table.memory[place.memory]
            if memory.kind == "arena" and memory.last < max(row.steps):
                continue  # nobody reads the result of a branch or loop, and its memory is used again inside
            if row.target is not None and number in views:
                wanted = views[number].of(np.ascontiguousarray(wanted))
            self.compare(f"{row}, after step {at - 1}", self.at(place), wanted)

    def compare(self, what, found, wanted):
        wanted = np.asarray(wanted)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype, what
        eps = 1e4 * np.finfo(wanted.dtype).eps if wanted.dtype.kind in "fc" else 0
        same = np.allclose(found, wanted, rtol=eps, atol=eps, equal_nan=True) if eps else np.array_equal(found, wanted)
        assert same, f"{what}: {found} is there, not {wanted}"

    # -- what kinds say
    def relations(self, table):
        """In place is where the root is, a copy is not; a view is a part."""
        places = table.places()
        for row, eqn in zip(table.rows, [eqn for eqn in table.program.eqns for _ in eqn.outputs]):
            root = places.get(getattr(eqn.inputs[0], "number", None)) if eqn.inputs else None
            part = row.place and (row.place.part(eqn.named["view"]) if eqn.op == "assign" else row.place)
            if row.kind in ("write", "done") and row.place and root and row.op != "cond":
                assert same(row.place, root), f"{row}: not in place"
            if row.kind in ("write", "done", "begin", "fresh") and row.place:
                assert part is None or same(row.target, part), f"{row}: another part"
            if row.kind == "done" and row.place and eqn.named["view"].size:
                assert same(places[eqn.inputs[1].number], row.target), f"{row}: not computed there"
            if row.kind == "fresh" and row.place and root:
                assert row.place.memory != root.memory, f"{row}: no copy"
            if row.kind == "view" and row.place and root and table.moved == ():
                assert same(row.place, root.part(eqn.named["view"])), f"{row}: another view"
            for _, inner in row.tables:
                self.relations(inner)


def same(one, two):
    """Whether two places are the same bytes under the same indices."""
    return one.memory == two.memory and one.view.canonical() == two.view.canonical()
