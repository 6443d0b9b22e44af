"""The constants of the cost model on this machine: measured at its first plan, then read from the cache folder.

One file for each CPU and instruction set, in the form of `kernels.diskcache`; whoever stores first wins, so that all
processes plan with the same constants. Where they cannot be stored, a typical machine is used: two processes that
measured for themselves might plan differently.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable

import numpy as np

from . import config
from .cost import CONSTANTS, Machine, measured_machine, typical_machine
from .executor import bind
from .expr import parse
from .kernels import diskcache
from .kernels.isa import ISA, active_isa
from .planners import objective
from .planners.build import build_plan
from .planners.objective import TimeObjective
from .planners.order import Order
from .planners.request import PlanRequest

_METHOD = 4  # of measuring: another one measures anew
_RUNS, _CALLS = 15, 200  # of a small plan: 15 runs of 0.1 ms or less
_STEPS = 9  # of the longer one of two plans, whose difference is what steps cost
_SHAPE, _SHARED_CALLS = (512, 256), 20  # of a matrix in the second cache, times a vector: some 10 µs on one thread
_MET = 0.9  # of that, from which on two threads have not met

_known: dict[str, Machine] = {}


def machine(isa: ISA) -> Machine:
    """What plans for ``isa``, an instruction set of this machine, are made with; the same in every process."""
    if not config.get("EINSUM_ENGINE_MEASURE"):
        return _typical(isa)
    found = _known.get(isa.name)
    # Two threads that come here at once find the same: what the first one stored.
    return _known.setdefault(isa.name, _find(isa)) if found is None else found


@lru_cache(maxsize=8)
def _typical(isa: ISA) -> Machine:
    return typical_machine(isa.name, isa.vector_bits, isa.fma)


def _find(isa: ISA) -> Machine:
    path = _file(isa)
    constants = _parsed(diskcache.read(path))
    if constants is None and _writable(path.parent):
        constants = _parsed(diskcache.write_once(path, _text(_measure(isa))))
    return _typical(isa) if constants is None else measured_machine(_typical(isa), constants)


def _file(isa: ISA) -> Path:
    kind = hashlib.sha256(f"{_METHOD} {config.cpu_name()}".encode()).hexdigest()[:16]
    return config.cache_dir() / "machine" / f"{isa.name}-{kind}"


def _writable(folder: Path) -> bool:
    """Whether it is worth measuring: what cannot be stored is not used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _text(constants: dict[str, float]) -> bytes:
    return "".join(f"{name} {constants[name]!r}\n" for name in CONSTANTS).encode()


def _parsed(body: bytes | None) -> dict[str, float] | None:
    """The constants in a stored text; None where it has not all of them, as positive numbers."""
    try:
        pairs = [line.split() for line in (body or b"").decode().splitlines()]
        constants = {name: float(value) for name, value in pairs}
    except ValueError:
        return None
    whole = constants.keys() == set(CONSTANTS) and all(0 < value < float("inf") for value in constants.values())
    return constants if whole else None


def time_objective(dtype: Any = "float64", *, threads: int | None = None) -> TimeObjective:
    """The time that the engine predicts for a contraction in ``dtype`` on this machine, as what a search minimises.

    ``minimize=`` takes it: that of `einsum`, `compile` and `contract_path`, of cotengra's optimisers
    (``HyperOptimizer`` and its refinements), and of opt_einsum's ``DynamicProgramming``. ``threads`` as in `einsum`.

    >>> time_objective("complex64", threads=1).dtype
    'complex64'
    """
    return objective.time_objective(dtype, threads, machine(active_isa()))


# -- measuring ---------------------------------------------------------------------------------------------------
def _measure(isa: ISA) -> dict[str, float]:
    """`CONSTANTS`, in some 40 ms after the few kernels involved are there."""
    from .kernels import calibrate

    short, long = (_best(_chain(isa, steps), _CALLS) for steps in (1, _STEPS))
    step = max((long - short) / (_STEPS - 1), 1e-9)
    found = {"step_seconds": step, "call_seconds": max(short - step, 1e-9), "meeting_seconds": _meeting(isa)}
    return calibrate.quick_rates(isa) | found


def _chain(isa: ISA, steps: int) -> Callable[[], object]:
    """Products of ``steps + 1`` matrices of 2 by 2: arithmetic of nanoseconds."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    terms = [letters[i : i + 2] for i in range(steps + 1)]
    return _call(isa, f"{','.join(terms)}->a{terms[-1][1]}", [np.eye(2)] * len(terms))


def _meeting(isa: ISA) -> float:
    """Seconds that a step takes besides its half if two threads share it.

    The step is a matrix times a vector, which is done in the same way however many do it. Nothing is known, and a typical
    machine is as good a guess as any, where there is one core, where no thread can be started, and where the step takes as
    long as on one thread: the second one was busy, or came when all was done."""
    typical = _typical(isa).meeting_seconds
    if config.threads(None) < 2:
        return typical
    matrix = np.ones(_SHAPE)
    try:
        alone, shared = (_best(_call(isa, "ab,b->a", [matrix, matrix[0]], n), _SHARED_CALLS) for n in (1, 2))
    except RuntimeError:  # can't start new thread
        return typical
    return max(shared - alone / 2, 1e-9) if shared < _MET * alone else typical


def _best(call: Callable[[], object], calls: int) -> float:
    """Seconds of one of so many calls, in the best of some runs."""
    return min(_timed(call, calls) for _ in range(_RUNS)) / calls


def _timed(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start


def _call(isa: ISA, text: str, arrays: list[np.ndarray], threads: int = 1) -> Callable[[], object]:
    """A call of a plan from left to right, whose steps ``threads`` share however short they are."""
    expr = parse(text, [each.shape for each in arrays])
    left_to_right = ((0, 1), *[(0, rest) for rest in range(len(arrays) - 2, 0, -1)])
    request = PlanRequest(
        expr=expr,
        dtypes=("float64",) * len(arrays),
        strides=tuple([each.strides for each in arrays]),
        out_strides=None,
        dtype="float64",
        isa=isa.name,
        order=Order(path=left_to_right, flops=1, largest=1, optimizer="left-to-right"),
        threads=threads,
    )
    native = bind(build_plan(request, replace(_typical(isa), meeting_seconds=1e-9)))
    entry, out = native.entry, np.empty([expr.sizes[index] for index in expr.output])
    # Without an entry on this Python a call costs more, and that is what is measured then.
    return (lambda: entry(*arrays)) if entry is not None else (lambda: native.run(arrays, out))
