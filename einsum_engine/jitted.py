"""`jit`: a function written with NumPy, traced once per shapes and dtypes, and run as a `Program`."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, update_wrapper
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from . import functions as functions  # what tracing knows of NumPy's functions is registered when they are imported
from .avals import Aval, known_dtype
from .devices import refusal
from .errors import EngineError, EngineTypeError, EngineValueError
from .explain import explain
from .ir import Program, Var
from .locks import anew
from .options import CHECKS, check_flag
from .overlap import is_alone, members_of, overlapping, repeats, span_of
from .passes.pipeline import optimised, selected
from .plan import Plan
from .profile import Profile
from .program_route import NoPlan, ProgramRoute, RunOptions
from .storage import StorageTable
from .trace import MISSED, Component, Root, Scope, Tracer, Tracing, lift, scoped
from .trace_lines import line_of, located, placed
from .trace_masked import Masked
from .trace_memory import numpy_memory
from .traced import Leaf, Traced, inputs_of, quick_of, run, strides_of
from .trees import exactly, flatten, unflatten
from .views import View

QUICK = 8  # native entries that a call tries before it looks at its arguments
BY_VALUE = "._by_value"
DEPTH = 4  # of objects in which a result is searched for traced arrays
CACHE = 64  # programs that one jitted function keeps, unless it is told otherwise


def jit(
    function: Callable[..., Any] | None = None,
    *,
    cache: int = CACHE,
    passes: Sequence[str] | None = None,
    threads: int | None = None,
    profile: bool = False,
) -> Any:
    """``function``, compiled: written with NumPy operations, it is traced for the shapes and dtypes of its arguments.

    Arguments are arrays, or nested tuples, lists and dicts of arrays; everything else (Python numbers, strings, None)
    is a fixed part of the program, which is traced again for another value. Arrays that the body writes in place are
    written for the caller. At most ``cache`` programs are kept; a warning says, once, when the one used longest ago
    is dropped. ``passes`` names those of `passes.pipeline` that are run, () for none; all by default. A call takes at
    most ``threads``; with ``profile`` each is measured, for ``explain`` and ``profiles``.

    Calls raise what NumPy would raise, and an `EngineError` for what cannot be traced (an ``if`` on an array's elements,
    a size that depends on data), which names the operation and the line of the function.

    >>> @jit
    ... def step(a, b):
    ...     a[1:] += b[:-1]
    ...     return a.sum()
    >>> a = np.zeros(3)
    >>> step(a, np.ones(3)), a
    (np.float64(2.0), array([0., 1., 1.]))
    >>> print(step.program(a, a.copy()).show())
    program(%0: float64[3], %1: float64[3]) {
      %2: float64[2] = access %0 {view=([2],[1],1)}
      %3: float64[2] = access %1 {view=([2],[1],0)}
      %4: float64[2] = add %2 %3
      %5: float64[3] = assign %0 %4 {view=([2],[1],1)}
      %6: float64[] = sum %5 {axes=(0,)}
      return %6, %5
    }
    """
    options = {"cache": cache, "passes": passes, "threads": threads, "profile": profile}
    if function is None:
        return lambda found: Jitted(found, **options)
    return Jitted(function, **options)


# One for all functions: what is kept of one changes by one thread at a time. A signal handler that calls a jitted
# function may run within.
_keeping = anew(globals(), "_keeping", threading.RLock)


class Jitted:
    """A function that `jit` has made. ``program`` and ``explain`` show what a call runs."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        cache: int,
        passes: Sequence[str] | None,
        threads: int | None,
        profile: bool,
    ) -> None:
        if not callable(function):
            raise EngineTypeError(f"jit of a {type(function).__name__}: expected a function")
        update_wrapper(self, function)  # first: it copies the attributes of a function, which may be named as ours are
        if cache < 1:
            raise EngineValueError(f"cache={cache}: at least one program is kept")
        self.function = function
        self.passes = selected(passes)
        self.options = RunOptions(
            epilogues="epilogues" in self.passes,
            threads=CHECKS["threads"](threads),
            profile=check_flag("profile")(profile),
        )
        self._size = cache
        self._kept: OrderedDict[Any, Traced] = OrderedDict()
        self._warned = False
        self._renamed: FunctionType | None = None
        self._last: Traced | None = None
        self._quick: tuple[tuple[Callable[..., Any], Traced], ...] = ()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"jit({self.function!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            for quick, traced in self._quick:
                result = quick(*args)
                if result is not NotImplemented:
                    self._last = traced
                    return result
        leaves, tree = flatten((args, kwargs))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self.function(*args, **kwargs)
        traced, arrays = self._traced(leaves, tree)
        result, route = run(traced, arrays, self._name)
        if not kwargs and all(type(arg) is np.ndarray for arg in args):
            self._remember(traced, route)
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as functions are: by name where its module has it under that of its function, as a decorator leaves
        it. Else with its function and options; what was traced is made again. Those of ``__main__`` are `_by_value`,
        but under protocols that would store the name of a part as a part of what has the name."""
        function = self.function
        if _named(self.__module__, self._name) is self:
            if self.__module__ != "__main__" or not isinstance(function, FunctionType) or protocol < 4:
                return self._name
            function = self._by_value
        options = {"cache": self._size, "passes": self.passes}
        options |= {"threads": self.options.threads, "profile": self.options.profile}
        return partial(_unpickled, **options), (function,)

    @property
    def _by_value(self) -> FunctionType:
        """The function under the name of this attribute, where `pickle` finds it. Others, such as cloudpickle in joblib
        and dask, send functions of ``__main__`` by value to processes that have another one, but nothing else."""
        if self._renamed is None:
            f = self.function
            found = FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
            update_wrapper(found, f)
            del found.__wrapped__
            found.__kwdefaults__ = f.__kwdefaults__
            found.__qualname__ += BY_VALUE
            self._renamed = found
        return self._renamed

    @property
    def _name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def _remember(self, traced: Traced, route: ProgramRoute | NoPlan) -> None:
        """Later calls with such arrays begin with the native entry, where there is one."""
        if isinstance(route, ProgramRoute) and route.entry is not None and not route.remembered:
            route.remembered = True
            quick = quick_of(traced, route)
            if quick is not None:
                self._quick = ((quick, traced), *self._quick[: QUICK - 1])

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The program of a call with these arguments; nothing is run. Written inputs are results after the returned."""
        return self._traced(*flatten((args, kwargs)))[0].program

    def plan(self, *args: Any, **kwargs: Any) -> Plan | None:
        """The plan of a call with these arguments; None where the program is interpreted (`explain` says why)."""
        route = self._route(*args, **kwargs)
        return route.plan if isinstance(route, ProgramRoute) else None

    def _route(self, *args: Any, **kwargs: Any) -> ProgramRoute | NoPlan:
        traced, arrays = self._traced(*flatten((args, kwargs)))
        return traced.route(strides_of(inputs_of(traced, arrays)), self._name)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """The stages of the program for these arguments, or of the last call: the view tree as it was traced, the
        program, what each pass made of it, the storage table of its plan and its steps, or why it has none.

        Of a function with ``profile=True`` that was called, steps have measured times, as those of `Compiled.explain`.
        """
        if args or kwargs:
            self._route(*args, **kwargs)
        if self._last is None:
            raise EngineValueError(f"{self._name} was not traced yet: give arguments")
        lines = [explained(self._name, self._last)]
        for route in self._last.routes.values()[-1:]:
            program = self._last.program
            lines += [f"no plan: {route.why}"] if isinstance(route, NoPlan) else _planned(route, program)
        return "\n".join(lines)

    @property
    def profiles(self) -> tuple[tuple[Plan, Profile], ...]:
        """Each plan that calls ran, with what was measured of its steps: empty without ``profile=True`` or calls."""
        with _keeping:
            kept = list(self._kept.values())
        routes = [route for traced in kept for route in traced.routes.values() if isinstance(route, ProgramRoute)]
        return tuple(found for route in routes for found in route.native.profiles())

    def storage(self, *args: Any, **kwargs: Any) -> StorageTable | None:
        """Where the plan for these arguments has the values of the program: what it writes in place, and what it
        copies. None where the program is interpreted, which copies every value."""
        plan = self.plan(*args, **kwargs)
        return None if plan is None else plan.storage

    # -- the cache
    def _traced(self, leaves: list[Any], tree: Any) -> tuple[Traced, list[Any]]:
        """The program for these arguments, and the arrays among them."""
        arrays = [leaf for leaf in leaves if isinstance(leaf, (np.ndarray, np.generic))]
        alone = tuple((at,) for at in range(len(arrays)))
        with located(f"call of {self._name}", *leaves):
            key = (tree, tuple(_leaf_key(leaf, at) for at, leaf in enumerate(leaves)))
            found = self._find((key, alone), lambda: _trace(self, leaves, tree, arrays, alone))
            if found.written:
                groups = overlapping(arrays)
                if groups != alone or any(map(repeats, arrays)):
                    views = tuple(() if is_alone(arrays, group) else span_of(arrays, group)[1:] for group in groups)
                    found = self._find((key, groups, views), lambda: _trace(self, leaves, tree, arrays, groups))
        self._last = found
        return found, arrays

    def _find(self, key: Any, make: Callable[[], Traced]) -> Traced:
        with _keeping:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found  # the last one now
                return found
        found = make()
        with _keeping:
            self._kept[key] = found
            if len(self._kept) > self._size:
                self._drop()
                if not self._warned:
                    self._warned = True
                    told = f"{self._name} was traced for more than {self._size} combinations of shapes, dtypes and "
                    told += "fixed arguments: those used longest ago are dropped (jit(cache=...) keeps more)"
                    warnings.warn(told, stacklevel=4)
        return found

    def _drop(self) -> None:
        """Drop the oldest program, or one that calls do not begin with: these are used without being looked up. Keys are
        not gone through, which hashes them, by the user's code perhaps; those that are put back have arrays alone."""
        quick = {id(traced) for _, traced in self._quick}
        key, dropped = self._kept.popitem(last=False)
        while id(dropped) in quick and len(quick) < len(self._kept):  # there is another one, besides the new one
            self._kept[key] = dropped
            key, dropped = self._kept.popitem(last=False)
        self._quick = tuple(pair for pair in self._quick if pair[1] is not dropped)


