"""Programs: typed, in single assignment, frozen, equal and hashable by structure.

>>> build = Builder()
>>> x = build.input(Aval((3,), np.dtype("float32")))
>>> (y,) = build.emit("mul", (x, x))
>>> program = build.finish([x], [y])
>>> print(program.show())
program(%0: float32[3]) {
  %1: float32[3] = mul %0 %0
  return %1
}
>>> program.eval(np.array([1, 2, 3], "f4"))
(array([1., 4., 9.], dtype=float32),)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .avals import Aval
from .errors import EngineError, EngineProgramError, EngineTypeError, EngineValueError
from .ops import OPS
from .records import hashed_once
from .views import View

AROUND = 2  # equations shown before and after one that is wrong
SHOWN = 8  # elements of a constant that are printed


@dataclass(frozen=True)
class Var:
    """A value of a program: numbers count from 0 in order of definition."""

    number: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def aval(self) -> Aval:
        return Aval(self.shape, self.dtype)

    def __hash__(self) -> int:
        return self.number  # equal ones have it in common, and all others of a program another one

    def __str__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True)
class Literal:
    """A scalar in the program's text, by its bits: NaN equals itself, and 0.0 is not -0.0."""

    bits: bytes
    dtype: np.dtype

    @staticmethod
    def of(value: Any, dtype: np.dtype) -> Literal:
        """``value`` in a dtype that holds it; `EngineValueError` for an integer that does not fit."""
        dtype = np.dtype(dtype)
        try:
            return Literal(np.array(value, dtype=dtype).tobytes(), dtype)
        except OverflowError:
            raise EngineValueError(f"the integer {value} does not fit {dtype}") from None

    @property
    def value(self) -> np.generic:
        return np.frombuffer(self.bits, self.dtype)[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def aval(self) -> Aval:
        return Aval((), self.dtype)

    def __str__(self) -> str:
        return f"{self.value.item()}:{self.dtype}"


@dataclass(frozen=True)
class Const:
    """An array that a program holds, compared by content; C order, read-only."""

    data: bytes
    shape: tuple[int, ...]
    dtype: np.dtype

    @staticmethod
    def of(array: np.ndarray) -> Const:
        native = np.asarray(array, dtype=array.dtype.newbyteorder("="))
        return Const(native.tobytes(), native.shape, native.dtype)

    @property
    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)

    def __str__(self) -> str:
        if self.array.size <= SHOWN:
            return str(self.array.tolist())
        return f"sha256:{hashlib.sha256(self.data).hexdigest()[:12]}"


Atom = Var | Literal


@dataclass(frozen=True)
class Eqn:
    """``outputs = op inputs``; ``params`` are sorted pairs. ``where``, the source line, is no part of its identity."""

    op: str
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    params: tuple[tuple[str, Any], ...] = ()
    where: str = field(default="", compare=False)

    @property
    def named(self) -> dict[str, Any]:
        return dict(self.params)

    def programs(self) -> list[tuple[str, Program]]:
        """The programs among the parameters."""
        return [(name, value) for name, value in self.params if isinstance(value, Program)]

    def __str__(self) -> str:
        left = ", ".join(f"{var}: {var.aval}" for var in self.outputs)
        plain = [f"{name}={_text(value)}" for name, value in self.params if not isinstance(value, Program)]
        shown = f" {{{', '.join(plain)}}}" if plain else ""
        return " ".join([f"{left} = {self.op}", *map(str, self.inputs)]) + shown


def _text(value: Any) -> str:
    return str(value) if isinstance(value, (View, np.dtype)) else repr(value).replace(" ", "")


@dataclass(frozen=True)
class Link:
    """An edge of the view tree, as tracing saw it: what the RFC's `view` and `copy` say before they are lowered.

    ``event``: ``view`` (the user's code took a view) or ``copy`` (it wrote to one). ``version`` is the root's value,
    after the write for ``copy``; ``root`` numbers the roots of the trace; ``value`` is what was written.
    """

    event: str
    root: int
    version: Atom
    view: View
    value: Atom | None = None
    where: str = ""

    def __str__(self) -> str:
        written = "" if self.value is None else f" <- {self.value}"
        return f"{self.event} root{self.root} {self.version} {self.view}{written}"


