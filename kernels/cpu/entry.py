"""A call without Python in between: a METH_FASTCALL function that checks operands and runs the plan.

CPython's per-call work (argument tuples, attribute look-ups, address fetching) costs more than the arithmetic of a
small network. The entry reads the array structs itself: every operand must be exactly `numpy.ndarray`, with the
descriptor, rank, shape and strides that the plan was made for. Anything else returns NotImplemented, and the caller
takes the general path, which converts, replans or explains. It also does so while another thread uses the entry or
the arena that it shares with others, and where the pool lacks helpers, as in a forked child: the general path starts
them.

`self` is an int64 array, the *record* (words E_*). The struct offsets are those of NumPy 1.7 to 2.x on 64-bit
CPython with the GIL; `einsum_engine.fastcall` checks them before the entry is used.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import abi, entry_abi as ea, pool_abi as pa, result_abi as ra
from .emit import I32, I64, Fn, Val, Var


def build_entry(module: ir.Module, name: str, isa: ISA) -> None:
    """``PyObject *entry(PyObject *self, PyObject *const *args, Py_ssize_t nargs)``."""
    f = Fn(module, name, [I64] * 3, I64)
    this, args, count = f.args
    record = f.word(this + ea.DATA)
    result = Var(f, f.word(record, ea.E_NOT_IMPLEMENTED))
    matches = f.var(0)
    given = f.word(record, ea.E_OUT_GIVEN)
    lock = f.word(record, ea.E_LOCK_AT)
    with f.if_(count.eq(f.word(record, ea.E_OPERANDS) + given)):
        with f.if_(f.atomic_swap(lock, 1).eq(0)):
            matches.set(1)
    with f.if_(matches.get().ne(0)):
        context = f.word(record, ea.E_CONTEXT)
        _check_helpers(f, context, matches)
        _check_operands(f, record, args, count, matches)
        with f.if_(matches.get().ne(0) & f.word(record, ea.E_WRITES).ne(0)):
            _check_written(f, record, args, count, matches)
        with f.if_(matches.get().ne(0)):
            result.set(_run(f, record, args, count - given, given))
        f.atomic_store(0, lock)
    with f.if_(result.get().eq(f.word(record, ea.E_NOT_IMPLEMENTED))):
        _increment(f, result.get())
    f.ret(result.get())


def _increment(f: Fn, obj: Val) -> None:
    """Py_INCREF; immortal objects (32-bit count with the sign bit set, Python 3.12) stay as they are."""
    old = f.load(I32, obj)
    with f.if_(old >= 0):
        f.store(old + 1, obj)


def _check_helpers(f: Fn, context: Val, matches: Var) -> None:
    """The pool, where the plan uses it, has as many helpers as the plan has threads besides the caller."""
    pool = f.word(context, abi.CTX_POOL)
    with f.if_(pool.ne(0)):
        wanted = f.min(f.word(context, abi.CTX_THREADS) - 1, pa.MAX_WORKERS)
        with f.if_(f.word(pool, pa.POOL_WORKERS) < wanted):
            matches.set(0)


def _check_operands(f: Fn, record: Val, args: Val, count: Val, matches: Var) -> None:
    array_type, expected = f.word(record, ea.E_ARRAY_TYPE), f.word(record, ea.E_EXPECTED)
    with f.range(0, count) as i:
        array = f.word(args, i)
        want = expected + i * (8 * ea.X_WORDS)
        same = f.var(0)
        with f.if_(f.word(array + ea.TYPE).eq(array_type)):
            rank = f.convert(f.load(I32, array + ea.RANK), "sext", I64)
            with f.if_(f.word(array + ea.DESCR).eq(f.word(want, ea.X_DESCR)) & rank.eq(f.word(want, ea.X_RANK))):
                same.set(1)
                layout = f.word(want, ea.X_LAYOUT)
                shape, strides = f.word(array + ea.SHAPE), f.word(array + ea.STRIDES)
                with f.range(0, rank) as axis:
                    differs = f.word(shape, axis).ne(f.word(layout, axis))
                    differs = differs | f.word(strides, axis).ne(f.word(layout, axis + rank))
                    with f.if_(differs):
                        same.set(0)
                f.store(f.word(array + ea.DATA), f.word(want, ea.X_PLACE))
        with f.if_(same.get().eq(0)):
            matches.set(0)


def _check_written(f: Fn, record: Val, args: Val, count: Val, matches: Var) -> None:
    """What the plan writes, the output that was given and operands, may be written and shares no memory with any
    other array (by their bounds)."""
    expected = f.word(record, ea.E_EXPECTED)
    with f.range(0, count) as at:
        one = expected + at * (8 * ea.X_WORDS)
        with f.if_(f.word(one, ea.X_WRITTEN).ne(0)):
            flags = f.convert(f.load(I32, f.word(args, at) + ea.FLAGS), "sext", I64)
            with f.if_((flags & ea.WRITEABLE).eq(0)):
                matches.set(0)
            low, high = (_place(f, one) + f.word(one, w) for w in (ea.X_LOW, ea.X_HIGH))
            with f.range(0, count) as i:
                want = expected + i * (8 * ea.X_WORDS)
                start, end = (_place(f, want) + f.word(want, w) for w in (ea.X_LOW, ea.X_HIGH))
                with f.if_(i.ne(at) & (start < high) & (low < end)):
                    matches.set(0)


def _place(f: Fn, want: Val) -> Val:
    """Where an array lies that was checked."""
    return f.word(f.word(want, ea.X_PLACE))


def _fresh(f: Fn, record: Val, operands: Val, out: Var) -> None:
    """A new array; 0 where there is no memory. A large one comes from the pool, from a place beside the operands."""
    handler, old = f.word(record, ea.E_HANDLER), f.var(0)
    with f.if_(handler.ne(0)):
        pool, count = f.word(record, ea.E_POOL), f.var(0)
        with f.range(0, operands) as i:
            want = f.word(record, ea.E_EXPECTED) + i * (8 * ea.X_WORDS)
            large = f.word(want, ea.X_HIGH) - f.word(want, ea.X_LOW) >= f.word(record, ea.E_OUT_BYTES)
            with f.if_(large & (count.get() < ra.MOST_BESIDE)):
                f.store(_place(f, want), pool + (count.get() + ra.R_BESIDE) * 8)
                count.add(1)
        f.store(count.get(), pool + 8 * ra.R_BESIDE_COUNT)
        old.set(f.call(f.word(record, ea.E_SET_HANDLER), [handler], I64))
    descr = f.word(record, ea.E_OUT_DESCR)
    _increment(f, descr)
    rank = f.convert(f.word(record, ea.E_OUT_RANK), "trunc", I32)
    fortran = f.convert(f.word(record, ea.E_OUT_ORDER), "trunc", I32)
    arguments = [rank, f.word(record, ea.E_OUT_SHAPE), descr, fortran]
    out.set(f.call(f.word(record, ea.E_EMPTY), arguments, I64))
    with f.if_(out.get().eq(0), likely=False):
        f.call(f.word(record, ea.E_CLEAR), [])
    with f.if_(handler.ne(0)):
        f.call(f.word(record, ea.E_DECREF), [f.call(f.word(record, ea.E_SET_HANDLER), [old.get()], I64)])
        f.call(f.word(record, ea.E_DECREF), [old.get()])


def _run(f: Fn, record: Val, args: Val, operands: Val, given: Val) -> Val:
    """Walks the table into the output given or a new one; where there is no memory, others say so."""
    out, nothing = f.var(0), Var(f, f.word(record, ea.E_NOT_IMPLEMENTED))
    with f.if_else(given.ne(0)) as (then, otherwise):
        with then:
            out.set(f.word(args, operands))
            _increment(f, out.get())
        with otherwise:
            _fresh(f, record, operands, out)
    with f.if_(out.get().ne(0)):
        nothing.set(0)
        f.store(f.word(out.get() + ea.DATA), f.word(record, ea.E_OUT_PLACE))
        save = f.word(record, ea.E_SAVE)
        state = f.var(0)
        with f.if_(save.ne(0)):
            state.set(f.call(save, [], I64))
        row, stopped = f.var(0), f.var(0)
        with f.while_() as leave:
            walk = [f.word(record, ea.E_CONTEXT), f.word(record, ea.E_TABLE), row.get()]
            row.set(f.call(f.word(record, ea.E_WALK), walk, I64))
            leave(row.get() < 0)
            # a long loop came back at a jump: Ctrl-C is seen here
            with f.if_(save.ne(0)):
                f.call(f.word(record, ea.E_RESTORE), [state.get()])
            found = f.call(f.word(record, ea.E_SIGNALS), [], I32)
            stopped.set(f.convert(found, "sext", I64))
            with f.if_(save.ne(0)):
                state.set(f.call(save, [], I64))
            leave(stopped.get().ne(0))
        with f.if_(save.ne(0)):
            f.call(f.word(record, ea.E_RESTORE), [state.get()])
        failed = f.word(f.word(record, ea.E_CONTEXT), abi.CTX_ERROR).ne(0)
        with f.if_(stopped.get().ne(0) | failed, likely=False):
            f.call(f.word(record, ea.E_DECREF), [out.get()])
            out.set(0)
        with f.if_(failed, likely=False):
            _raise(f, record)
        with f.if_(f.word(record, ea.E_OUT_RANK).eq(0) & given.eq(0) & out.get().ne(0)):
            out.set(f.call(f.word(record, ea.E_RETURN), [out.get()], I64))
    return out.get() | nothing.get()


def _raise(f: Fn, record: Val) -> None:
    """Sets the exception that a step left in the context, and forgets it."""
    context = f.word(record, ea.E_CONTEXT)
    row = f.word(record, ea.E_FAILURES) + (f.word(context, abi.CTX_ERROR) - 1) * 16
    values = [f.word(context, word) for word in (abi.CTX_ERROR_VALUE, abi.CTX_ERROR_AXIS, abi.CTX_ERROR_SIZE)]
    function = ir.FunctionType(I64, [I64, I64], var_arg=True)
    f.call(f.word(record, ea.E_FORMAT), [f.word(row), f.word(row, 1), *values], function)
    f.store(f.i64(0), context + 8 * abi.CTX_ERROR)
