"""Tracing: arrays that write down what is done to them, as equations of a `Program`.

A `Tracer` is a view of a `Root`, and a root has a *version*: the value that it holds now. Reading a view emits
`access` of the latest version; writing in place emits `assign`, whose result is the root's next version. So every
other view of the root sees the write when it is read next, as in NumPy, and the program has single assignment.

A `Scope` is one program in the making. The branches of `cond` and the programs of `while` have scopes of their own,
which take the roots of the scope around them as inputs when they use them.

Roots are in C order, what NumPy would have in memory often is not, and a reshape that is a view of that memory may be
none of the root. It is a copy then, until that makes a difference: where the function writes or returns it, tracing
notes that it `missed` a view, and the function is traced again with roots that are ``ordered`` as the memory is.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from .avals import Aval, known_dtype
from .devices import device_of, refusal
from .errors import EngineAttributeError, EngineTypeError, EngineValueError
from .ir import Atom, Builder, Link, Literal, Var
from .op_rules import loop_dtypes
from .ops import BY_UFUNC
from .trace_lines import located, placed, source_line
from .trace_memory import numpy_memory, result_memory
from .views import View

_local = threading.local()
# Why what would have to share memory with another array is not written, until it is traced again.
MISSED = "NumPy would share its memory, which is not in C order, with another array; use .copy() before the reshape"


# -- roots and scopes --------------------------------------------------------------------------------------------------
class Root:
    """Memory of a traced function: shape and dtype; what it holds is known to the scopes.

    ``input``: its position among the arrays of the call, or None. ``locked``: why it cannot be written, or "".
    """

    __slots__ = ("shape", "dtype", "input", "locked", "number")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, input: int | None = None, locked: str = "") -> None:
        self.shape, self.dtype, self.input, self.locked = shape, dtype, input, locked
        self.number = -1


class Picked(Root):
    """The part of another view at integers that are traced: read by gather, written by scatter, each time anew."""

    __slots__ = ("base", "indices", "axes")

    def __init__(self, base: Tracer, indices: tuple[Atom, ...], axes: tuple[int, ...]) -> None:
        super().__init__(tuple(n for i, n in enumerate(base.shape) if i not in axes), base.dtype)
        # Roots of their own, so that a branch or loop body that uses the part takes them as inputs.
        self.indices = tuple(fresh(atom) for atom in indices)
        self.base, self.axes = base, axes

    def places(self) -> tuple[Atom, ...]:
        """The indices as values of the current program."""
        return tuple(index.read() for index in self.indices)


class Component(Root):
    """The real or imaginary part of another view: read anew each time, so that it sees later writes."""

    __slots__ = ("base", "name")

    def __init__(self, base: Tracer, name: str) -> None:
        locked = f".{name} of a traced complex array cannot be written: write the complex value"
        super().__init__(base.shape, np.empty(0, base.dtype).real.dtype, locked=locked)
        self.base, self.name = base, name


@dataclass
class Tracing:
    """What the scopes of one traced call share. ``ordered``: roots are laid out as NumPy's memory is; ``missed``: one
    that is not would have had to be; ``roots``: how many there are."""

    ordered: bool = False
    missed: bool = False
    roots: int = 0


class Scope:
    """A program in the making, and the version of each root in it."""

    def __init__(self, parent: Scope | None = None, tracing: Tracing | None = None) -> None:
        self.parent = parent
        self.tracing = parent.tracing if parent else tracing or Tracing()
        self.builder = Builder()
        self.latest: dict[Root, Atom] = {}
        self.captured: dict[Root, Var] = {}
        self.mutated: dict[Root, None] = {}
        self._reads: dict[Any, Atom] = {}

    def add(self, root: Root, atom: Atom) -> None:
        """Make ``root`` known, holding ``atom``."""
        root.number = self.tracing.roots
        self.tracing.roots += 1
        self.latest[root] = atom

    def version(self, root: Root) -> Atom:
        """What the root holds now; a root of a scope around this one becomes an input."""
        if isinstance(root, Picked):
            return self.once("gather", root.base.read(), root.places(), axes=root.axes)
        if isinstance(root, Component):
            return self.once(root.name, root.base.read(), ())
        if root not in self.latest:
            if self.parent is None:
                raise EngineTypeError(
                    "a traced array was used after its function (or branch, or loop body) had returned"
                )
            self.parent.version(root)
            self.latest[root] = self.captured[root] = self.builder.input(Aval(root.shape, root.dtype))
        return self.latest[root]

    def update(self, root: Root, atom: Atom) -> None:
        """The root's next version."""
        if isinstance(root, Picked):
            base = root.base
            base.check_distinct()
            base.write_atom(emit("scatter", base.read(), atom, *root.places(), axes=root.axes))
            return
        self.version(root)
        self.latest[root] = atom
        self.mutated[root] = None

    def read(self, root: Root, view: View) -> Atom:
        """The elements of a view of the root, as they are now."""
        atom = self.version(root)
        return atom if view.is_whole(root.shape) else self.once("access", atom, (), view=view)

    def once(self, op: str, atom: Atom, more: tuple[Atom, ...], **params: Any) -> Atom:
        """The result of a pure equation, emitted where it is not known yet."""
        key = (op, atom, more, tuple(params.items()))
        if key not in self._reads:
            self._reads[key] = emit(op, atom, *more, **params)
        return self._reads[key]

    def const(self, array: np.ndarray) -> Atom:
        """An array that is not traced, as it is at this moment."""
        known_dtype(array.dtype, "an array")
        if array.ndim == 0:
            return Literal.of(array[()], array.dtype.newbyteorder("="))
        return self.builder.const(array)

    def link(self, event: str, tracer: Tracer, value: Atom | None = None) -> None:
        """Note an edge of the view tree for the listing."""
        root = tracer.root
        if root in self.latest:
            link = Link(event, root.number, self.latest[root], tracer.part, value, source_line())
            self.builder.links.append(link)


