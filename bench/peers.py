"""The libraries that the engine is compared with: one row each in `PEERS`.

A peer prepares a call for a task: everything that can be done once (parsing, path, compilation, conversion of the
operands to its own arrays) is done there, so that only the contraction is timed. Results must be C-contiguous and
fresh; where a library returns a view or a transposed array, the copy that makes it so is part of the timed call.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from .effort import least_loop_seconds
from .steps import Expression, Path, auto_path, walk

# A step of three operands or more in a path that a library found is one loop, the slower the more indices it has: left
# out where its iterations times the square of the number of operands exceed this.
_MOST_STEP_LOOP = 2e7
# Of a library's own path and ours, the one that costs this many times the other is left out.
_MOST_COST_RATIO = 30


class Unsupported(Exception):
    """A peer that cannot run a task; the message says why."""


class TooSlow(Unsupported):
    """A peer that would take longer than a task has patience for: at least ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not run: at least {seconds:.3g} s")
        self.seconds = seconds


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What a peer is asked for: an explicit expression, operands, and the engine's path.

    A peer of which it is known before that a call takes more than ``patience`` seconds is not run.
    """

    expression: Expression
    arrays: tuple[np.ndarray, ...]
    path: tuple[tuple[int, ...], ...]
    dtype: str
    threads: int = 1
    patience: float = math.inf

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.expression.shapes

    def ascii_eq(self) -> str:
        eq = self.expression.ascii_eq()
        if eq is None:
            raise Unsupported("more than 52 indices")
        return eq

    def multiply_adds(self, path: Path) -> int:
        return sum(step.multiply_adds + step.adds for step in walk(self.expression, path))


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """A prepared contraction: ``function(*args)``; ``to_numpy`` turns its result into an array for the check.

    ``convert`` turns NumPy operands into the library's arrays. ``with_out(out)`` gives the function that writes into
    ``out``, where the library can. ``compiles`` says that the first call does more than later ones;
    ``first`` are the seconds of one that was made.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    convert: Callable[[np.ndarray], Any] = np.asarray
    to_numpy: Callable[[Any], np.ndarray] = np.asarray
    with_out: Callable[[np.ndarray], Callable[..., Any]] | None = None
    variant: str = "own path"
    compiles: bool = False
    first: float = math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """A prepared call that was run once: its seconds, and its result as the library returns it."""

    call: Call
    seconds: float
    result: Any


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One row of the table.

    ``prepare(task, path)`` makes the call; ``find_path(task)`` the library's own path (None: it takes no path).
    ``modules`` must be importable; ``dtypes`` are those it computes itself (None: all). ``loops`` says that it may take
    very long, so that the others go first.
    """

    name: str
    modules: tuple[str, ...]
    prepare: Callable[[Task, Path | None], Call]
    find_path: Callable[[Task], Path] | None = None
    dtypes: tuple[str, ...] | None = None
    loops: bool = False

    def missing(self) -> str | None:
        """The first module that is not installed, or None."""
        return next((name for name in self.modules if importlib.util.find_spec(name) is None), None)

    def versions(self) -> dict[str, str]:
        """Version of each of its packages."""
        return {name: importlib.metadata.version(name) for name in self.modules}

    def trials(self, task: Task, settle: Callable[[], Any] = lambda: None) -> Iterator[Trial]:
        """The prepared calls, on its own path and on ours where they differ, each run once after ``settle()``.

        Raises Unsupported with the reason if there is none.
        """
        if self.dtypes is not None and task.dtype not in self.dtypes:
            raise Unsupported(f"no {task.dtype}")
        made, reasons = 0, []
        for variant, path in self._paths(task, reasons):
            try:
                call = replace(self.prepare(task, path), variant=variant)
                settle()
                trial = run_once(call)
            except TooSlow:
                raise
            except Unsupported as error:
                reasons.append(str(error))
            except Exception as error:  # whatever a library raises is its reason, and the others go on
                reasons.append(f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}")
            else:
                made += 1
                yield trial
        if not made:
            raise Unsupported("; ".join(dict.fromkeys(reasons)))

    def _paths(self, task: Task, reasons: list[str]) -> list[tuple[str, Path | None]]:
        if self.find_path is None or len(task.arrays) <= 2:
            return [("own path", None)]
        ours = binary_steps(task.path, len(task.arrays))
        paths: list[tuple[str, Path | None]] = [("our path", ours)]
        try:
            own = tuple(tuple(sorted(step)) for step in self.find_path(task))
            ratio = task.multiply_adds(own) / max(1, task.multiply_adds(ours))
        except Exception as error:
            reasons.append(f"own path: {type(error).__name__}: {error}")
            return paths
        loop = _longest_loop(task, own)
        if loop > _MOST_STEP_LOOP:
            reasons.append(f"its own path has one loop of {loop:.1e} iterations times squared operands")
            return paths
        if own == tuple(tuple(sorted(step)) for step in ours):
            return [("both paths", ours)]
        if ratio > _MOST_COST_RATIO:
            reasons.append(f"its own path costs {ratio:.0f} times ours")
            return paths
        if ratio < 1 / _MOST_COST_RATIO:
            return [("own path", own)]
        return [("own path", own), *paths]


def _longest_loop(task: Task, path: Path) -> float:
    """Iterations times squared operands of the longest step of three operands or more; 0 without one."""
    wide = [(step, len(step.positions)) for step in walk(task.expression, path) if len(step.positions) > 2]
    return max((step.multiply_adds / (count - 1) * count**2 for step, count in wide), default=0.0)


def binary_steps(path: Path, operands: int) -> tuple[tuple[int, ...], ...]:
    """``path`` without its steps of one operand, which only libraries of ours know.

    >>> binary_steps([(0,), (0, 1)], 2)
    ((0, 1),)
    """
    live, kept, steps = list(range(operands)), list(range(operands)), []
    for number, positions in enumerate(path):
        names = [live[position] for position in positions]
        live = [name for name in live if name not in names]
        if len(names) == 1:
            live.append(names[0])
            continue
        steps.append(tuple(sorted(kept.index(name) for name in names)))
        kept = [name for name in kept if name not in names]
        live.append(operands + number)
        kept.append(operands + number)
    return tuple(steps)


def run_once(call: Call) -> Trial:
    """Run ``call``, and add what it takes to make its result C-contiguous and fresh."""
    for _ in range(1 + call.compiles):
        start = time.perf_counter()
        result = call.function(*call.args)
        seconds = time.perf_counter() - start
    finish = _finisher(result, call.args)
    if finish is None:
        return Trial(call=call, seconds=seconds, result=result)
    start = time.perf_counter()
    result = finish(result)
    seconds += time.perf_counter() - start
    return Trial(call=replace(call, function=_compose(finish, call.function)), seconds=seconds, result=result)


def _compose(finish: Callable[[Any], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: finish(function(*arrays))


def _finisher(result: Any, args: Sequence[Any]) -> Callable[[Any], Any] | None:
    if isinstance(result, np.ndarray):
        if any(np.may_share_memory(result, arg) for arg in args):
            return partial(np.array, order="C")
        return None if result.flags.c_contiguous else np.ascontiguousarray
    if type(result).__module__.partition(".")[0] == "torch":
        if not result.is_contiguous():
            return lambda tensor: tensor.contiguous()
        if any(result.untyped_storage().data_ptr() == arg.untyped_storage().data_ptr() for arg in args):
            return lambda tensor: tensor.clone()
    return None


# --- NumPy -----------------------------------------------------------------------------------------------------


def _numpy_plain(task: Task, path: Path | None) -> Call:
    function = partial(np.einsum, task.ascii_eq())
    _refuse_a_long_loop(task)
    return Call(function=function, args=task.arrays, with_out=lambda out: partial(function, out=out))


def _refuse_a_long_loop(task: Task) -> None:
    least = least_loop_seconds(task.expression, task.arrays)
    if least > task.patience:
        raise TooSlow(least)


def _numpy_path(task: Task) -> Path:
    return tuple(np.einsum_path(task.ascii_eq(), *task.arrays, optimize="greedy")[0][1:])


def _explicit(path: Path | None, task: Task) -> list[Any]:
    steps = [tuple(range(len(task.arrays)))] if path is None else list(path)
    return ["einsum_path", *steps]


def _numpy_optimized(task: Task, path: Path | None) -> Call:
    function = partial(np.einsum, task.ascii_eq(), optimize=_explicit(path, task))
    return Call(function=function, args=task.arrays, with_out=lambda out: partial(function, out=out))


# --- opt_einsum ------------------------------------------------------------------------------------------------


def _opt_einsum_path(task: Task) -> Path:
    return auto_path(task.expression)


def _expression(task: Task, path: Path | None) -> Any:
    import opt_einsum

    optimize = [tuple(range(len(task.arrays)))] if path is None else list(path)
    return opt_einsum.contract_expression(task.expression.eq, *task.shapes, optimize=optimize)


def _opt_einsum_numpy(task: Task, path: Path | None) -> Call:
    if not _is_for_blas(task.expression):
        _refuse_a_long_loop(task)
    function = _expression(task, path)
    return Call(function=function, args=task.arrays, with_out=lambda out: partial(function, out=out))


def _is_for_blas(expression: Expression) -> bool:
    """Whether opt_einsum sends a product of two operands to tensordot; what it does not is one loop of np.einsum."""
    from opt_einsum.blas import can_blas

    terms = list(expression.terms)
    summed = set("".join(terms)) - set(expression.output)
    return len(terms) != 2 or bool(can_blas(terms, expression.output, summed))


# --- PyTorch ---------------------------------------------------------------------------------------------------

_TORCH_DTYPES = (
    *("float32", "float64", "complex64", "complex128", "float16", "bfloat16"),
    *("int8", "int16", "int32", "int64", "uint8"),
)


def _to_torch(array: np.ndarray) -> Any:
    import torch

    if array.dtype.kind == "V":  # bfloat16 has no buffer format: its bits go over as integers
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _from_torch(tensor: Any) -> np.ndarray:
    import torch

    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())


def _torch_call(task: Task, function: Callable[..., Any]) -> Call:
    import torch

    torch.set_num_threads(task.threads)
    args = tuple(map(_to_torch, task.arrays))
    return Call(function=function, args=args, convert=_to_torch, to_numpy=_from_torch)


def _opt_einsum_torch(task: Task, path: Path | None) -> Call:
    return _torch_call(task, _expression(task, path))


def _torch_einsum(task: Task, path: Path | None) -> Call:
    import torch

    # torch.einsum finds its own path through opt_einsum; ours is given to it pair by pair.
    if path is None or path == _opt_einsum_path(task):
        return _torch_call(task, partial(torch.einsum, task.ascii_eq()))
    steps = [(step.positions, _ascii(step.eq)) for step in walk(task.expression, path)]
    return _torch_call(task, partial(_pairwise, torch.einsum, steps))


def _ascii(eq: str) -> str:
    inputs, _, output = eq.partition("->")
    renamed = Expression(terms=tuple(inputs.split(",")), output=output, shapes=()).ascii_eq()
    if renamed is None:
        raise Unsupported("more than 52 indices")
    return renamed


def _pairwise(einsum: Callable[..., Any], steps: Sequence[tuple[tuple[int, ...], str]], *arrays: Any) -> Any:
    live = list(arrays)
    for positions, eq in steps:
        taken = [live[position] for position in positions]
        for position in sorted(positions, reverse=True):
            del live[position]
        live.append(einsum(eq, *taken))
    return live[0]


# --- JAX -------------------------------------------------------------------------------------------------------


def _jax(task: Task, path: Path | None) -> Call:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    optimize = [tuple(range(len(task.arrays)))] if path is None else list(path)
    jitted = jax.jit(lambda *arrays: jnp.einsum(task.expression.eq, *arrays, optimize=optimize))
    args = tuple(jnp.asarray(array) for array in task.arrays)
    return Call(
        function=lambda *arrays: jitted(*arrays).block_until_ready(), args=args, convert=jnp.asarray, compiles=True
    )


# --- TBLIS -----------------------------------------------------------------------------------------------------


def _tblis(task: Task, path: Path | None) -> Call:
    import pytblis

    pytblis.set_num_threads(task.threads)
    function = partial(pytblis.einsum, task.ascii_eq(), optimize=_explicit(path, task), order="C")
    return Call(function=function, args=task.arrays, with_out=lambda out: partial(function, out=out))


# --- cotengra --------------------------------------------------------------------------------------------------


def _cotengra_path(task: Task) -> Path:
    import cotengra

    # As its preset "auto", without the pool of workers that would be forked out of a process full of threads.
    optimizer = cotengra.AutoOptimizer(parallel=False)
    return tuple(cotengra.einsum_tree(task.expression.eq, *task.shapes, optimize=optimizer).get_path())


def _cotengra(task: Task, path: Path | None) -> Call:
    import cotengra

    optimize = "auto" if path is None else [tuple(step) for step in path]
    function = cotengra.einsum_expression(task.expression.eq, *task.shapes, optimize=optimize)
    return Call(function=function, args=task.arrays)


PEERS = (
    Peer(name="numpy", modules=("numpy",), prepare=_numpy_plain, loops=True),
    Peer(name="numpy-optimize", modules=("numpy",), prepare=_numpy_optimized, find_path=_numpy_path),
    Peer(name="opt_einsum", modules=("opt_einsum",), prepare=_opt_einsum_numpy, find_path=_opt_einsum_path, loops=True),
    Peer(
        name="opt_einsum-torch",
        modules=("opt_einsum", "torch"),
        prepare=_opt_einsum_torch,
        find_path=_opt_einsum_path,
        dtypes=_TORCH_DTYPES,
    ),
    Peer(name="torch", modules=("torch",), prepare=_torch_einsum, find_path=_opt_einsum_path, dtypes=_TORCH_DTYPES),
    Peer(name="jax", modules=("jax",), prepare=_jax, find_path=_opt_einsum_path),
    Peer(
        name="tblis",
        modules=("pytblis",),
        prepare=_tblis,
        find_path=_numpy_path,
        dtypes=("float32", "float64", "complex64", "complex128"),
    ),
    Peer(name="cotengra", modules=("cotengra",), prepare=_cotengra, find_path=_cotengra_path),
)


def choose(names: Sequence[str] | None) -> tuple[list[Peer], list[str]]:
    """The installed peers among ``names`` (None: all), and a remark for each that is not installed.

    Raises ValueError for an unknown name, with the names there are.
    """
    from ..errors import EngineValueError

    table = {peer.name: peer for peer in PEERS}
    unknown = [name for name in names or () if name not in table]
    if unknown:
        raise EngineValueError(f"unknown peer {unknown[0]!r}; peers: {', '.join(table)}")
    found, remarks = [], []
    for name in table if names is None else dict.fromkeys(names):
        missing = table[name].missing()
        if missing is None:
            found.append(table[name])
        else:
            remarks.append(f"{name}: left out, {missing} is not installed")
    return found, remarks


def import_all(peers: Sequence[Peer]) -> None:
    """Import every module of ``peers`` now, so that no import falls into a timing."""
    for name in dict.fromkeys(module for peer in peers for module in peer.modules):
        importlib.import_module(name)
