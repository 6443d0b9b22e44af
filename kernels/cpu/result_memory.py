"""Memory of large results: the functions of a NumPy memory handler (NEP 49) that keeps what comes back.

An array that was made under the handler gives its memory to `results_free` when it dies, which keeps the block, and
`results_malloc` hands out the one that came back last, if it fits. No Python runs in between. ``ctx`` is the address
of the pool's words (R_*). NumPy calls with the GIL held; whoever finds the pool taken nevertheless goes past it.

A block is as `allocator.malloc` of NumPy's own handler gave it. Where the data begin in it, two words in front of them
say where the block begins, and its bytes. They begin with a page, or at the line of one of the addresses R_BESIDE: the
one that most bytes of a page lie before, up to the next of them. So the loads of a loop are ahead of its stores.
"""

from __future__ import annotations

from llvmlite import ir

from ..isa import ISA
from . import result_abi as ra
from .emit import I32, I64, VOID, Fn, Val

LOOK_NS = 50_000_000  # between two looks at the memory that is left, which take 0.1 to 0.2 ms
_CLOCK_MONOTONIC = 1
NAMES = ("results_malloc", "results_calloc", "results_realloc", "results_free", "results_clear")


def build(module: ir.Module, name: str, isa: ISA) -> None:
    """One of `NAMES`, as NumPy declares them; ``void results_clear(ctx)`` lets go of all blocks."""
    {
        "results_malloc": _build_malloc,
        "results_calloc": _build_calloc,
        "results_realloc": _build_realloc,
        "results_free": _build_free,
        "results_clear": _build_clear,
    }[name](module, name)


# -- what the functions are made of -----------------------------------------------------------------------------------
def _evict(module: ir.Module) -> Fn:
    """``void evict(ctx, bytes, blocks)``: gives the oldest blocks to NumPy until no more are kept than these."""
    f = Fn(module, "evict", [I64] * 3, internal=True)
    ctx, nbytes, blocks = f.args
    gone, left = f.var(0), f.var(0)
    count = f.word(ctx, ra.R_COUNT)
    left.set(f.word(ctx, ra.R_BYTES))
    with f.while_() as leave:
        leave((gone.get() >= count) | ((left.get() <= nbytes) & (count - gone.get() <= blocks)))
        row = ctx + gone.get() * 16
        left.set(left.get() - f.word(row, ra.R_BLOCKS + 1))
        _release(f, ctx, f.word(row, ra.R_BLOCKS), f.word(row, ra.R_BLOCKS + 1))
        gone.add(1)
    with f.if_(gone.get() > 0):
        with f.range(gone.get() * 2, count * 2) as word:
            f.store(f.word(ctx + word * 8, ra.R_BLOCKS), ctx + (word - gone.get() * 2 + ra.R_BLOCKS) * 8)
        f.store(left.get(), ctx + 8 * ra.R_BYTES)
        f.store(count - gone.get(), ctx + 8 * ra.R_COUNT)
    f.ret()
    return f


def _new(f: Fn, ctx: Val, nbytes: Val) -> Val:
    return f.call(f.word(ctx, ra.R_MALLOC), [f.word(ctx, ra.R_ALLOCATOR), nbytes, f.i64(1)], I64)


def _release(f: Fn, ctx: Val, block: Val, nbytes: Val) -> None:
    f.call(f.word(ctx, ra.R_FREE), [f.word(ctx, ra.R_ALLOCATOR), block, nbytes])


def _place(f: Fn, ctx: Val) -> Val:
    """Bytes into its page at which the data begin."""
    count = f.word(ctx, ra.R_BESIDE_COUNT)
    place, most = f.var(0), f.var(0)
    with f.range(0, count) as i:
        here, before = f.word(ctx + i * 8, ra.R_BESIDE), f.var(ra.PAGE)
        with f.range(0, count) as j:
            gap = (here - f.word(ctx + j * 8, ra.R_BESIDE)) & (ra.PAGE - 1)
            with f.if_(gap.ne(0)):
                before.set(f.min(before.get(), gap))
        with f.if_(before.get() > most.get()):
            most.set(before.get())
            place.set(here & (ra.PAGE - ra.LINE))
    f.store(f.i64(0), ctx + 8 * ra.R_BESIDE_COUNT)
    return place.get()