def current() -> Scope:
    """The innermost scope of this thread."""
    stack = getattr(_local, "scopes", None)
    if not stack:
        raise EngineTypeError("a traced array was used outside the function that is traced")
    return stack[-1]


def tracing() -> bool:
    """Whether this thread traces a function."""
    return bool(getattr(_local, "scopes", None))


@contextmanager
def scoped(scope: Scope) -> Iterator[Scope]:
    """``scope`` is the current one inside."""
    if not hasattr(_local, "scopes"):
        _local.scopes = []
    _local.scopes.append(scope)
    try:
        yield scope
    finally:
        _local.scopes.pop()


def emit(op: str, *atoms: Atom, **params: Any) -> Var:
    """Append an equation with one result to the current program."""
    return emit_all(op, *atoms, **params)[0]


def emit_all(op: str, *atoms: Atom, **params: Any) -> tuple[Var, ...]:
    """Append an equation to the current program; its results."""
    return current().builder.emit(op, atoms, source_line(), **params)


# -- traced arrays -----------------------------------------------------------------------------------------------------
# Filled by the modules that stand on this one: what NumPy's functions do to tracers, and the protocols that do not go
# by function: "ufunc", "get" and "set" an item, "add_at" indices.
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
HANDLERS: dict[str, Callable[..., Any]] = {}


_MAKE = "np.zeros_like(x, shape=...) and np.zeros(..., like=x) of a traced x make an array that it can be written into"
_TABLE = "np.asarray(table, like=i)[i] takes from an array that is not traced by a traced index"
_KEEP = f"keep it an array; .astype converts, np.sqrt takes the place of math.sqrt; {_MAKE}"


