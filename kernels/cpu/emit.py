"""A thin layer over `llvmlite.ir` in which kernels read like loop nests.

`Val` wraps an SSA value with Python operators, `Fn` builds one function: structured loops and branches, mutable
scalars (promoted to registers by LLVM), loads and stores by byte address, vectors, masks, gathers. Addresses are
plain int64 values in bytes, because every operand of the engine is addressed by sums of byte offsets.

Nothing here knows about contractions. No floating-point flag is ever set, so NaN, infinities and denormals keep
their meaning; integer arithmetic wraps.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterator, Sequence

from llvmlite import ir

from .lines import CONSTANTS, PTR, VOID, LineBuilder, vector_of

I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F32 = ir.FloatType()
F64 = ir.DoubleType()

_SCALARS = {
    "float32": F32,
    "float64": F64,
    "int8": I8,
    "int16": I16,
    "int32": I32,
    "int64": I64,
    "bool": I8,
}


def scalar_type(name: str) -> ir.Type:
    """LLVM type of one real element of a kernel dtype (the part type for complex dtypes)."""
    return _SCALARS[{"complex64": "float32", "complex128": "float64"}.get(name, name)]


def vector_type(elem: ir.Type, lanes: int) -> ir.Type:
    return elem if lanes == 1 else vector_of(elem, lanes)


# In names of AVX-512 intrinsics; their last argument: the current rounding
_KINDS = {F32: "ps", F64: "pd"}
_ROUNDING = ir.Constant(I32, 4)


def _halves(lanes: int) -> tuple[range, range]:
    return range(lanes // 2), range(lanes // 2, lanes)


def size_of(ty: ir.Type) -> int:
    """Bytes of a scalar or vector type."""
    if isinstance(ty, ir.VectorType):
        return ty.count * size_of(ty.element)
    if isinstance(ty, ir.IntType):
        return max(1, ty.width // 8)
    return 4 if ty == F32 else 8


def _suffix(ty: ir.Type) -> str:
    """Overload suffix of an LLVM intrinsic, for instance ``v16f32``."""
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{_suffix(ty.element)}"
    if isinstance(ty, ir.IntType):
        return f"i{ty.width}"
    return {F32: "f32", F64: "f64"}.get(ty, "p0")


def _is_float(ty: ir.Type) -> bool:
    elem = ty.element if isinstance(ty, ir.VectorType) else ty
    return elem in (F32, F64)


class Val:
    """An SSA value with operators; integer operations are signed, Python numbers become constants of its type."""

    __slots__ = ("f", "v")

    def __init__(self, f: "Fn", v: ir.Value):
        self.f, self.v = f, v

    @property
    def type(self) -> ir.Type:
        return self.v.type

    def _coerce(self, other) -> ir.Value:
        return other.v if isinstance(other, Val) else self.f.const(self.type, other).v

    def _binary(self, other, float_op: str, int_op: str) -> "Val":
        name = float_op if _is_float(self.type) else int_op
        return Val(self.f, getattr(self.f.b, name)(self.v, self._coerce(other)))

    def __add__(self, other):
        return self._binary(other, "fadd", "add")

    def __sub__(self, other):
        return self._binary(other, "fsub", "sub")

    def __mul__(self, other):
        return self._binary(other, "fmul", "mul")

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other):
        return self._binary(other, "fdiv", "sdiv")

    def __truediv__(self, other):
        return Val(self.f, self.f.b.fdiv(self.v, self._coerce(other)))

    def __mod__(self, other):
        return self._binary(other, "frem", "srem")

    def __and__(self, other):
        return Val(self.f, self.f.b.and_(self.v, self._coerce(other)))

    def __or__(self, other):
        return Val(self.f, self.f.b.or_(self.v, self._coerce(other)))

    def __xor__(self, other):
        return Val(self.f, self.f.b.xor(self.v, self._coerce(other)))

    def __lshift__(self, other):
        return Val(self.f, self.f.b.shl(self.v, self._coerce(other)))

    def __rshift__(self, other):
        """Logical shift right."""
        return Val(self.f, self.f.b.lshr(self.v, self._coerce(other)))

    def _compare(self, op: str, other) -> "Val":
        method = self.f.b.fcmp_ordered if _is_float(self.type) else self.f.b.icmp_signed
        return Val(self.f, method(op, self.v, self._coerce(other)))

    def __lt__(self, other):
        return self._compare("<", other)

    def __le__(self, other):
        return self._compare("<=", other)

    def __gt__(self, other):
        return self._compare(">", other)

    def __ge__(self, other):
        return self._compare(">=", other)

    def below(self, other: "Val") -> "Val":
        """Of integers: whether it is from 0 on, and less than ``other``, which is not negative."""
        return Val(self.f, self.f.b.icmp_unsigned("<", self.v, other.v))

    def eq(self, other) -> "Val":
        return self._compare("==", other)

    def ne(self, other) -> "Val":
        return self._compare("!=", other)


class Var:
    """A mutable scalar or vector; LLVM promotes it to a register."""

    __slots__ = ("f", "slot", "type")

    def __init__(self, f: "Fn", init: Val):
        self.f, self.type = f, init.type
        self.slot = f.b.slot(init.type)
        self.set(init)

    def get(self) -> Val:
        return Val(self.f, self.f.b.load(self.slot, typ=self.type))

    def set(self, value) -> None:
        value = value if isinstance(value, Val) else self.f.const(self.type, value)
        self.f.b.store(value.v, self.slot)

    def add(self, value) -> None:
        self.set(self.get() + value)


class Fn:
    """Builds one function ``name(args) -> ret`` in a module."""

    def __init__(self, module: ir.Module, name: str, args: Sequence[ir.Type], ret: ir.Type = VOID, *, internal=False):
        self.module = module
        self.fn = ir.Function(module, ir.FunctionType(ret, list(args)), name)
        if internal:
            self.fn.linkage = "internal"
        self.fn.attributes.add("nounwind")
        self.b = LineBuilder(self.fn.append_basic_block("entry"))
        self.args = [Val(self, a) for a in self.fn.args]

    def schedule_for(self, processor: str) -> None:
        """LLVM puts instructions in the order that suits this processor."""
        # llvmlite would take a name without a value alone
        set.add(self.fn.attributes, f'"tune-cpu"="{processor}"')

    # -- constants -------------------------------------------------------------------------------------------
    def const(self, ty: ir.Type, value) -> Val:
        return Val(self, CONSTANTS.get(ty, value))

    def i64(self, value) -> Val:
        return value if isinstance(value, Val) else self.const(I64, value)

    def vector(self, elem: ir.Type, values: Sequence) -> Val:
        return Val(self, ir.Constant(vector_of(elem, len(values)), list(values)))

    def zero(self, ty: ir.Type) -> Val:
        return self.const(ty, None if isinstance(ty, ir.VectorType) else 0)

    # -- control flow ----------------------------------------------------------------------------------------
    def var(self, init) -> Var:
        return Var(self, self.i64(init))

    @contextmanager
    def range(self, start, stop, step=1) -> Iterator[Val]:
        """``for i in range(start, stop, step)`` with step > 0; the bounds are evaluated once."""
        i = self.var(start)
        stop, step = self.i64(stop), self.i64(step)
        head, body, done = (self.fn.append_basic_block(n) for n in ("head", "body", "done"))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch((i.get() < stop).v, body, done)
        self.b.position_at_end(body)
        yield i.get()
        i.add(step)
        self.b.branch(head)
        self.b.position_at_end(done)

    @contextmanager
    def while_(self) -> Iterator[tuple]:
        """``with f.while_() as leave:`` loops until ``leave(cond)`` is true."""
        head, done = self.fn.append_basic_block("loop"), self.fn.append_basic_block("left")
        self.b.branch(head)
        self.b.position_at_end(head)

        def leave(cond: Val) -> None:
            following = self.fn.append_basic_block("stay")
            self.b.cbranch(cond.v, done, following)
            self.b.position_at_end(following)

        yield leave
        self.b.branch(head)
        self.b.position_at_end(done)

    @contextmanager
    def if_(self, cond: Val, likely=None) -> Iterator[None]:
        with self.b.if_then(cond.v, likely):
            yield

    @contextmanager
    def if_else(self, cond: Val):
        """``with f.if_else(c) as (then, otherwise): with then: ... with otherwise: ...``"""
        with self.b.if_else(cond.v) as (then, otherwise):
            yield then, otherwise

    def ret(self, value: Val | None = None) -> None:
        self.b.ret_void() if value is None else self.b.ret(value.v)

    def call(self, target, args: Sequence[Val], ret: ir.Type = VOID) -> Val:
        """Call an `Fn`, or a function at an int64 address, whose result has type ``ret``; where more arguments may
        follow those of its type, ``ret`` is that type."""
        values = [a.v for a in args]
        if isinstance(target, Fn):
            return Val(self, self.b.call(target.fn, values))
        pointer = self.b.inttoptr(target.v, PTR)
        return Val(self, self.b.call_as(ret, pointer.get_reference(), values))

    # -- integers --------------------------------------------------------------------------------------------
    def min(self, a, b) -> Val:
        a, b = self.i64(a), self.i64(b)
        return self.select(a < b, a, b)

    def max(self, a, b) -> Val:
        a, b = self.i64(a), self.i64(b)
        return self.select(a > b, a, b)

    def select(self, cond: Val, a: Val, b: Val) -> Val:
        return Val(self, self.b.select(cond.v, a.v, b.v))

    def ceil_div(self, a: Val, b) -> Val:
        return (a + b - 1) // b

    # -- memory ----------------------------------------------------------------------------------------------
    def _pointer(self, addr: Val) -> ir.Value:
        return self.b.inttoptr(addr.v, PTR)

    def load(self, ty: ir.Type, addr: Val, align: int = 1, volatile: bool = False) -> Val:
        """``volatile``: LLVM neither keeps what an earlier load of the same bytes gave nor moves it past another."""
        return Val(self, self.b.load(self._pointer(addr), typ=ty, align=align, volatile=volatile))

    def store(self, value: Val, addr: Val, align: int = 1) -> None:
        self.b.store(value.v, self._pointer(addr), align=align)

    def word(self, addr: Val, index: int | Val = 0) -> Val:
        """The int64 at ``addr + 8 * index``."""
        return self.load(I64, addr + (self.i64(index) * 8), align=8)

    def stream(self, value: Val, addr: Val) -> None:
        """Non-temporal store of a whole, naturally aligned vector."""
        node = self.module.add_metadata([CONSTANTS.get(I32, 1)])
        note = f", !nontemporal {node.get_reference()}"
        self.b.store(value.v, self._pointer(addr), align=size_of(value.type), note=note)

    def store_fence(self) -> None:
        """Orders non-temporal stores before what follows; other ISAs than x86 need none."""
        if self.module.triple.startswith("x86"):
            self.b.call(self._declare("llvm.x86.sse.sfence", VOID, []), [])

    def prefetch(self, addr: Val, write: bool = False, locality: int = 3) -> None:
        fn = self._declare("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
        self.b.call(fn, [self._pointer(addr), *(CONSTANTS.get(I32, x) for x in (int(write), locality, 1))])

    def stack(self, nbytes: int, align: int = 64) -> Val:
        """Address of ``nbytes`` of stack, reserved once on entry."""
        with self.b.goto_entry_block():
            slot = self.b.alloca(ir.ArrayType(I8, nbytes))
            slot.align = align
            return Val(self, self.b.ptrtoint(slot, I64))

    def ticks(self) -> Val:
        """The processor's clock, in units of its own, once all instructions before have their results."""
        if self.module.triple.startswith("x86"):
            self.b.call(self._declare("llvm.x86.sse2.lfence", VOID, []), [])
            return Val(self, self.b.call(self._declare("llvm.readcyclecounter", I64, []), []))
        # LLVM's cycle counter of AArch64 is a register that user programs may not read; the timer is open to them
        self.b.call(self._declare("llvm.aarch64.isb", VOID, [I32]), [ir.Constant(I32, 15)])
        read = self._declare("llvm.read_volatile_register.i64", I64, [ir.MetaDataType()])
        return Val(self, self.b.call(read, [self.module.add_metadata(["cntvct_el0"])]))

    # -- vectors ---------------------------------------------------------------------------------------------
    def _declare(self, name: str, ret: ir.Type, args: Sequence[ir.Type]) -> ir.Function:
        existing = self.module.globals.get(name)
        if existing is not None:
            return existing
        return ir.Function(self.module, ir.FunctionType(ret, list(args)), name)

    def intrinsic(self, name: str, args: Sequence[Val]) -> Val:
        """Call ``llvm.<name>`` overloaded on the type of its first argument; result of the same type."""
        ty = args[0].type
        fn = self._declare(f"llvm.{name}.{_suffix(ty)}", ty, [a.type for a in args])
        return Val(self, self.b.call(fn, [a.v for a in args]))

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        """``a * b + c``: fused for floats, wrap-around for integers."""
        if _is_float(a.type):
            return self.intrinsic("fma", [a, b, c])
        return a * b + c

    def together(self, values: Sequence[Val]) -> list[Val]:
        """The same vectors and integers, on x86: whatever needs one of them comes when all are there. No instruction."""
        types = ", ".join(str(v.type) for v in values)
        passed = ", ".join(f"{v.type} {v.v.get_reference()}" for v in values)
        places = ("=v" if isinstance(v.type, ir.VectorType) else "=r" for v in values)
        bound = ",".join([*places, *map(str, range(len(values)))])
        tied = self.b.write(values[0].type, f'call {{ {types} }} asm "", "{bound}"({passed})').reference
        parts = (self.b.write(v.type, f"extractvalue {{ {types} }} {tied}, {n}") for n, v in enumerate(values))
        return [Val(self, part) for part in parts]

    def scalef(self, value: Val, power: Val) -> Val:
        """``value * 2**power``, a whole number, rounded once; vectors of AVX-512, and pairs of these."""

        def call(value: Val, power: Val) -> Val:
            ty, lanes = value.type, value.type.count
            bits = 8 * size_of(ty)
            mask = ir.Constant(ir.IntType(max(8, lanes)), -1)
            args = [value.v, power.v, value.v, mask, *([_ROUNDING] if bits == 512 else [])]
            return self.intel(f"mask.scalef.{_KINDS[ty.element]}.{bits}", ty, args)

        return self._by_halves([value, power], call)

    def exponent(self, value: Val) -> Val:
        """The whole number k with ``2**k <= |value| < 2**(k + 1)``, -inf for 0, as floats; 512 bits of AVX-512, or
        twice that."""
        return self._by_halves([value], lambda value: self._part("getexp", value))

    def fraction(self, value: Val) -> Val:
        """``value / 2**exponent(value)``; 1 of zeros and infinity, NaN of what is negative."""
        signs = ir.Constant(I32, 0b1100)  # from 1 to 2; zeros without their sign
        return self._by_halves([value], lambda value: self._part("getmant", value, signs))

    def about_inverse(self, value: Val) -> Val:
        """``1 / value``, off by no more than 2^-14 of it; 512 bits of AVX-512, or twice that."""

        def call(value: Val) -> Val:
            ty, mask = value.type, ir.Constant(ir.IntType(value.type.count), -1)
            return self.intel(f"rcp14.{_KINDS[ty.element]}.512", ty, [value.v, value.v, mask])

        return self._by_halves([value], call)

    def lookup(self, table: Sequence[float], index: Val, ty: ir.Type) -> Val:
        """``table[index & 15]`` of 16 floats in registers, by one instruction; 512 bits of AVX-512, or twice that."""

        def call(index: Val) -> Val:
            part = ir.VectorType(ty.element, index.type.count)
            rows = [ir.Constant(part, list(map(float, table[at : at + part.count]))) for at in range(0, 16, part.count)]
            name = "permvar.sf.512" if len(rows) == 1 else "vpermi2var.pd.512"
            return self.intel(name, part, [rows[0], index.v, *rows[1:]])

        return self._by_halves([index], call)

    def _part(self, name: str, value: Val, *how: ir.Value) -> Val:
        """Exponents or fractions of 512 bits."""
        ty = value.type
        mask = ir.Constant(ir.IntType(ty.count), -1)
        return self.intel(f"mask.{name}.{_KINDS[ty.element]}.512", ty, [value.v, *how, value.v, mask, _ROUNDING])

    def _by_halves(self, values: Sequence[Val], call: Callable[..., Val]) -> Val:
        """``call`` of vectors of one size, of at most 512 bits at a time."""
        ty = values[0].type
        if size_of(ty) <= 64:
            return call(*values)
        halves = ([self.shuffle(x, x, part) for x in values] for part in _halves(ty.count))
        return self.shuffle(*(self._by_halves(half, call) for half in halves), range(ty.count))

    def intel(self, name: str, ty: ir.Type, args: Sequence[ir.Value]) -> Val:
        fn = self._declare(f"llvm.x86.avx512.{name}", ty, [arg.type for arg in args])
        return Val(self, self.b.call(fn, args))

    def splat(self, value: Val, lanes: int) -> Val:
        if lanes == 1:
            return value
        return Val(self, self.b.splat(value.v, lanes))

    def shuffle(self, a: Val, b: Val, lanes: Sequence[int]) -> Val:
        return Val(self, self.b.shuffle(a.v, b.v, lanes))

    def joined(self, parts: Sequence[Val]) -> Val:
        """The lanes of 1, 2, 4, ... vectors of one size in one."""
        while len(parts) > 1:
            parts = [self.shuffle(a, b, range(2 * a.type.count)) for a, b in zip(parts[::2], parts[1::2])]
        return parts[0]

    def extract(self, vec: Val, lane) -> Val:
        index = lane.v if isinstance(lane, Val) else CONSTANTS.get(I32, lane)
        return Val(self, self.b.extract_element(vec.v, index))

    def insert(self, vec: Val, value: Val, lane: int) -> Val:
        return Val(self, self.b.insert_element(vec.v, value.v, CONSTANTS.get(I32, lane)))

    def bitcast(self, value: Val, ty: ir.Type) -> Val:
        return Val(self, self.b.bitcast(value.v, ty))

    def convert(self, value: Val, op: str, ty: ir.Type) -> Val:
        """``op`` is an LLVM cast: ``sext zext trunc sitofp uitofp fptosi fpext fptrunc``."""
        return Val(self, getattr(self.b, op)(value.v, ty))

    def lane_mask(self, count: Val, lanes: int, first: int = 0) -> Val:
        """Mask whose lane ``l`` is set when ``first + l < count``."""
        if lanes not in (8, 16, 32):
            index = self.vector(I64, [first + l for l in range(lanes)])
            return index < self.splat(count, lanes)
        # From the bits of a number: LLVM would do a comparison again in each turn of a loop that uses the mask.
        some = self.min(self.max(count - first, 0), lanes)
        bits = self.convert((self.i64(1) << some) - 1, "trunc", ir.IntType(lanes))
        return self.bitcast(bits, vector_of(I1, lanes))

    def load_masked(self, ty: ir.VectorType, addr: Val, mask: Val) -> Val:
        """Lanes that the mask clears are zero and are not read."""
        args = [self.b.inttoptr(addr.v, PTR), mask.v, CONSTANTS.get(ty, None)]
        fn = self._declare(f"llvm.masked.load.{_suffix(ty)}.p0", ty, [a.type for a in args])
        return Val(self, self.b.call(fn, args))

    def store_masked(self, value: Val, addr: Val, mask: Val) -> None:
        args = [value.v, self.b.inttoptr(addr.v, PTR), mask.v]
        fn = self._declare(f"llvm.masked.store.{_suffix(value.type)}.p0", VOID, [a.type for a in args])
        self.b.call(fn, args)

    def _pointers(self, base: Val, offsets: Val) -> ir.Value:
        count = offsets.type.count
        total = self.splat(base, count) + offsets
        return self.b.inttoptr(total.v, vector_of(PTR, count))

    def gather(self, elem: ir.Type, base: Val, offsets: Val, mask: Val) -> Val:
        """Lane ``l`` reads the element at ``base + offsets[l]`` (bytes) where the mask is set, else zero."""
        ty = vector_of(elem, offsets.type.count)
        args = [self._pointers(base, offsets), mask.v, CONSTANTS.get(ty, None)]
        name = f"llvm.masked.gather.{_suffix(ty)}.v{ty.count}p0"
        return Val(self, self.b.call(self._declare(name, ty, [a.type for a in args]), args))

    def scatter(self, value: Val, base: Val, offsets: Val, mask: Val) -> None:
        args = [value.v, self._pointers(base, offsets), mask.v]
        name = f"llvm.masked.scatter.{_suffix(value.type)}.v{value.type.count}p0"
        self.b.call(self._declare(name, VOID, [a.type for a in args]), args)

    # -- atomics ---------------------------------------------------------------------------------------------
    def atomic_add(self, addr: Val, value) -> Val:
        """Returns the old int64."""
        return Val(self, self.b.atomic_rmw("add", self._pointer(addr), self.i64(value).v, "seq_cst"))

    def atomic_swap(self, addr: Val, value) -> Val:
        return Val(self, self.b.atomic_rmw("xchg", self._pointer(addr), self.i64(value).v, "seq_cst"))

    def atomic_load(self, addr: Val) -> Val:
        return Val(self, self.b.load_atomic(self._pointer(addr), "seq_cst", 8, typ=I64))

    def atomic_store(self, value, addr: Val) -> None:
        self.b.store_atomic(self.i64(value).v, self._pointer(addr), "seq_cst", 8)