def _malloc(module: ir.Module, evict: Fn) -> Fn:
    """``int64 take(ctx, bytes)``: address of the data, 0 where there is no memory."""
    f = Fn(module, "take", [I64] * 2, I64, internal=True)
    ctx, size = f.args
    wanted = size + ra.ROOM
    block, nbytes = f.var(0), f.var(0)
    nbytes.set(wanted)
    place, fresh = _place(f, ctx), f.var(1)
    with f.if_(f.atomic_swap(ctx + 8 * ra.R_LOCK, 1).eq(0)):
        count = f.word(ctx, ra.R_COUNT)
        at = f.var(0)
        at.set(count - 1)
        with f.while_() as leave:
            leave((at.get() < 0) | block.get().ne(0))
            row = ctx + at.get() * 16
            held = f.word(row, ra.R_BLOCKS + 1)
            with f.if_((held >= wanted) & (held <= wanted + wanted // ra.SLACK)):
                block.set(f.word(row, ra.R_BLOCKS))
                nbytes.set(held)
                fresh.set(0)
                with f.range(at.get() * 2, count * 2 - 2) as word:
                    f.store(f.word(ctx + word * 8, ra.R_BLOCKS + 2), ctx + (word + ra.R_BLOCKS) * 8)
                f.store(count - 1, ctx + 8 * ra.R_COUNT)
                f.store(f.word(ctx, ra.R_BYTES) - held, ctx + 8 * ra.R_BYTES)
            at.add(-1)
        with f.if_(block.get().eq(0)):
            block.set(_new(f, ctx, wanted))
            with f.if_(block.get().eq(0)):
                f.call(evict, [ctx, f.i64(0), f.i64(0)])
        f.atomic_store(0, ctx + 8 * ra.R_LOCK)
    with f.if_(block.get().eq(0)):
        block.set(_new(f, ctx, wanted))
    data = f.var(0)
    with f.if_(block.get().ne(0)):
        data.set(((block.get() + (16 + ra.PAGE - 1)) & -ra.PAGE) + place)
        f.store(block.get(), data.get() - 16)
        f.store(nbytes.get(), data.get() - 8)
    with f.if_(fresh.get().ne(0)):  # a program that keeps its results never gives one back
        _look(f, ctx, ra.R_NEXT_NEW)
    f.ret(data.get())
    return f


def _free(module: ir.Module, evict: Fn) -> Fn:
    """``void give(ctx, data)``: keeps the block within the bounds; the oldest ones go first."""
    f = Fn(module, "give", [I64] * 2, internal=True)
    ctx, data = f.args
    block, nbytes = f.word(data - 16), f.word(data - 8)
    limit, kept = f.word(ctx, ra.R_LIMIT), f.var(0)
    with f.if_(nbytes <= limit):
        with f.if_(f.atomic_swap(ctx + 8 * ra.R_LOCK, 1).eq(0)):
            f.call(evict, [ctx, limit - nbytes, f.i64(ra.MOST_BLOCKS - 1)])
            count = f.word(ctx, ra.R_COUNT)
            f.store(block, ctx + (count * 2 + ra.R_BLOCKS) * 8)
            f.store(nbytes, ctx + (count * 2 + ra.R_BLOCKS + 1) * 8)
            f.store(count + 1, ctx + 8 * ra.R_COUNT)
            f.store(f.word(ctx, ra.R_BYTES) + nbytes, ctx + 8 * ra.R_BYTES)
            kept.set(1)
            f.atomic_store(0, ctx + 8 * ra.R_LOCK)
    with f.if_(kept.get().eq(0)):
        _release(f, ctx, block, nbytes)
    f.ret()
    return f


def _look(f: Fn, ctx: Val, due: int) -> None:
    """Has the main thread look at the memory that is left, now and then."""
    time = f.stack(16)
    f.call(f.word(ctx, ra.R_CLOCK), [f.const(I32, _CLOCK_MONOTONIC), time], I32)
    now = f.word(time) * 1_000_000_000 + f.word(time, 1)
    with f.if_(now >= f.word(ctx, due)):
        f.store(now + LOOK_NS, ctx + 8 * due)
        f.call(f.word(ctx, ra.R_PENDING), [f.word(ctx, ra.R_LOOK), f.word(ctx, ra.R_LOOKER)], I32)


# -- the functions ----------------------------------------------------------------------------------------------------
def _build_malloc(module: ir.Module, name: str) -> None:
    """``void *malloc(void *ctx, size_t size)``."""
    take = _malloc(module, _evict(module))
    f = Fn(module, name, [I64] * 2, I64)
    f.ret(f.call(take, list(f.args), I64))


def _build_calloc(module: ir.Module, name: str) -> None:
    """``void *calloc(void *ctx, size_t count, size_t item)``."""
    take = _malloc(module, _evict(module))
    f = Fn(module, name, [I64] * 3, I64)
    ctx, count, item = f.args
    data = f.call(take, [ctx, count * item], I64)
    with f.if_(data.ne(0)):
        f.call(f.word(ctx, ra.R_SET), [data, f.const(I32, 0), count * item], I64)
    f.ret(data)


def _build_realloc(module: ir.Module, name: str) -> None:
    """``void *realloc(void *ctx, void *data, size_t size)``."""
    evict = _evict(module)
    take, give = _malloc(module, evict), _free(module, evict)
    f = Fn(module, name, [I64] * 3, I64)
    ctx, old, size = f.args
    data = f.call(take, [ctx, size], I64)
    with f.if_(data.ne(0) & old.ne(0)):
        held = f.word(old - 16) + f.word(old - 8) - old
        f.call(f.word(ctx, ra.R_COPY), [data, old, f.min(held, size)], I64)
        f.call(give, [ctx, old])
    f.ret(data)


def _build_free(module: ir.Module, name: str) -> None:
    """``void free(void *ctx, void *data, size_t size)``."""
    give = _free(module, _evict(module))
    f = Fn(module, name, [I64] * 3, VOID)
    ctx, data, _ = f.args
    with f.if_(data.ne(0)):
        f.call(give, [ctx, data])
        _look(f, ctx, ra.R_NEXT_LOOK)
    f.ret()


def _build_clear(module: ir.Module, name: str) -> None:
    evict = _evict(module)
    f = Fn(module, name, [I64], VOID)
    (ctx,) = f.args
    with f.if_(f.atomic_swap(ctx + 8 * ra.R_LOCK, 1).eq(0)):
        f.call(evict, [ctx, f.i64(0), f.i64(0)])
        f.atomic_store(0, ctx + 8 * ra.R_LOCK)
    f.ret()