def _unpickled(function: Callable[..., Any], **options: Any) -> Jitted:
    """What `Jitted.__reduce_ex__` stored: the function of that name, if it is there, or one by value."""
    name = getattr(function, "__qualname__", "")
    if name.endswith(BY_VALUE):
        found = _named(function.__module__, name.removesuffix(BY_VALUE))
        if isinstance(found, Jitted) and found._by_value is function:
            return found
        function.__qualname__ = name.removesuffix(BY_VALUE)
    return Jitted(function, **options)


def _named(module: str, name: str) -> Any:
    """What a module has under a qualified name; None for nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _leaf_key(leaf: Any, position: int) -> Any:
    name = type(leaf).__name__
    if isinstance(leaf, np.ndarray):
        if type(leaf) not in (np.ndarray, np.memmap):
            raise EngineTypeError(f"argument {position} has type {name}: only plain arrays are traced; use np.asarray")
        order = None if leaf.flags.c_contiguous else leaf.strides
        return ("array", leaf.shape, leaf.dtype, leaf.flags.writeable, order)
    if isinstance(leaf, np.generic):
        return ("scalar", leaf.dtype)
    if any(hasattr(type(leaf), way) for way in ("__array__", "__dlpack__", "__cuda_array_interface__")):
        raise EngineTypeError(f"argument {position} {refusal(leaf)}")
    try:
        hash(0 if isinstance(leaf, slice) else leaf)  # slices have a hash from Python 3.12 on
    except TypeError:
        raise EngineTypeError(
            f"argument {position} has type {name}: arrays of NumPy are traced, and what is a fixed part "
            f"of the program must be hashable"
        ) from None
    return exactly(leaf)


# -- tracing a call ----------------------------------------------------------------------------------------------------
Groups = tuple[tuple[int, ...], ...]


def _trace(jitted: Jitted, leaves: list[Any], tree: Any, arrays: list[Any], groups: Groups) -> Traced:
    _tell_autoray()
    tracing = Tracing()
    try:
        found = _traced_once(jitted, leaves, tree, arrays, groups, tracing)
    except Exception:
        if not tracing.missed:
            raise
    else:
        if not tracing.missed:
            return found
    return _traced_once(jitted, leaves, tree, arrays, groups, Tracing(ordered=True))


def _traced_once(
    jitted: Jitted, leaves: list[Any], tree: Any, arrays: list[Any], groups: Groups, tracing: Tracing
) -> Traced:
    scope = Scope(tracing=tracing)
    roots: list[Root] = []
    inputs: list[Var] = []
    tracers: dict[int, Tracer] = {}
    members: list[tuple[tuple[int, View], ...]] = []
    for group in groups:
        shape, views = members_of(arrays, group, tracing.ordered)
        dtype = known_dtype(arrays[group[0]].dtype, f"array argument {group[0]}")
        roots.append(Root(shape, dtype, input=len(roots)))
        inputs.append(scope.builder.input(Aval(shape, dtype)))
        scope.add(roots[-1], inputs[-1])
        members.append(tuple(zip(group, views)))
        shared = not is_alone(arrays, group, tracing.ordered)
        for at, view in members[-1]:
            tracers[at] = _argument(arrays[at], at, roots[-1], view, shared)
    numbers = iter(range(len(arrays)))
    given = [tracers[next(numbers)] if isinstance(leaf, (np.ndarray, np.generic)) else leaf for leaf in leaves]
    with scoped(scope):
        args, kwargs = unflatten(tree, given)
        with _unwrapped():
            found, result_tree = flatten(jitted.function(*args, **kwargs))
        outputs, result = _results(scope, found, tracers)
        written = []
        for at, root in enumerate(roots):
            if root in scope.mutated:
                written.append((at, len(outputs)))
                outputs.append(scope.version(root))
        source = scope.builder.finish(inputs, outputs)
    program, stages = optimised(source, jitted.passes)
    return Traced(
        program=program,
        source=source,
        stages=tuple(stages),
        tree=result_tree,
        leaves=tuple(result),
        written=tuple(written),
        groups=tuple(members),
        options=jitted.options,
    )


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Errors of others about traced arrays name the user's line.

    NumPy hides what a traced array says of `array[0] = traced` behind an error of its own: here it is raised.
    """
    try:
        yield
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, EngineError) or (type(error) is AttributeError and "traced" in str(error)):
            raise
        if isinstance(error.__cause__, EngineError):
            raise error.__cause__ from None
        if "Tracer" in str(error) or "<traced" in str(error):
            raise placed(EngineTypeError(f"{line_of(error)}: {error}: not supported of a traced array")) from error
        raise


