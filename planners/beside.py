"""Batches that run along a large operand: products that read it where it lies, and results that lie as it does.

Where a batch index is fastest in a large operand, packing it would go through memory element by element, and a matrix
product takes each of many products of a few elements by itself. The batched
family reads it in place where the other operand and the result have that index fastest, too: a small operand is
copied so that it has (`beside`), and a free result may inherit that order (`inherited`), down a chain of
products each of which has the result of the one before as its large operand. A long batch index that many products of a
network share may be fastest in every value between them.

A vector whose terms lie in another order than those of the rows that it is multiplied with is copied in theirs (`in_order`), and
a small operand in the order in which the result has its columns (`columns_beside`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import prod
from typing import Mapping

from ..kernels.cpu.units import LINE
from ..kernels.nest import NestProblem
from ..kernels.tiles import ITEMSIZE
from ..plan import Axis, Index
from . import shared_lines
from .contraction import BinaryContraction
from .layout import dense_axes
from .operations import Operation, OperationList, Value, itemsize
from .shared_lines import LEAST_BYTES, SMALL_SHARE, worth_copying
from .splitting import FEW_ROWS

LEAST_OF_COLUMNS = 1 << 16  # bytes of the large operand: with less, threads wait for the copy
LARGE_BYTES = 1 << 18  # of an operand whose order results inherit, at least
REPEATED = "\x00repeated"  # entries of an index of the large operand for which the copy has the same elements
BATCH_PRODUCTS, BATCH_LENGTH = 2, 128  # of an index that may be fastest in all values that have it, at least


@dataclass(frozen=True, kw_only=True, eq=False)
class Copied:
    """A contraction whose left operand is a copy of another one, which runs along the right one, or along the result."""

    contraction: BinaryContraction
    copy: NestProblem
    nbytes: int


def beside(c: BinaryContraction, lanes: int = 1) -> Copied | None:
    """``c`` with a copy of its left operand; None where that is not small, as a whole or for each product, or cannot help.

    The right operand and the result have a batch index fastest that the left operand has elsewhere. Where the batch
    indices that are adjacent in memory fill no vector of ``lanes`` elements, the copy may repeat them (`_repeated`).
    """
    item, left = ITEMSIZE[c.dtype], (*c.batch, *c.m, *c.k)
    if not any(c.right[i].stride == item == c.out[i].stride != c.left[i].stride for i in c.batch):
        return None
    small, large, each = _sizes(c)
    if large < LEAST_BYTES or not (worth_copying(small, large, each) or not (c.m or c.n)):
        return None
    order = sorted((i for i in left if i in c.right), key=lambda i: abs(c.right[i].stride))
    run, adjacent = _adjacent(c, order, item)
    split, times = _repeated(c, run, lanes, item)
    if times > 1:
        c = _split(c, split, times)
        order.insert(adjacent, REPEATED)
        adjacent += 1
    axes = dense_axes(_together(c, order, adjacent), c.sizes, item)
    return _copied(c, axes, small * times)


def in_order(c: BinaryContraction) -> Copied | None:
    """``c`` with its left operand, which has no rows of its own, copied in the order of the right one, of which terms run
    adjacent to each other; None where the right one has too few rows for that. A GEMM would pack the right one instead.
    """
    item, left = ITEMSIZE[c.dtype], (*c.batch, *c.k)
    if prod([c.sizes[i] for i in c.n]) < FEW_ROWS:
        return None
    small = item * prod([c.sizes[i] for i in left])
    if small * prod([c.sizes[i] for i in c.n]) < LEAST_BYTES:
        return None
    axes = dense_axes(sorted(left, key=lambda i: abs(c.right[i].stride)), c.sizes, item)
    return _copied(c, axes, -(-small // LINE) * LINE)


def columns_beside(c: BinaryContraction, lanes: int) -> Copied | None:
    """``c`` with a copy of its left operand, whose indices of its own are columns, in which those are adjacent that are so in the
    result; None where they are, or fill less than half a vector of ``lanes`` elements, or the operand is not small, as a whole or
    for each product, or never changes: a GEMM packs it once."""
    item = ITEMSIZE[c.dtype]
    columns = sorted(c.m, key=lambda i: abs(c.out[i].stride))
    if not columns or c.constant_left or c.left[columns[0]].stride == item:
        return None
    if 2 * max(shared_lines.adjacent(c.out, columns, item)) < lanes * item:
        return None
    small, large, each = _sizes(c)
    if large < LEAST_OF_COLUMNS or not worth_copying(small, large, each):
        return None
    others = sorted((*c.k, *c.batch), key=lambda i: (i in c.batch, abs(c.right[i].stride)))
    return _copied(c, dense_axes((*columns, *others), c.sizes, item), -(-small // LINE) * LINE)


def _sizes(c: BinaryContraction) -> tuple[int, int, int]:
    """Bytes of the left operand and of the right one, and elements that each product of the batch has of the left one."""
    small, large = (prod([c.sizes[i] for i in (*c.batch, *indices)]) for indices in ((*c.m, *c.k), (*c.n, *c.k)))
    return small * ITEMSIZE[c.dtype], large * ITEMSIZE[c.dtype], prod([c.sizes[i] for i in (*c.m, *c.k)])


def _copied(c: BinaryContraction, axes: Mapping[Index, Axis], nbytes: int) -> Copied:
    """``c`` with its left operand copied to ``axes``; along an index that it has not, the copy repeats it."""
    dims = tuple((axis.size, axis.stride, c.left[i].stride if i in c.left else 0, 0) for i, axis in axes.items())
    copy = NestProblem(op="copy", dims=dims, out=c.dtype, a=c.dtype)
    return Copied(contraction=replace(c, left=axes), copy=copy, nbytes=nbytes)


def _together(c: BinaryContraction, order: list[Index], adjacent: int) -> tuple[Index, ...]:
    """Indices of the copy, fastest first: the lanes, then what one tile reads, so that its rows are neighbours.

    In the order of the large operand a summed index of it that is slow would put them whole pages apart, in one set of
    the first-level cache, where what is read once drives them out.
    """
    rows = [i for i in order[adjacent:] if i in c.k]
    return (*order[:adjacent], *rows, *c.m, *[i for i in order[adjacent:] if i not in c.k])


def _adjacent(c: BinaryContraction, order: list[Index], item: int) -> tuple[int, int]:
    """How many elements lie side by side along batch indices in the right operand and the result, and along how many
    of the first indices of ``order``."""
    run = 1
    for place, i in enumerate(order):
        if i not in c.batch or not c.right[i].stride == c.out[i].stride == run * item:
            return run, place
        run *= c.sizes[i]
    return run, len(order)


def _repeated(c: BinaryContraction, run: int, lanes: int, item: int) -> tuple[Index | None, int]:
    """The index of the right operand alone that follows ``run`` elements of the batch in memory, and how many of its
    entries fill vectors together with them: for so many the copy has the same elements. 1 where nothing is to be
    filled, or too few rows would be left.
    """
    if run >= lanes:
        return None, 1
    for i in c.n:
        if c.right[i].stride == c.out[i].stride == run * item:
            size = c.sizes[i]
            shares = [n for n in range(1, lanes + 1) if size % n == 0 and (n == 1 or size // n >= FEW_ROWS)]
            return i, min(shares, key=lambda n: (-(-run * n // lanes) / n, n))
    return None, 1


def _split(c: BinaryContraction, index: Index, times: int) -> BinaryContraction:
    """``c`` with ``index`` of its right operand as two: ``times`` adjacent entries, a batch index `REPEATED` from now
    on, and what is left of it."""
    rest = c.sizes[index] // times
    right, out = dict(c.right), dict(c.out)
    for axes in (right, out):
        stride = axes[index].stride
        axes[REPEATED] = Axis.strided(REPEATED, times, stride)
        axes[index] = Axis.strided(index, rest, stride * times)
    sizes = {**c.sizes, index: rest, REPEATED: times}
    return replace(c, sizes=sizes, batch=(*c.batch, REPEATED), right=right, out=out)


def inherited(listed: OperationList) -> dict[int, tuple[Index, ...]]:
    """Values that may have an order of their own, by number: their indices, fastest first. It is that of the large
    operand of their producer, or has an index fastest that is long and a batch of many products (`long_batch`)."""
    orders: dict[int, tuple[Index, ...]] = {}
    if max([value.size for value in listed.values], default=0) < LARGE_BYTES:
        return orders
    shared = {value.memory.number for value in listed.values if value.source is not None}
    batch = long_batch(listed)
    for operation in listed.operations:
        output = operation.output
        if operation.kind == "gemm" and not operation.mixed and output.kind == "arena" and output.number not in shared:
            order = _order_of_large(listed, operation, orders)
            if not order and batch in output.term:
                order = (batch,)
            if order:
                kept = [i for i in order if i in output.term]
                orders[output.number] = (*kept, *[i for i in reversed(output.term) if i not in order])
    return orders


def long_batch(listed: OperationList) -> Index | None:
    """The index that is a batch of most products, where it is of several and fills many vectors."""
    found: Counter[Index] = Counter()
    for operation in listed.operations:
        if operation.kind == "gemm" and not operation.mixed:
            left, right = operation.inputs
            found.update(i for i in left.term if i in right.term and i in operation.output.term)
    if not found:
        return None
    index, count = max(found.items(), key=lambda item: (item[1], listed.sizes[item[0]]))
    return index if count >= BATCH_PRODUCTS and listed.sizes[index] >= BATCH_LENGTH else None


def _order_of_large(listed: OperationList, operation: Operation, orders: dict) -> tuple[Index, ...]:
    """Indices of the large operand, fastest first, where the fastest is a batch index; empty where there is none."""
    small, large = sorted(operation.inputs, key=listed.nbytes)
    if large.source is not None or listed.nbytes(large) < max(LARGE_BYTES, SMALL_SHARE * listed.nbytes(small)):
        return ()
    order = orders.get(large.number) or _order(large)
    return order if order and order[0] in small.term and order[0] in operation.output.term else ()


def _order(value: Value) -> tuple[Index, ...]:
    if value.kind != "input":
        return ()
    order = sorted(value.term, key=lambda i: abs(value.axes[i].stride))
    return tuple(order) if order and value.axes[order[0]].stride == itemsize(value.dtype) else ()
