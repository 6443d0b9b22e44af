"""What a fused kernel computes, as data: scalar operations on the elements of its operands, and reductions of results.

A `Structure` is hashable and knows nothing of shapes, strides or the number of loops. Its kernel is called by a digest
of it; `find` gives the structure back, in this process or, through the disk cache, in another.

>>> g = Graph(("float32", "float32"))
>>> s = g.structure(g.op("exp", g.op("sub", 0, 1)))
>>> s.text()
'float32 float32; sub 0 1 float32; exp 2 float32; -> 3'
>>> parse(s.text()) == s
True
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Sequence

from .. import config
from ..errors import EngineValueError
from ..records import hashed_once
from . import diskcache
from .cpu.storage import STORAGES

FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
STORED = ("float16", "bfloat16")  # converted to and from, never computed with
REAL = FLOATS + INTEGERS
NUMBERS = REAL + COMPLEX
ALL = (*NUMBERS, "bool")
PARTS = {"complex64": "float32", "complex128": "float64"}
MAX_OPERANDS = 32
LONG = 20  # the cost from which a scalar operation is a long one
DIVISORS = {32: (2.0**-60, 2.0**60), 64: (2.0**-500, 2.0**500)}  # with a finite ``inverse``, by bits: least, largest


@dataclass(frozen=True, kw_only=True)
class ScalarOp:
    """One scalar operation: how many arguments, all of one dtype out of ``dtypes``, and what results: the same dtype,
    a dtype by name, or the ``"part"`` of a complex dtype; ``cost``: about how many instructions a vector takes."""

    arity: int
    dtypes: tuple[str, ...]
    result: str = "same"
    cost: int = 1


def _table() -> dict[str, ScalarOp]:
    rows: dict[str, ScalarOp] = {}

    def add(names: str, arity: int, dtypes: tuple[str, ...], result: str = "same", cost: int = 1) -> None:
        rows.update({name: ScalarOp(arity=arity, dtypes=dtypes, result=result, cost=cost) for name in names.split()})

    add("exp exp2 expm1 log log2 log10 log1p", 1, FLOATS + COMPLEX, cost=20)
    add("sin cos tan tanh sinh cosh", 1, FLOATS + COMPLEX, cost=20)
    add("arcsin arccos arctan arcsinh arccosh arctanh", 1, FLOATS + COMPLEX, cost=40)
    add("sigmoid erf", 1, FLOATS, cost=20)
    add("cbrt", 1, FLOATS, cost=40)
    add("arctan2", 2, FLOATS, cost=40)
    add("hypot", 2, FLOATS, cost=8)
    add("sqrt", 1, FLOATS + COMPLEX, cost=4)
    add("rsqrt", 1, FLOATS, cost=6)
    add("inverse", 1, FLOATS, cost=6)
    add("floor ceil trunc", 1, FLOATS)
    add("round", 1, FLOATS + COMPLEX)
    add("copysign heaviside nextafter", 2, FLOATS)
    add("signbit", 1, FLOATS, "bool")
    add("neg", 1, NUMBERS)
    add("abs", 1, NUMBERS, "part")
    add("sign", 1, NUMBERS)
    add("conj", 1, COMPLEX)
    add("real imag", 1, COMPLEX, "part")
    add("isnan isinf", 1, FLOATS + COMPLEX, "bool")
    add("not", 1, ("bool",))
    add("invert", 1, (*INTEGERS, "bool"))
    add("bitwise_count", 1, INTEGERS, "uint8")
    add("add sub mul", 2, NUMBERS)
    add("div", 2, FLOATS + COMPLEX, cost=4)
    add("floordiv mod fmod", 2, REAL, cost=16)
    add("pow", 2, NUMBERS, cost=40)
    add("min max", 2, ALL)
    add("eq ne", 2, ALL, "bool")
    add("lt le gt ge", 2, ALL, "bool")
    add("and or xor", 2, (*INTEGERS, "bool"))
    add("shl shr", 2, INTEGERS)
    add("gcd lcm", 2, INTEGERS, cost=40)
    return rows


SCALARS = _table()


def cost_of(op: str) -> int:
    """About how many instructions a vector of a node takes."""
    row = SCALARS.get("div" if op == "quotient" else op)
    return row.cost if row else 1


REDUCTIONS = {"sum": NUMBERS, "prod": NUMBERS, "max": NUMBERS, "min": NUMBERS, "any": ("bool",), "all": ("bool",)}


@dataclass(frozen=True, kw_only=True)
class Node:
    """``args``: numbers of values (inputs come first, then nodes in order). ``op`` is a row of `SCALARS`, or
    ``const`` (``value``: text of a number), ``cast`` (to ``dtype``), ``select`` (condition, where true, where not),
    ``quotient`` (dividend, divisor, and the ``inverse`` of that: a ``div`` that takes less) or ``over``: its argument
    combined over the row by the reduction ``value``, one number for all elements of it."""

    op: str
    args: tuple[int, ...] = ()
    dtype: str
    value: str = ""


@dataclass(frozen=True, kw_only=True)
class Output:
    """A value that is stored, in its own dtype; ``reduce``: a row of `REDUCTIONS`, over the problem's reduced loops."""

    value: int
    reduce: str = ""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One of four outputs, each at every second element of every second row, that together are a checkerboard: where
    it lies, as (rows, elements) from that of the structure that has it, ``stage`` 0 or 1, and what it is.

    Stage 1 reads what stage 0 wrote; what stage 0 reads is what was there before stage 1 wrote. Nothing that a stage
    reads is written in it."""

    row: int
    element: int
    stage: int
    structure: Structure


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Structure:
    """``inputs``: dtypes as they are stored. All values are checked when it is made (EngineValueError).

    ``near``, of a map that is written over what it reads: for each input, its place as (rows, elements) from the
    element that is written, in the same memory; None for an input elsewhere. What is read was there before.

    ``points``: what else is written in the same pass, of two rows and every second element: see `Point`."""

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    near: tuple[tuple[int, int] | None, ...] = ()
    points: tuple[Point, ...] = ()

    def __post_init__(self) -> None:
        for name in self.inputs:
            if name not in STORAGES:
                raise EngineValueError(f"fused kernel: input dtype {name!r} is none of {', '.join(STORAGES)}")
        for number, node in enumerate(self.nodes):
            _check(self, number, node)
        if not self.outputs:
            raise EngineValueError("fused kernel: a structure has at least one output")
        if self.operands > MAX_OPERANDS:
            raise EngineValueError(f"fused kernel: {self.operands} operands, at most {MAX_OPERANDS} are possible")
        for number, out in enumerate(self.outputs):
            if not 0 <= out.value < len(self.inputs) + len(self.nodes):
                raise EngineValueError(f"fused kernel: output {number} is value {out.value}, which does not exist")
            name = self.dtype(out.value)
            if out.reduce and name not in REDUCTIONS.get(out.reduce, ()):
                raise EngineValueError(f"fused kernel: output {number}: no reduction {out.reduce!r} of {name}")

    @property
    def operands(self) -> int:
        return len(self.inputs) + len(self.outputs)

    @property
    def over_rows(self) -> bool:
        """Whether elements depend on all of their row: the problem's first loop."""
        return any(node.op == "over" for node in self.nodes)

    @property
    def divisors(self) -> frozenset[int]:
        """Inputs that a ``quotient`` has as divisors, and as their inverses."""
        values = {a for node in self.nodes if node.op == "quotient" for a in node.args[1:]}
        return frozenset(value for value in values if value < len(self.inputs))

    @property
    def inverses(self) -> frozenset[int]:
        """Inputs that a ``quotient`` has as inverses of its divisor."""
        return frozenset(a for node in self.nodes if node.op == "quotient" for a in node.args[2:] if a < len(self.inputs))

    @property
    def reduces(self) -> bool:
        return any(out.reduce for out in self.outputs)

    def dtype(self, value: int) -> str:
        """Of a value."""
        return self.inputs[value] if value < len(self.inputs) else self.nodes[value - len(self.inputs)].dtype

    @property
    def stored(self) -> tuple[str, ...]:
        """Dtypes of the operands in memory: outputs, then inputs."""
        return (*(self.dtype(out.value) for out in self.outputs), *self.inputs)

    def text(self) -> str:
        """One line that `parse` reads."""
        nodes = "".join(
            " ".join(filter(None, (node.op, *map(str, node.args), node.value, node.dtype))) + "; "
            for node in self.nodes
        )
        outputs = " ".join(f"{out.reduce} {out.value}".strip() for out in self.outputs)
        near = " ".join(["near", *("-" if place is None else "{},{}".format(*place) for place in self.near)])
        text = f"{' '.join(self.inputs)}; {nodes}-> {outputs}" + (f" {near}" if self.near else "")
        return " | ".join([text, *(f"{p.row},{p.element},{p.stage} {p.structure.text()}" for p in self.points)])