class Tracer(np.lib.mixins.NDArrayOperatorsMixin):
    """A view of a root: ``part`` of it. ``memory`` is the view that NumPy would have, in bytes: it decides what a
    reshape is.

    ``scalar``: NumPy would have a scalar here, which nothing mutates. ``locked``: why it cannot be written, or "".
    """

    __slots__ = ("root", "part", "memory", "scalar", "locked")
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 1000
    is_masked = False

    def __init__(self, root: Root, part: View, memory: View, scalar: bool = False, locked: str = "") -> None:
        self.root, self.part, self.memory, self.scalar = root, part, memory, scalar
        self.locked = locked or root.locked

    # -- what is known of it
    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.shape

    @property
    def dtype(self) -> np.dtype:
        return self.root.dtype

    @property
    def ndim(self) -> int:
        return self.part.ndim

    @property
    def size(self) -> int:
        return self.part.size

    @property
    def itemsize(self) -> int:
        return self.root.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise placed(EngineTypeError(f"len() of a traced scalar {Aval((), self.dtype)}, {source_line()}"))
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<traced {Aval(self.shape, self.dtype)}>"

    # -- reading and writing
    def read(self) -> Atom:
        """The value that it has now."""
        return current().read(self.root, self.part)

    def check_writable(self) -> None:
        """Raises `EngineValueError` where NumPy would refuse the write."""
        if self.scalar:
            raise EngineValueError("a scalar cannot be written in place: NumPy's scalars are immutable")
        if locked := self.locked or self.root.locked:  # the root may have been locked since this view of it was made
            current().tracing.missed |= locked == MISSED
            raise EngineValueError(f"the destination cannot be written: {locked}")

    def check_distinct(self) -> None:
        """Raises `EngineValueError` where a write of some elements would be undone by others in the same memory."""
        if not self.part.injective():
            raise EngineValueError("elements of the destination share memory: some of them cannot be written alone")

    def write_atom(self, atom: Atom) -> None:
        """Write a value of this dtype, broadcast to this shape: a new version of the root. Of elements that share memory
        the last one counts: they are those of arguments, which have a root of one axis then."""
        self.check_writable()
        scope = current()
        version = scope.version(self.root)
        if len(self.root.shape) == 1 and not self.part.injective():
            written = emit("scatter", version, atom, scope.builder.const(self.part.offsets()), axes=(0,))
        else:
            written = emit("assign", version, atom, view=self.part)
        scope.update(self.root, written)
        scope.link("copy", self, atom)

    def write(self, value: Any, casting: str = "unsafe") -> None:
        """Write anything that broadcasts to this shape; it is cast by the rule ``casting``."""
        self.check_writable()
        atom = value.read() if isinstance(value, Tracer) else lift(value, self.dtype if weak(value) else None)
        given = np.result_type(self.dtype, value) if weak(value) else atom.dtype
        if not np.can_cast(given, self.dtype, casting):
            raise EngineTypeError(f"cannot cast from {given} to {self.dtype} with casting rule {casting!r}")
        while len(atom.shape) > self.ndim and atom.shape[0] == 1:  # NumPy drops leading axes of size 1
            atom = emit("access", atom, view=View.whole(atom.shape).squeeze([0]))
        self.write_atom(cast_atom(atom, self.dtype))

    def derive(self, change: Callable[[View], View], locked: str = "") -> Tracer:
        """The view that ``change`` makes of this one."""
        view = change(self.part)
        found = Tracer(self.root, view, change(self.memory), self.scalar and not view.shape, locked or self.locked)
        current().link("view", found)
        return found

    # -- protocols of NumPy
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(getattr(x, "is_masked", False) for x in inputs):
            return NotImplemented
        name = numpy_name(ufunc) + ("" if method == "__call__" else f".{method}")
        with located(name, *inputs):
            return HANDLERS["ufunc"](ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = numpy_name(function)
        with located(name, *args):
            found = FUNCTIONS.get(function)
            if found is None:
                raise EngineTypeError(f"{name} is not supported in a traced function")
            return found(*args, **kwargs)

    def __getitem__(self, key: Any) -> Tracer:
        with located("indexing", self):
            return HANDLERS["get"](self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        with located("assignment to an index", self, value):
            HANDLERS["set"](self, key, value)

    def __iter__(self) -> Iterator[Tracer]:
        return iter([self[i] for i in range(len(self))])

    # -- what would need the value
    def _needs_value(self, what: str, hint: str) -> EngineTypeError:
        traced = f"{what} of a traced {Aval(self.shape, self.dtype)}, {source_line()}"
        return placed(EngineTypeError(f"{traced}: the value is not known while the function is traced; {hint}"))

    def __bool__(self) -> bool:
        hint = (
            "use engine.where for a choice between elements, engine.cond for `if`, engine.while_loop for `while`, "
            "np.minimum and np.maximum for min() and max()"
        )
        raise self._needs_value("bool()", hint)

    def __int__(self) -> int:
        raise self._needs_value("int()", "keep it an array, or use engine.while_loop for a count that depends on data")

    def __float__(self) -> float:
        raise self._needs_value("float()", _KEEP)

    def __complex__(self) -> complex:
        raise self._needs_value("complex()", _KEEP)

    def __index__(self) -> int:
        raise self._needs_value("int()", f"shapes and slice bounds are fixed; {_TABLE}")

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        hint = f"np.stack and np.concatenate join traced arrays; {_TABLE}; {_MAKE}"
        raise self._needs_value("conversion to an array", hint)

    def __getattr__(self, name: str) -> Any:
        """Only for what traced arrays lack."""
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(f"a traced {Aval(self.shape, self.dtype)} has no attribute {name!r}, {source_line()}")
        known = f".{name} of a traced {Aval(self.shape, self.dtype)}"
        raise placed(EngineAttributeError(f"{known}, {source_line()}: not supported in a traced function"))

    def item(self, *args: Any) -> Any:
        raise self._needs_value("item()", "keep it an array; engine.cond and engine.while_loop decide by it")

    tolist = item


def weak(value: Any) -> bool:
    """Whether ``value`` is a Python number, whose dtype gives way to that of arrays."""
    return type(value) in (int, float, complex)


def numpy_name(function: Any) -> str:
    """What users call a function: ``np.linalg.svd``; for a ufunc of somebody else its bare name."""
    name = function.__name__
    if isinstance(function, np.ufunc):
        return f"np.{name}" if getattr(np, name, None) is function else name
    return f"{function.__module__}.{name}".replace("numpy.", "np.", 1)


def plain(value: Any) -> np.ndarray:
    """An array, scalar or nested list as an array; arrays of other libraries, which may lie elsewhere, are refused."""
    own = isinstance(value, (np.ndarray, np.generic))
    if not own and (hasattr(type(value), "__dlpack__") or device_of(value) is not None):
        raise EngineTypeError(f"an operand {refusal(value)}")
    return np.asarray(value)


def fresh(atom: Atom, memory: View | None = None) -> Tracer:
    """A new root that holds ``atom``; of rank 0 it is a scalar, as NumPy's functions return."""
    part, scalar = View.whole(atom.shape), not atom.shape
    if memory is None:
        memory = View.whole(atom.shape, atom.dtype.itemsize)
    elif current().tracing.ordered and not memory.is_contiguous(atom.dtype.itemsize):
        axes = sorted(range(memory.ndim), key=lambda axis: -memory.strides[axis])
        atom = emit("access", atom, view=part.transpose(axes))
        part = View.whole(atom.shape).transpose([axes.index(axis) for axis in range(memory.ndim)])
    root = Root(atom.shape, atom.dtype)
    current().add(root, atom)
    return Tracer(root, part, memory, scalar)


def whole_root(root: Root, locked: str = "", memory: View | None = None) -> Tracer:
    """All of a root that is computed from another one."""
    memory = memory if memory is not None else View.whole(root.shape, root.dtype.itemsize)
    return Tracer(root, View.whole(root.shape), memory, locked=locked)


def lift(value: Any, dtype: np.dtype | None = None) -> Atom:
    """A tracer, array, scalar or nested list as a value of the current program; a Python number has this ``dtype``."""
    if isinstance(value, Tracer):
        return value.read()
    if dtype is not None and weak(value):
        return Literal.of(value, dtype)
    return current().const(plain(value))


def as_tracer(value: Any) -> Tracer:
    """``value`` itself where it is traced, else a constant."""
    return value if isinstance(value, Tracer) else fresh(lift(value))


def cast_atom(atom: Atom, dtype: np.dtype) -> Atom:
    """The value in another dtype."""
    if atom.dtype == dtype:
        return atom
    known_dtype(dtype, "the result")
    if isinstance(atom, Literal):
        with np.errstate(all="ignore"):
            return Literal.of(np.asarray(atom.value).astype(dtype)[()], dtype)
    return current().once("cast", atom, (), dtype=np.dtype(dtype))


def given_dtype(value: Any) -> Any:
    """What decides the dtype of a result: a dtype, or the type of a Python number."""
    if weak(value):
        return type(value)
    if isinstance(value, (Tracer, np.ndarray, np.generic)):
        return value.dtype if value.dtype.isnative else value.dtype.newbyteorder("=")
    return plain(value).dtype


def apply_map(
    ufunc: np.ufunc, *operands: Any, dtype: Any = None, name: str = "", casting: str = "same_kind"
) -> Tracer:
    """The map with the meaning of ``ufunc`` (or the map ``name``, with its dtypes), operands cast as NumPy casts."""
    asked = None if dtype is None else np.dtype(dtype)
    loop = loop_dtypes(ufunc, tuple(given_dtype(x) for x in operands), asked, casting)
    for number in loop:
        known_dtype(number, "the result")
    atoms = [cast_atom(lift(x, want), want) for x, want in zip(operands, loop)]
    atom = emit(name or BY_UFUNC[ufunc], *atoms)
    return fresh(atom, result_memory(atom.shape, atom.dtype.itemsize, memories(*operands)))


def memories(*operands: Any) -> list[View]:
    """How those of the operands that are arrays lie in NumPy's memory."""
    arrays = (x for x in operands if isinstance(x, (Tracer, np.ndarray)))
    return [x.memory if isinstance(x, Tracer) else numpy_memory(x) for x in arrays]


# -- functions of NumPy ------------------------------------------------------------------------------------------------
def complete(mine: Callable[..., Any]) -> Callable[..., Any]:
    """``mine``, which refuses the arguments of NumPy's function that it lacks as all that is not supported."""
    signature = inspect.signature(mine)

    @wraps(mine)
    def called(*args: Any, **kwargs: Any) -> Any:
        kwargs = {name: value for name, value in kwargs.items() if value is not np._NoValue}
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise EngineTypeError(f"{error}: not supported in a traced function") from None
        return mine(*args, **kwargs)

    return called


def implements(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function the meaning of NumPy's ``functions`` for tracers; arguments that it lacks are refused."""

    def register(mine: Callable[..., Any]) -> Callable[..., Any]:
        called = complete(mine)
        for function in functions:
            FUNCTIONS[function] = called
        return mine

    return register