@hashed_once
@dataclass(frozen=True)
class Program:
    """``inputs`` to ``outputs`` through ``eqns``; ``consts`` are values that it holds. ``links`` is for the listing."""

    inputs: tuple[Var, ...]
    outputs: tuple[Atom, ...]
    eqns: tuple[Eqn, ...]
    consts: tuple[tuple[Var, Const], ...] = ()
    links: tuple[Link, ...] = field(default=(), compare=False)

    def show(self, where: bool = False) -> str:
        """One line per equation, the same text for equal programs; ``where`` adds the source lines."""
        return "\n".join(self._lines(where))

    __str__ = show

    def _lines(self, where: bool = False) -> Iterator[str]:
        yield f"program({', '.join(f'{var}: {var.aval}' for var in self.inputs)}) {{"
        for var, const in self.consts:
            yield f"  {var}: {var.aval} = const {const}"
        for eqn in self.eqns:
            yield f"  {eqn}{f'  # {eqn.where}' if where and eqn.where else ''}"
            for name, program in eqn.programs():
                first, *rest = program._lines(where)
                yield f"    {name} = {first}"
                yield from (f"    {line}" for line in rest)
        yield f"  return {', '.join(map(str, self.outputs))}"
        yield "}"

    def check(self) -> Program:
        """This program, if it keeps the rules of the IR: each value is assigned once, before it is used, and has the
        aval that its primitive's rule gives; the programs inside it keep them too.

        Raises `EngineProgramError` naming the equation and its values, with the equations around it.
        """
        known: dict[Var, Aval] = {}
        for var in (*self.inputs, *(var for var, _ in self.consts)):
            if any(var.number == other.number for other in known):
                raise self._error(None, f"{var} is defined twice, among inputs and constants")
            known[var] = var.aval
        for var, const in self.consts:
            if var.aval != Aval(const.shape, const.dtype):
                raise self._error(None, f"{var}: {var.aval} holds a constant {Aval(const.shape, const.dtype)}")
        numbers = {var.number for var in known}
        for at, eqn in enumerate(self.eqns):
            self._check_eqn(at, eqn, known)
            for var in eqn.outputs:
                if var.number in numbers:
                    raise self._error(at, f"{var} is assigned a second time")
                numbers.add(var.number)
                known[var] = var.aval
        for atom in self.outputs:
            if isinstance(atom, Var) and atom not in known:
                raise self._error(len(self.eqns), f"the output {atom}: {atom.aval} is not defined")
        return self

    def _check_eqn(self, at: int, eqn: Eqn, known: dict[Var, Aval]) -> None:
        row = OPS.get(eqn.op)
        if row is None:
            raise self._error(at, f"there is no primitive {eqn.op!r}")
        if row.operands not in (None, len(eqn.inputs)):
            raise self._error(at, f"{eqn.op} takes {row.operands} operands, not {len(eqn.inputs)}")
        for atom in eqn.inputs:
            if isinstance(atom, Var) and atom not in known:
                like = next((var for var in known if var.number == atom.number), None)
                what = "not defined before it is used" if like is None else f"defined as {like.aval}, not {atom.aval}"
                raise self._error(at, f"{atom} is {what}")
        for name, program in eqn.programs():
            try:
                program.check()
            except EngineProgramError as error:
                raise self._error(at, f"program {name}: {error}") from None
        try:
            found = row.rule(*(atom.aval for atom in eqn.inputs), **eqn.named)
        except (EngineError, TypeError, ValueError, IndexError, AttributeError) as error:
            operands = ", ".join(f"{atom}: {atom.aval}" for atom in eqn.inputs)
            raise self._error(at, f"{error} (operands {operands})") from None
        made = tuple(var.aval for var in eqn.outputs)
        if made != found:
            raise self._error(
                at, f"it has ({', '.join(map(str, made))}), the rule gives ({', '.join(map(str, found))})"
            )

    def _error(self, at: int | None, message: str) -> EngineProgramError:
        lines = [f"      {eqn}" for eqn in self.eqns] + [f"      return {', '.join(map(str, self.outputs))}"]
        if at is None:
            return EngineProgramError(f"{message}\n      {next(self._lines())}")
        lines[at] = f"   -> {lines[at].strip()}"
        shown = lines[max(at - AROUND, 0) : at + AROUND + 1]
        line = f" (from {self.eqns[at].where})" if at < len(self.eqns) and self.eqns[at].where else ""
        return EngineProgramError(f"equation {at}{line}: {message}\n" + "\n".join(shown))

    def eval(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """The results for these inputs by the NumPy meaning of each primitive: this defines the program.

        Results are fresh arrays in C order; no input is written. Raises where an input has another shape or dtype.
        """
        values: dict[int, np.ndarray] = {var.number: const.array for var, const in self.consts}
        if len(arrays) != len(self.inputs):
            raise EngineValueError(f"the program has {len(self.inputs)} inputs, {len(arrays)} arrays were given")
        for position, (var, array) in enumerate(zip(self.inputs, arrays)):
            given = np.asarray(array)
            if given.shape != var.shape or given.dtype != var.dtype:
                raise EngineTypeError(f"input {position} is {Aval(given.shape, given.dtype)}, not {var.aval}")
            values[var.number] = given

        def value(atom: Atom) -> np.ndarray:
            return values[atom.number] if isinstance(atom, Var) else np.asarray(atom.value)

        for eqn in self.eqns:
            found = OPS[eqn.op].numpy(*map(value, eqn.inputs), **eqn.named)
            results = found if isinstance(found, tuple) else (found,)
            for var, result in zip(eqn.outputs, results, strict=True):
                values[var.number] = np.asarray(result)
        return tuple(np.array(value(atom), order="C") for atom in self.outputs)


class Builder:
    """Makes a `Program`, one equation after the other."""

    def __init__(self) -> None:
        self._count = 0
        self._eqns: list[Eqn] = []
        self._consts: dict[Const, Var] = {}
        self.links: list[Link] = []

    def _var(self, aval: Aval) -> Var:
        self._count += 1
        return Var(self._count - 1, aval.shape, aval.dtype)

    def input(self, aval: Aval) -> Var:
        """A value that is given; `finish` puts the inputs into their order."""
        return self._var(aval)

    def const(self, array: np.ndarray) -> Var:
        """A value that the program holds; equal ones are held once."""
        const = Const.of(array)
        if const not in self._consts:
            self._consts[const] = self._var(Aval(const.shape, const.dtype))
        return self._consts[const]

    def emit(self, op: str, inputs: Sequence[Atom], where: str = "", **params: Any) -> tuple[Var, ...]:
        """Append an equation; its results, by the primitive's rule, which may raise."""
        avals = OPS[op].rule(*[atom.aval for atom in inputs], **params)
        outputs = tuple([self._var(aval) for aval in avals])
        self._eqns.append(Eqn(op, tuple(inputs), outputs, tuple(sorted(params.items())), where))
        return outputs

    def source(self, atom: Atom) -> Eqn | None:
        """The equation that makes a value; None of inputs, constants and literals."""
        return next((eqn for eqn in reversed(self._eqns) if atom in eqn.outputs), None)

    def finish(self, inputs: Sequence[Var], outputs: Sequence[Atom]) -> Program:
        """The program, values numbered from 0: inputs, constants, then results in order.

        Two that were built alike are equal.
        """
        ordered = [*inputs, *self._consts.values(), *[var for eqn in self._eqns for var in eqn.outputs]]
        if [var.number for var in ordered] == list(range(len(ordered))):
            consts = tuple([(var, const) for const, var in self._consts.items()])
            return Program(tuple(inputs), tuple(outputs), tuple(self._eqns), consts, tuple(self.links))
        found = {var.number: Var(number, var.shape, var.dtype) for number, var in enumerate(ordered)}

        def fresh(atom: Any) -> Any:
            return found[atom.number] if isinstance(atom, Var) else atom

        def all_fresh(atoms: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(map(fresh, atoms))

        return Program(
            inputs=all_fresh(inputs),
            outputs=all_fresh(outputs),
            eqns=tuple([Eqn(e.op, all_fresh(e.inputs), all_fresh(e.outputs), e.params, e.where) for e in self._eqns]),
            consts=tuple([(fresh(var), const) for const, var in self._consts.items()]),
            links=tuple([replace(k, version=fresh(k.version), value=fresh(k.value)) for k in self.links]),
        )