def _tell_autoray() -> None:
    """Lets quimb, cotengra and others that look functions up by the type of an array find NumPy's for tracers."""
    if (autoray := sys.modules.get("autoray")) is not None:
        autoray.register_backend(Tracer, "numpy")


def explained(name: str, traced: Traced) -> str:
    """All stages of a program as text."""
    lines = [f"jit of {name}", "views and writes, as they were traced:", *_links(traced.source, "  ")]
    lines += ["as it was traced:", traced.source.show(where=True)]
    for stage, program in traced.stages:
        lines += [f"after the pass {stage!r}:", program.show()]
    return "\n".join(lines)


def _planned(route: ProgramRoute, program: Program) -> list[str]:
    """The program as it was planned, where planners made something else of it, its storage, and the steps."""
    table = route.plan.storage
    _, profile = next(route.native.profiles(), (None, None))
    copies = [f"  {line}" for line in table.copies()] or ["  none"]
    changed = [] if table.program == program else ["as it is planned:", table.program.show()]
    return [*changed, "storage:", table.show(), "copies:", *copies, explain(route.plan, profile)]


def _links(program: Program, indent: str) -> list[str]:
    """The view and copy events of the RFC, each with its link: the edge from the root and the version."""
    lines = []
    for link in program.links:
        edge = f"link root{link.root} -> {link.view}, version {link.version}"
        lines.append(f"{indent}{link}; {edge}{f'  # {link.where}' if link.where else ''}")
    for eqn in program.eqns:
        for name, inner in eqn.programs():
            found = _links(inner, indent + "  ")
            lines += [f"{indent}in {name} of {eqn.outputs[0] if eqn.outputs else eqn.op}:", *found] if found else []
    return lines