def _check(structure: Structure, number: int, node: Node) -> None:
    """EngineValueError unless a node is an operation that exists on the dtypes of its arguments."""
    this = len(structure.inputs) + number
    if bad := [a for a in node.args if not 0 <= a < this]:
        raise EngineValueError(f"fused kernel: value {this} ({node.op}) uses value {bad[0]}, which is not before it")
    dtypes = tuple(structure.dtype(a) for a in node.args)
    if node.dtype != result_dtype(node.op, dtypes, node.dtype):
        expected = result_dtype(node.op, dtypes, node.dtype)
        raise EngineValueError(f"fused kernel: value {this} ({node.op}) is {node.dtype}, but gives {expected}")
    if node.op == "const":
        constant(node.value, node.dtype)
    if node.op == "over" and node.dtype not in REDUCTIONS.get(node.value, ()):
        raise EngineValueError(f"fused kernel: value {this}: no reduction {node.value!r} of {node.dtype}")


@lru_cache(maxsize=4096)
def result_dtype(op: str, dtypes: tuple[str, ...], wanted: str = "") -> str:
    """Dtype of an operation's result; EngineValueError where there is no such operation on such arguments.

    >>> result_dtype("abs", ("complex64",)), result_dtype("lt", ("int8", "int8"))
    ('float32', 'bool')
    """
    given = ", ".join(dtypes)
    if op in ("const", "cast"):
        if wanted not in STORAGES or (op == "const" and wanted in STORED) or len(dtypes) != (op == "cast"):
            raise EngineValueError(f"fused kernel: no {op}({given}) to {wanted!r}")
        return wanted
    if op == "over" and len(dtypes) == 1:
        return dtypes[0]
    if op == "select":
        if len(dtypes) != 3 or dtypes[0] != "bool" or dtypes[1] != dtypes[2]:
            raise EngineValueError(f"fused kernel: select takes (bool, T, T), not ({given})")
        return dtypes[1]
    if op == "quotient" and len(dtypes) == 3:
        return result_dtype("div", dtypes[:2] if dtypes[1] == dtypes[2] in FLOATS else dtypes)
    row = SCALARS.get(op)
    if row is None:
        raise EngineValueError(f"fused kernel: operation {op!r} is none of {', '.join(SCALARS)}, cast, const, select")
    if len(dtypes) != row.arity or len(set(dtypes)) != 1 or dtypes[0] not in row.dtypes:
        raise EngineValueError(f"fused kernel: {op} takes {row.arity} of one of {', '.join(row.dtypes)}, not ({given})")
    return {"same": dtypes[0], "part": PARTS.get(dtypes[0], dtypes[0])}.get(row.result, row.result)


