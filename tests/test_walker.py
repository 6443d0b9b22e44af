"""The walker: one native call that runs a step table. Its task functions here are Python callbacks."""

import ctypes
import time

import numpy as np
import pytest

from einsum_engine.kernels import isa
from einsum_engine.kernels.cpu import abi, library
from einsum_engine.kernels.cpu.walker import TURNS

_Walk = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)
_Task = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


@pytest.fixture(params=isa.host_isas(), ids=lambda row: row.name)
def walk(request):
    return _Walk(library.address("walk", request.param))


class Table:
    """A step table under construction; ``log`` collects (row, task) in the order of their execution."""

    def __init__(self):
        self.rows: list[np.ndarray] = []
        self.log: list[tuple[int, int]] = []
        self.keep: list[object] = []
        self.context = np.zeros(abi.CTX_WORDS, np.int64)
        self.context[abi.CTX_CLOCK] = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value

    def add(self, kind: int, **words: int) -> int:
        row = np.zeros(abi.STEP_WORDS, np.int64)
        row[abi.KIND] = kind
        for name, value in words.items():
            row[getattr(abi, name)] = value
        self.rows.append(row)
        return len(self.rows) - 1

    def run(self, action=None, **words: int) -> int:
        number = len(self.rows)

        def task(context, step, share, worker):
            self.log.append((number, share))
            if action is not None:
                action(share)

        callback = _Task(task)
        self.keep.append(callback)
        return self.add(abi.RUN, FN=ctypes.cast(callback, ctypes.c_void_p).value, **({"NTASKS": 1} | words))

    def cell(self, value: int) -> np.ndarray:
        """An int64 that rows read at run time."""
        cell = np.array([value], np.int64)
        self.keep.append(cell)
        return cell

    def walk(self, walk, first: int = 0) -> int:
        self.table = np.ascontiguousarray(self.rows)
        return self.again(walk, first)

    def again(self, walk, first: int) -> int:
        return walk(self.context.ctypes.data, self.table.ctypes.data, first)

    def order(self) -> list[int]:
        return [row for row, _ in self.log]


def _address(cell: np.ndarray) -> int:
    return cell.ctypes.data


def test_rows_run_in_order_and_each_share_once(walk):
    table = Table()
    for tasks in (1, 3, 0, 2):
        table.run(NTASKS=tasks)
    table.add(abi.STOP)
    table.run()
    assert table.walk(walk) == -1
    assert table.log == [(0, 0), (1, 0), (1, 1), (1, 2), (3, 0), (3, 1)]


def test_an_empty_table(walk):
    table = Table()
    table.add(abi.STOP)
    assert table.walk(walk) == -1


def test_the_first_row_is_a_choice(walk):
    table = Table()
    for _ in range(3):
        table.run()
    table.add(abi.STOP)
    assert table.walk(walk, 2) == -1
    assert table.order() == [2]


def test_the_task_gets_context_row_share_and_worker(walk):
    seen = []
    task = _Task(lambda *args: seen.append(args))
    table = Table()
    table.add(abi.RUN, FN=ctypes.cast(task, ctypes.c_void_p).value, NTASKS=2)
    table.add(abi.STOP)
    table.walk(walk)
    assert seen == [(table.context.ctypes.data, table.table.ctypes.data, share, 0) for share in (0, 1)]


def test_the_extent_is_read_when_the_row_is_reached(walk):
    table = Table()
    extent = table.cell(7)

    def shrink(share):
        extent[0] = 2

    table.run(shrink)
    table.run(NTASKS=5, EXTENT=_address(extent))
    table.add(abi.STOP)
    table.walk(walk)
    assert table.log == [(0, 0), (1, 0), (1, 1)]
    extent[0] = 0
    table.log.clear()
    table.again(walk, 1)
    assert table.log == []


@pytest.mark.parametrize("value, order", [(0, [0, 3]), (1, [0, 2, 3]), (-1, [0, 2, 3])])
def test_branch_goes_on_at_next_where_its_cell_is_zero(walk, value, order):
    table = Table()
    table.run()
    table.add(abi.BRANCH, EXTENT=_address(table.cell(value)), NEXT=3)
    table.run()
    table.run()
    table.add(abi.STOP)
    assert table.walk(walk) == -1
    assert table.order() == order


def test_a_branch_may_depend_on_what_ran_before(walk):
    table = Table()
    cell = table.cell(1)
    table.run(lambda share: cell.fill(0))
    table.add(abi.BRANCH, EXTENT=_address(cell), NEXT=3)
    table.run()
    table.add(abi.STOP)
    table.walk(walk)
    assert table.order() == [0]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_loop_repeats_while_its_cell_counts_down_to_zero(walk, count):
    table = Table()
    cell = table.cell(count)
    table.run()
    table.run(NTASKS=2)
    table.add(abi.LOOP, EXTENT=_address(cell), NEXT=0)
    table.run()
    table.add(abi.STOP)
    assert table.walk(walk) == -1
    assert table.log == [(0, 0), (1, 0), (1, 1)] * count + [(3, 0)]
    assert cell[0] == 0


def test_nested_loops(walk):
    table = Table()
    outer, inner = table.cell(3), table.cell(0)
    table.run(lambda share: inner.fill(2))
    table.run()
    table.add(abi.LOOP, EXTENT=_address(inner), NEXT=1)
    table.add(abi.LOOP, EXTENT=_address(outer), NEXT=0)
    table.add(abi.STOP)
    table.walk(walk)
    assert table.order() == [0, 1, 1] * 3