def _argument(array: Any, at: int, root: Root, view: View, shared: bool) -> Tracer:
    if isinstance(array, np.generic):
        return Tracer(root, view, view, scalar=True)
    locked = "" if array.flags.writeable else f"array argument {at} is read-only"
    item = array.dtype.itemsize
    spread = View(view.shape, tuple(s * item for s in view.strides), view.offset * item)
    memory = spread if shared else numpy_memory(array)
    return Tracer(root, view, memory, locked=locked)


def _results(scope: Scope, found: list[Any], tracers: dict[int, Tracer]) -> tuple[list[Any], list[Leaf]]:
    """Outputs of the program, and how the leaves of the result come from them."""
    counts: dict[Root, int] = {}
    for leaf in found:
        if isinstance(leaf, Tracer):
            counts[leaf.root] = counts.get(leaf.root, 0) + 1
    outputs: list[Any] = []
    places: dict[Root, int] = {}
    leaves: list[Leaf] = []
    for leaf in found:
        if isinstance(leaf, Masked):
            raise leaf.refusal("a result")
        if not isinstance(leaf, Tracer):
            leaves.append(Leaf(kind="static", value=_fixed(leaf)))
            continue
        scope.tracing.missed |= leaf.locked == MISSED
        locked = bool(leaf.locked) and not _own_component(leaf, counts)
        sources = [at for at, given in tracers.items() if given.root is leaf.root]
        source = next((at for at in sources if tracers[at].memory == leaf.memory), sources[0] if sources else None)
        if source is not None and not leaf.scalar:
            leaves.append(Leaf(kind="input", at=source, view=_bytes_from(leaf, tracers[source]), locked=locked))
        elif counts[leaf.root] > 1 and leaf.root in scope.latest and not leaf.scalar:
            if leaf.root not in places:
                places[leaf.root] = len(outputs)
                outputs.append(scope.version(leaf.root))
            leaves.append(Leaf(kind="output", at=places[leaf.root], view=leaf.part, locked=locked))
        else:
            leaves.append(Leaf(kind="output", at=len(outputs), scalar=leaf.scalar, locked=locked and not leaf.scalar))
            outputs.append(lift(leaf))
    return outputs, leaves