def constant(text: str, dtype: str) -> bool | int | float | complex:
    """The number that a constant's text stands for.

    >>> constant("0x1.8p+0", "float32"), constant("1.0,-inf", "complex64")
    (1.5, (1-infj))
    """
    if dtype == "bool":
        return text == "True"
    if dtype in INTEGERS:
        return int(text)
    real, _, imag = text.partition(",")
    one, two = (float.fromhex(part or "0") for part in (real, imag))
    return complex(one, two) if dtype in COMPLEX else one


class Graph:
    """Builds a structure: `op` adds a node and gives the number of its value; equal nodes are one."""

    def __init__(self, inputs: tuple[str, ...]):
        self.inputs, self.nodes = tuple(inputs), []
        self._known: dict[Node, int] = {}

    def dtype(self, value: int) -> str:
        return self.inputs[value] if value < len(self.inputs) else self.nodes[value - len(self.inputs)].dtype

    def _add(self, node: Node) -> int:
        fresh = len(self.inputs) + len(self.nodes)
        found = self._known.setdefault(node, fresh)
        if found == fresh:
            self.nodes.append(node)
        return found

    def op(self, name: str, *args: int) -> int:
        dtype = result_dtype(name, tuple(self.dtype(a) for a in args))
        return self._add(Node(op=name, args=args, dtype=dtype))

    def cast(self, value: int, dtype: str) -> int:
        if self.dtype(value) == dtype:
            return value
        result_dtype("cast", (self.dtype(value),), dtype)
        return self._add(Node(op="cast", args=(value,), dtype=dtype))

    def over(self, value: int, reduce: str) -> int:
        """A value combined over its row, by a row of `REDUCTIONS`."""
        return self._add(Node(op="over", args=(value,), dtype=self.dtype(value), value=reduce))

    def const(self, value: bool | int | float | complex, dtype: str) -> int:
        result_dtype("const", (), dtype)
        if dtype == "bool" or dtype in INTEGERS:
            text = str(bool(value) if dtype == "bool" else int(value))
        elif dtype in COMPLEX:
            text = f"{complex(value).real.hex()},{complex(value).imag.hex()}"
        else:
            text = float(value).hex()
        return self._add(Node(op="const", dtype=dtype, value=text))

    def structure(self, *outputs: int | tuple[int, str]) -> Structure:
        """Outputs are values, or pairs of a value and its reduction; nodes that no output needs are left out."""
        wanted = [(o, "") if isinstance(o, int) else o for o in outputs]
        first = len(self.inputs)
        needed = {value for value, _ in wanted}
        for number in reversed(range(len(self.nodes))):
            if first + number in needed:
                needed.update(self.nodes[number].args)
        kept = [number for number in range(len(self.nodes)) if first + number in needed]
        place = {n: n for n in range(first)} | {first + old: first + new for new, old in enumerate(kept)}
        nodes = self.nodes
        if len(kept) < len(nodes):
            nodes = [replace(nodes[n], args=tuple(place[a] for a in nodes[n].args)) for n in kept]
        made = tuple(Output(value=place.get(value, value), reduce=reduce) for value, reduce in wanted)
        return Structure(inputs=self.inputs, nodes=tuple(nodes), outputs=made)


