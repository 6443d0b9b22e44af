"""A call without Python in between: a METH_FASTCALL function that checks operands and runs the plan.

CPython's per-call work (argument tuples, attribute look-ups, address fetching) costs more than the arithmetic of a
small network. The entry reads the array structs itself: every operand must be exactly `numpy.ndarray`, with the
descriptor, rank, shape and strides that the plan was made for. Anything else returns NotImplemented, and the caller
takes the general path, which converts, replans or explains. It also does so while another thread uses the entry.

`self` is an int64 array, the *record* (words E_*). The struct offsets are those of NumPy 1.7 to 2.x on 64-bit
CPython with the GIL; `einsum_engine.fastcall` checks them before the entry is used.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi
from .emit import I32, I64, Fn, Val, Var

# fields of PyObject and PyArrayObject, in bytes
TYPE, DATA, RANK, SHAPE, STRIDES, DESCR = 8, 16, 24, 32, 40, 56

# words of the record
E_OPERANDS = 0
E_ARRAY_TYPE = 1
E_NOT_IMPLEMENTED = 2
E_LOCK = 3
E_CONTEXT = 4
E_TABLE = 5
E_WALK = 6
E_OUT_DESCR, E_OUT_RANK, E_OUT_SHAPE = 7, 8, 9
E_EMPTY, E_RETURN = 10, 11  # PyArray_Empty, PyArray_Return
E_SAVE, E_RESTORE = 12, 13  # PyEval_SaveThread, PyEval_RestoreThread; 0: keep the GIL
E_EXPECTED = 14  # address: per operand descriptor, rank, address of shape and strides (rank words each)
E_WORDS = 16
EXPECTED_WORDS = 3


def build_entry(module: ir.Module, name: str, isa: ISA) -> None:
    """``PyObject *entry(PyObject *self, PyObject *const *args, Py_ssize_t nargs)``."""
    f = Fn(module, name, [I64] * 3, I64)
    this, args, count = f.args
    record = f.word(this + DATA)
    result = Var(f, f.word(record, E_NOT_IMPLEMENTED))
    matches = f.var(0)
    with f.if_(count.eq(f.word(record, E_OPERANDS))):
        with f.if_(f.atomic_swap(record + 8 * E_LOCK, 1).eq(0)):
            matches.set(1)
    with f.if_(matches.get().ne(0)):
        bases = f.word(f.word(record, E_CONTEXT), abi.CTX_BASES)
        _check_operands(f, record, args, count, bases, matches)
        with f.if_(matches.get().ne(0)):
            result.set(_run(f, record, count, bases))
        f.atomic_store(0, record + 8 * E_LOCK)
    with f.if_(result.get().eq(f.word(record, E_NOT_IMPLEMENTED))):
        _increment(f, result.get())
    f.ret(result.get())


def _increment(f: Fn, obj: Val) -> None:
    """Py_INCREF; immortal objects (32-bit count with the sign bit set, Python 3.12) stay as they are."""
    old = f.load(I32, obj)
    with f.if_(old >= 0):
        f.store(old + 1, obj)


def _check_operands(f: Fn, record: Val, args: Val, count: Val, bases: Val, matches: Var) -> None:
    array_type, expected = f.word(record, E_ARRAY_TYPE), f.word(record, E_EXPECTED)
    with f.range(0, count) as i:
        array = f.word(args, i)
        want = expected + i * (8 * EXPECTED_WORDS)
        same = f.var(0)
        with f.if_(f.word(array + TYPE).eq(array_type)):
            rank = f.convert(f.load(I32, array + RANK), "sext", I64)
            with f.if_(f.word(array + DESCR).eq(f.word(want, 0)) & rank.eq(f.word(want, 1))):
                same.set(1)
                layout = f.word(want, 2)
                shape, strides = f.word(array + SHAPE), f.word(array + STRIDES)
                with f.range(0, rank) as axis:
                    differs = f.word(shape, axis).ne(f.word(layout, axis))
                    differs = differs | f.word(strides, axis).ne(f.word(layout, axis + rank))
                    with f.if_(differs):
                        same.set(0)
                f.store(f.word(array + DATA), bases + i * 8)
        with f.if_(same.get().eq(0)):
            matches.set(0)


def _run(f: Fn, record: Val, count: Val, bases: Val) -> Val:
    """Allocates the result and walks the table; NULL with an exception set when there is no memory."""
    descr = f.word(record, E_OUT_DESCR)
    _increment(f, descr)
    rank = f.convert(f.word(record, E_OUT_RANK), "trunc", I32)
    out = Var(
        f, f.call(f.word(record, E_EMPTY), [rank, f.word(record, E_OUT_SHAPE), descr, f.const(I32, 0)], I64)
    )
    with f.if_(out.get().ne(0)):
        f.store(f.word(out.get() + DATA), bases + count * 8)
        save = f.word(record, E_SAVE)
        state = f.var(0)
        with f.if_(save.ne(0)):
            state.set(f.call(save, [], I64))
        f.call(f.word(record, E_WALK), [f.word(record, E_CONTEXT), f.word(record, E_TABLE), f.i64(0)], I64)
        with f.if_(save.ne(0)):
            f.call(f.word(record, E_RESTORE), [state.get()])
        with f.if_(f.word(record, E_OUT_RANK).eq(0)):
            out.set(f.call(f.word(record, E_RETURN), [out.get()], I64))
    return out.get()