def _fixed(leaf: Any) -> Any:
    """A result that all calls return: it would be used up by the first one, or show its arrays as they were traced."""
    kind = type(leaf).__name__
    if isinstance(leaf, (Iterator, Awaitable)):
        raise EngineTypeError(f"the result is a {kind}, which can be gone through once: return a list")
    if _holds_traced(leaf, DEPTH):
        raise EngineTypeError(f"the result is a {kind} that holds traced arrays: return these, in tuples, lists, dicts")
    return leaf


def _holds_traced(value: Any, depth: int) -> bool:
    if isinstance(value, Tracer):
        return True
    if not depth or isinstance(value, (type, FunctionType, ModuleType)):
        return False
    return any(_holds_traced(each, depth - 1) for each in gc.get_referents(value))


def _own_component(leaf: Tracer, counts: dict[Root, int]) -> bool:
    """Whether it is a part of a complex array that only the function knows: then NumPy's result can be written."""
    root = leaf.root
    alone = isinstance(root, Component) and root.base.root.input is None and not root.base.locked
    return alone and root.base.root not in counts and counts[root] == 1


def _bytes_from(leaf: Tracer, source: Tracer) -> View:
    """The memory of a view of an argument, its offset in bytes from the first element of the argument."""
    return View(leaf.shape, leaf.memory.strides, leaf.memory.offset - source.memory.offset)