def parse(text: str) -> Structure:
    """The structure whose `Structure.text` this is; EngineValueError where it is none."""
    text, *others = text.split(" | ")
    return replace(_parse(text), points=tuple(_point(other) for other in others))


def _point(text: str) -> Point:
    place, _, rest = text.partition(" ")
    row, element, stage = map(int, place.split(","))
    return Point(row=row, element=element, stage=stage, structure=_parse(rest))


def _parse(text: str) -> Structure:
    try:
        head, *middle, tail = text.split(";")
        inputs = tuple(head.split())
        nodes = []
        for line in middle:
            op, *rest, dtype = line.split()
            value = rest.pop() if op in ("const", "over") else ""
            args = tuple(map(int, rest))
            nodes.append(Node(op=op, args=args, dtype=dtype, value=value))
        ends, _, places = tail.partition(" near ")
        near = tuple(_place(text) for text in places.split())
        words = ends.split()[1:]
        outputs, reduce = [], ""
        for word in words:
            if word in REDUCTIONS:
                reduce = word
            else:
                outputs.append(Output(value=int(word), reduce=reduce))
                reduce = ""
        return Structure(inputs=inputs, nodes=tuple(nodes), outputs=tuple(outputs), near=near)
    except (ValueError, IndexError) as error:
        raise EngineValueError(f"no structure of a fused kernel: {text!r} ({error})") from error


def _place(text: str) -> tuple[int, int] | None:
    if text == "-":
        return None
    row, element = map(int, text.split(","))
    return row, element


# -- names ---------------------------------------------------------------------------------------------------------
_known: dict[str, Structure] = {}


# What costs so little that it may be computed for elements that nobody wants.
_LIGHT = {*"const cast select add sub mul neg abs min max eq ne lt le gt ge and or xor not invert shl shr".split()}
_APART_BYTES = 4  # of an element, at least: bytes are stored by mask as slowly as one by one


