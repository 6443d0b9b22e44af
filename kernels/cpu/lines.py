"""An `ir.IRBuilder` whose instructions are lines of text from the start.

llvmlite keeps an object of many parts for every instruction, finds it a name and puts its text together when the
module is printed: that took as long as LLVM's optimiser does. Nothing here looks at an instruction again, so the
common ones are written at once, and the rest (branches, functions) stays llvmlite's own. Operations on integers that
are constants are folded: offsets into the rows of the step table are most of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Sequence

from llvmlite import ir

PTR = ir.PointerType()
VOID = ir.VoidType()
_I1 = ir.IntType(1)
_COMPARE = {">": "gt", "<": "lt", "==": "eq", "!=": "ne", ">=": "ge", "<=": "le"}
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "or": 0, "xor": 0, "shl": 0, "lshr": 0, "ashr": 0, "sdiv": 1}
_COMMUTE = ("add", "mul", "or", "xor")
_FOLDED = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}


class TextValue(ir.Value):
    """A value that an instruction gives (``reference``), and the text of the instruction."""

    __slots__ = ("type", "reference", "text")

    def __init__(self, ty: ir.Type, reference: str, text: str):
        self.type, self.reference, self.text = ty, reference, text

    def get_reference(self) -> str:
        return self.reference

    def __str__(self) -> str:
        return self.text

    def __format__(self, spec: str) -> str:
        return self.text


@lru_cache(maxsize=1 << 14)
def vector_of(elem: ir.Type, lanes: int) -> ir.VectorType:
    """The same object for the same type: its text is made once."""
    return ir.VectorType(elem, lanes)


class Constants:
    """Constants by type and value: each is made, and printed, once."""

    def __init__(self):
        self._known: dict[tuple[str, str], ir.Constant] = {}

    def get(self, ty: ir.Type, value) -> ir.Constant:
        """``value``: of a scalar, or of all lanes of a vector; None: zero."""
        key = (str(ty), repr(value))  # 0.0, -0.0 and 0 are three constants
        found = self._known.get(key)
        if found is None:
            lanes = isinstance(ty, ir.VectorType) and value not in (None, ir.Undefined)
            found = self._known[key] = ir.Constant(ty, [value] * ty.count if lanes else value)
        return found


CONSTANTS = Constants()


@lru_cache(maxsize=1 << 12)
def _mask(lanes: tuple[int, ...]) -> str:
    if not any(lanes):
        return f"<{len(lanes)} x i32> zeroinitializer"
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


def _folded(op: str, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """What an operation on integers gives without an instruction: on constants, or with one that changes nothing."""
    left, right = _integer(a), _integer(b)
    if right is not None and left is not None and op in _FOLDED:
        half = 1 << (a.type.width - 1)
        return CONSTANTS.get(a.type, (_FOLDED[op](left, right) + half) % (2 * half) - half)
    if right is not None and right == _NEUTRAL.get(op):
        return a
    if left is not None and op in _COMMUTE and left == _NEUTRAL[op]:
        return b
    return None


def _integer(value: ir.Value) -> int | None:
    if type(value) is ir.Constant and type(value.type) is ir.IntType and type(value.constant) is int:
        return value.constant
    return None


class LineBuilder(ir.IRBuilder):
    """Writes instructions at the end of blocks, in the order in which they are asked for."""

    def __init__(self, block: ir.Block):
        super().__init__(block)
        self._count = 0  # of names
        self._slots = 0  # of variables, at the beginning of the first block

    def write(self, ty: ir.Type, text: str) -> TextValue:
        """An instruction that gives a value."""
        self._count += 1
        name = f"%v{self._count}"
        line = TextValue(ty, name, f"{name} = {text}")
        self._insert(line)
        return line

    def do(self, text: str) -> None:
        """An instruction that gives none."""
        self._insert(TextValue(VOID, "", text))

    def slot(self, ty: ir.Type) -> TextValue:
        """Address of a variable."""
        self._count += 1
        name = f"%v{self._count}"
        line = TextValue(PTR, name, f"{name} = alloca {ty}")
        entry = self.function.entry_basic_block
        entry.instructions.insert(self._slots, line)
        self._slots += 1
        if self._block is entry:
            self._anchor += 1
        return line

    # -- memory ----------------------------------------------------------------------------------------------
    def load(self, ptr, name="", align: int | None = None, typ: ir.Type | None = None, volatile=False) -> TextValue:
        aligned = "" if align is None else f", align {align}"
        return self.write(typ, f"load {'volatile ' if volatile else ''}{typ}, ptr {ptr.get_reference()}{aligned}")

    def store(self, value: ir.Value, ptr: ir.Value, align: int | None = None, note: str = "") -> None:
        """``note``: metadata."""
        aligned = "" if align is None else f", align {align}"
        self.do(f"store {value.type} {value.get_reference()}, ptr {ptr.get_reference()}{aligned}{note}")

    def load_atomic(self, ptr: ir.Value, ordering: str, align: int, name: str = "", typ: ir.Type = VOID) -> TextValue:
        return self.write(typ, f"load atomic {typ}, ptr {ptr.get_reference()} {ordering}, align {align}")

    def store_atomic(self, value: ir.Value, ptr: ir.Value, ordering: str, align: int) -> None:
        what = f"{value.type} {value.get_reference()}, ptr {ptr.get_reference()}"
        self.do(f"store atomic {what} {ordering}, align {align}")

    def atomic_rmw(self, op: str, ptr: ir.Value, val: ir.Value, ordering: str, name: str = "") -> TextValue:
        what = f"ptr {ptr.get_reference()}, {val.type} {val.get_reference()}"
        return self.write(val.type, f"atomicrmw {op} {what} {ordering}")

    # -- calls -----------------------------------------------------------------------------------------------
    def call(self, fn: ir.Function, args: Sequence[ir.Value], name: str = "") -> TextValue | None:
        return self.call_as(fn.function_type.return_type, fn.get_reference(), args)

    def call_as(self, ret: ir.Type, function: str, args: Sequence[ir.Value]) -> TextValue | None:
        """Calls what ``function`` refers to: a function, or a pointer to one."""
        passed = ", ".join([f"{a.type} {a.get_reference()}" for a in args])
        text = f"call {ret} {function}({passed})"
        ret = ret.return_type if isinstance(ret, ir.FunctionType) else ret
        return self.do(text) if isinstance(ret, ir.VoidType) else self.write(ret, text)

    # -- the rest of what gives a value ----------------------------------------------------------------------
    def icmp_signed(self, cmpop: str, lhs: ir.Value, rhs: ir.Value, name: str = "") -> TextValue:
        return self._compare("icmp", _COMPARE[cmpop] if cmpop in ("==", "!=") else "s" + _COMPARE[cmpop], lhs, rhs)

    def icmp_unsigned(self, cmpop: str, lhs: ir.Value, rhs: ir.Value, name: str = "") -> TextValue:
        return self._compare("icmp", _COMPARE[cmpop] if cmpop in ("==", "!=") else "u" + _COMPARE[cmpop], lhs, rhs)

    def fcmp_ordered(self, cmpop: str, lhs: ir.Value, rhs: ir.Value, name: str = "", flags=()) -> TextValue:
        return self._compare("fcmp", "o" + _COMPARE[cmpop] if cmpop in _COMPARE else cmpop, lhs, rhs)

    def fcmp_unordered(self, cmpop: str, lhs: ir.Value, rhs: ir.Value, name: str = "", flags=()) -> TextValue:
        return self._compare("fcmp", "u" + _COMPARE[cmpop] if cmpop in _COMPARE else cmpop, lhs, rhs)

    def _compare(self, kind: str, op: str, a: ir.Value, b: ir.Value) -> TextValue:
        ty = vector_of(_I1, a.type.count) if isinstance(a.type, ir.VectorType) else _I1
        return self.write(ty, f"{kind} {op} {a.type} {a.get_reference()}, {b.get_reference()}")

    def select(self, cond: ir.Value, lhs: ir.Value, rhs: ir.Value, name: str = "", flags=()) -> TextValue:
        ty = lhs.type
        text = f"select {cond.type} {cond.get_reference()}, {ty} {lhs.get_reference()}, {ty} {rhs.get_reference()}"
        return self.write(ty, text)

    def extract_element(self, vector: ir.Value, idx: ir.Value, name: str = "") -> TextValue:
        place = f"{idx.type} {idx.get_reference()}"
        return self.write(vector.type.element, f"extractelement {vector.type} {vector.get_reference()}, {place}")

    def insert_element(self, vector: ir.Value, value: ir.Value, idx: ir.Value, name: str = "") -> TextValue:
        what = f"{value.type} {value.get_reference()}, {idx.type} {idx.get_reference()}"
        return self.write(vector.type, f"insertelement {vector.type} {vector.get_reference()}, {what}")

    def splat(self, value: ir.Value, lanes: int) -> TextValue:
        """The scalar in all lanes."""
        ty = vector_of(value.type, lanes)
        one = self.write(ty, f"insertelement {ty} undef, {value.type} {value.get_reference()}, i32 0")
        return self.write(ty, f"shufflevector {ty} {one.reference}, {ty} undef, <{lanes} x i32> zeroinitializer")

    def shuffle(self, a: ir.Value, b: ir.Value, lanes: Sequence[int]) -> TextValue:
        """Lanes of ``a`` and behind them of ``b``, by number."""
        both = f"{a.type} {a.get_reference()}, {b.type} {b.get_reference()}"
        return self.write(vector_of(a.type.element, len(lanes)), f"shufflevector {both}, {_mask(tuple(lanes))}")


def _binary(op: str):
    def method(self: LineBuilder, lhs: ir.Value, rhs: ir.Value, name: str = "", flags=()) -> ir.Value:
        if type(rhs) is ir.Constant or type(lhs) is ir.Constant:
            known = _folded(op, lhs, rhs)
            if known is not None:
                return known
        ty = lhs.type
        return self.write(ty, f"{op} {ty} {lhs.get_reference()}, {rhs.get_reference()}")

    return method


def _cast(op: str):
    def method(self: LineBuilder, value: ir.Value, typ: ir.Type, name: str = "") -> ir.Value:
        if value.type is typ or value.type == typ:
            return value
        return self.write(typ, f"{op} {value.type} {value.get_reference()} to {typ}")

    return method


for _op in ("add", "sub", "mul", "sdiv", "udiv", "srem", "urem", "or", "and", "xor", "shl", "lshr", "ashr"):
    setattr(LineBuilder, _op + "_" * (_op in ("or", "and")), _binary(_op))
for _op in ("fadd", "fsub", "fmul", "fdiv", "frem"):
    setattr(LineBuilder, _op, _binary(_op))
for _op in "trunc zext sext fptrunc fpext bitcast uitofp sitofp fptoui fptosi inttoptr ptrtoint".split():
    setattr(LineBuilder, _op, _cast(_op))