@pytest.mark.parametrize("value, order", [(0, [0, 3]), (1, [0, 2, 3]), (255, [0, 2, 3])])
def test_branch_without_a_cell_looks_at_a_byte_of_its_operand(walk, value, order):
    table = Table()
    memory = np.full(9, 1 - min(value, 1), np.uint8)
    memory[5] = value
    bases = table.cell(0)
    bases[0] = memory.ctypes.data
    table.context[abi.CTX_BASES] = bases.ctypes.data
    table.run()
    table.add(abi.BRANCH, A_SLOT=0, A_OFFSET=5, NEXT=3)
    table.run()
    table.run()
    table.add(abi.STOP)
    assert table.walk(walk) == -1
    assert table.order() == order


def test_jumps_forward_and_back(walk):
    table = Table()
    left = table.cell(3)
    table.add(abi.JUMP, NEXT=2)
    table.run()
    table.add(abi.BRANCH, EXTENT=_address(left), NEXT=5)
    table.run(lambda share: np.subtract(left, 1, out=left))
    table.add(abi.JUMP, NEXT=2)
    table.run()
    table.add(abi.STOP)
    assert table.walk(walk) == -1
    assert table.order() == [3, 3, 3, 5]


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_blocks_run_the_rows_behind_them(row):
    walk, blocks = _Walk(library.address("walk", row)), library.address("blocks", row)
    table = Table()
    starts = np.array([1, 3, 5, 7], np.int64)  # from the row itself
    table.add(abi.BLOCKS, FN=blocks, NTASKS=3, BLOCK_STARTS=_address(starts), NEXT=7)
    for tasks in (1, 2, 1, 2, 0, 2):
        table.run(NTASKS=tasks)
    table.run()
    table.add(abi.STOP)
    assert table.walk(walk) == -1
    assert table.log == [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (4, 1), (6, 0), (6, 1), (7, 0)]
    table.log.clear()
    table.context[abi.CTX_PROFILE] = 1  # they are measured one by one
    assert table.again(walk, 0) == -1
    assert len(table.log) == 9 and all(table.table[number, abi.TICKS] > 0 for number in (1, 2, 3, 4, 6, 7))


@pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
def test_blocks_have_as_many_rows_as_they_like(row):
    walk, blocks = _Walk(library.address("walk", row)), library.address("blocks", row)
    table, starts = Table(), np.array([1, 4, 4, 5], np.int64)
    table.run()
    table.add(abi.BLOCKS, FN=blocks, NTASKS=3, BLOCK_STARTS=_address(starts), NEXT=6)
    for _ in range(4):
        table.run()
    table.run()
    table.add(abi.STOP)
    assert table.walk(walk) == -1
    assert table.order() == [0, 2, 3, 4, 5, 6]


def test_a_loop_returns_at_a_jump_when_its_slice_has_passed_and_goes_on(walk):
    table = Table()
    left = table.cell(100)
    table.run(lambda share: np.subtract(left, 1, out=left))
    table.add(abi.BRANCH, EXTENT=_address(left), NEXT=3)
    table.add(abi.JUMP, NEXT=0)
    table.add(abi.STOP)
    table.context[abi.CTX_SLICE] = 1  # ns: any look at the clock is too late
    rows, row = [], table.walk(walk)
    while row >= 0:
        rows.append((row, len(table.log)))
        row = table.again(walk, row)
    assert len(table.log) == 100 and rows == [(0, turns) for turns in range(TURNS, 100, TURNS)]
    left[0], table.context[abi.CTX_SLICE] = 100, 60_000_000_000
    assert table.again(walk, 0) == -1 and len(table.log) == 200


def test_a_passed_deadline_returns_between_rows_and_the_walk_resumes(walk):
    table = Table()
    for _ in range(3):
        table.run(NTASKS=2)
    table.add(abi.STOP)
    table.context[abi.CTX_DEADLINE] = 1  # long ago
    row, stops = table.walk(walk), []
    while row >= 0:
        stops.append((row, len(table.log)))
        row = table.again(walk, row)
    assert stops == [(1, 2), (2, 4), (3, 6)]
    assert table.log == [(row, share) for row in range(3) for share in range(2)]


def test_a_deadline_keeps_the_place_in_loops_and_branches(walk):
    table = Table()
    table.run()
    table.add(abi.LOOP, EXTENT=_address(table.cell(3)), NEXT=0)
    table.add(abi.BRANCH, EXTENT=_address(table.cell(0)), NEXT=4)
    table.run()
    table.add(abi.STOP)
    table.context[abi.CTX_DEADLINE] = 1
    row = table.walk(walk)
    while row >= 0:
        row = table.again(walk, row)
    assert table.order() == [0, 0, 0]


def test_a_deadline_stops_only_after_it_has_passed(walk):
    table = Table()
    table.run()
    table.run(lambda share: time.sleep(0.6))
    table.run()
    table.add(abi.STOP)
    table.context[abi.CTX_DEADLINE] = time.monotonic_ns() + 500_000_000
    assert table.walk(walk) == 2
    assert table.order() == [0, 1]
    table.context[abi.CTX_DEADLINE] = time.monotonic_ns() + 60_000_000_000
    assert table.again(walk, 2) == -1


def test_profiling_adds_up_the_time_of_each_row(walk):
    table = Table()
    table.run(lambda share: time.sleep(0.004), NTASKS=2)
    table.run()
    table.add(abi.STOP)
    table.walk(walk)
    assert not table.table[:, abi.TICKS].any()
    table.context[abi.CTX_PROFILE] = 1
    for calls in (1, 2):
        table.again(walk, 0)
        slow, quick, _ = table.table[:, abi.TICKS]
        assert calls * 8_000_000 <= slow < calls * 60_000_000_000 and quick > 0