def goes_apart(structure: Structure) -> bool:
    """Whether its kernel has a loop over elements that are two apart (`fused_abi.U_APART`).

    >>> goes_apart(parse("float64; add 0 0 float64; -> 1")), goes_apart(parse("float64; exp 0 float64; -> 1"))
    (True, False)
    """
    if structure.reduces or any(node.op not in _LIGHT for node in structure.nodes):
        return False
    return all(STORAGES[dtype].itemsize >= _APART_BYTES for dtype in structure.stored)


NEAREST = 2  # elements to a neighbour, at most: those of the smallest vector


def goes_near(structure: Structure) -> bool:
    """Whether the inputs of a structure with `Structure.near` are neighbours that its kernel can find.

    >>> goes_near(parse("float64 float64; add 0 1 float64; -> 2 near 0,-1 1,0"))
    True
    """
    dtype, near = structure.stored[0], structure.near
    places = [place for place in near if place is not None]
    if len(structure.outputs) != 1 or structure.reduces or len(near) != len(structure.inputs) or not places:
        return False
    if dtype not in REAL or STORAGES[dtype].itemsize < _APART_BYTES:
        return False
    if any(structure.inputs[n] != dtype for n, place in enumerate(near) if place is not None):
        return False
    low, high = near_reach(near, 0) or (0, 0)  # of the row itself, all of which is there
    return all(abs(row) <= 1 and -NEAREST <= low <= e <= high <= NEAREST for row, e in places)


def goes_checkered(structure: Structure) -> bool:
    """Whether `Structure.points` make a checkerboard that its kernel can go through in one pass."""
    points = [Point(row=0, element=0, stage=0, structure=structure), *structure.points]
    if sorted((point.row, point.stage) for point in points) != [(0, 0), (0, 1), (1, 0), (1, 1)]:
        return False
    dtype, stages = structure.stored[0], {}
    for point in points:
        if not goes_near(replace(point.structure, points=())) or None in point.structure.near:
            return False
        if point.structure.stored[0] != dtype or abs(point.element) > NEAREST:
            return False
        stages[point.row, point.element % 2] = point.stage
    if len(stages) != 4:
        return False
    reach = {row: row_reach(points, row) for row in (0, 1)}
    for point in points:
        for row, e in point.structure.near:
            row, e = row + point.row, e + point.element
            low, high = reach[row % 2]
            if stages[row % 2, e % 2] == point.stage or not low <= e <= high:
                return False
    return True


def row_reach(points: Sequence[Point], row: int) -> tuple[int, int]:
    """The first element that points of a row write or read in it, and the last, for the first of each."""
    own = [point for point in points if point.row == row]
    shifts = [point.element + e for point in own for r, e in (*point.structure.near, (0, 0)) if r == 0]
    return min(shifts), max(shifts)


def near_reach(near: tuple[tuple[int, int] | None, ...], row: int) -> tuple[int, int] | None:
    """The first and the last shift of elements that is read of a row so far away, 0 too in its own; None: none."""
    shifts = [place[1] for place in near if place is not None and place[0] == row] + [0] * (row == 0)
    return (min(shifts), max(shifts)) if shifts else None


@lru_cache(maxsize=4096)
def name(structure: Structure) -> str:
    """Name of the structure's kernel; `find` knows it from now on."""
    found = f"fused_{hashlib.sha256(structure.text().encode()).hexdigest()[:32]}"
    _known[found] = structure
    return found


def _path(kernel: str) -> Path:
    return config.cache_dir() / "kernels" / "structures" / f"{kernel}.txt"


def remember(kernel: str) -> None:
    """Writes the structure of a kernel to the disk cache, where `find` reads it in other processes."""
    diskcache.write(_path(kernel), _known[kernel].text().encode())


def find(kernel: str) -> Structure:
    """The structure that a kernel is called by; KeyError where neither this process nor the cache has met it."""
    if kernel not in _known:
        data = diskcache.read(_path(kernel))
        structure = parse(data.decode()) if data is not None else None
        if structure is None or name(structure) != kernel:
            raise KeyError(f"no structure is known for kernel {kernel!r}")
    return _known[kernel]
