"""Runs the program of a jitted function by its plan: one native call for each call.

A `ProgramRoute` is made for inputs of certain strides. Where a program has no plan, `NoPlan` says why, and the program
is interpreted (`Program.eval`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import config, measured
from .dtypes import as_numpy
from .executor import NativePlan
from .ir import Program
from .kernels.isa import active_isa
from .memory import empty
from .planners.programs import ProgramRequest, build_program, constants
from .planners.request import NotLowered
from .routes import bound
from .views import View


@dataclass(frozen=True)
class NoPlan:
    """Why a program has no plan: the equation, and what it lacks."""

    why: str


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How programs are run. ``epilogues``: as in `ProgramRequest`; ``threads``: at most so many, None for as many as any
    call takes; ``profile``: calls are measured."""

    epilogues: bool = True
    threads: int | None = None
    profile: bool = False


class ProgramRoute:
    """A bound plan of a program, for native arrays of its shapes and dtypes and of the strides that it was made for.

    ``places``: for each result of the program the number of the array that has it, None for what an input has;
    ``written``: the inputs that have one.
    """

    def __init__(
        self, native: NativePlan, program: Program, places: tuple[int | None, ...], written: tuple[int, ...]
    ) -> None:
        self.native, self.plan, self.places = native, native.plan, places
        self.native.written = written
        # of the dtypes' own descriptors, by which the native entry knows its operands
        self.consts = tuple(const.view(as_numpy(const.dtype.name)) for const in constants(program))
        self._results = [(shape, as_numpy(name)) for name, shape in native.plan.expr.results]
        self._calls = 0
        self.entry: Callable[..., Any] | None = None
        self.remembered = False  # by the function whose program it is

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays of the results that have memory of their own; inputs are written where they belong there.

        The native entry is made at the second call.
        """
        self._calls += self._calls < 2
        if self._calls == 2 and self.entry is None:
            self.entry = self.native.entry
            self._calls = 3
        if self.entry is not None:
            found = self.enter(arrays)
            if found is not None:
                return found
        results = [empty(shape, dtype, beside=arrays) for shape, dtype in self._results]
        first = results[0] if results else _NOTHING
        self.native.run([*arrays, *self.consts, *results[1:]], first)
        return results

    def enter(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """`run` by the native entry; None where the arrays are not what it was made for, or it is in use."""
        more = [empty(shape, dtype, beside=arrays) for shape, dtype in self._results[1:]]
        first = self.entry(*arrays, *self.consts, *more)
        if first is NotImplemented:
            return None
        if not self._results:
            return []
        return [np.asarray(first), *more]

    def quick(self) -> Callable[..., Any] | None:
        """The native entry where it takes the inputs alone and returns all results, else None."""
        plain = len(self._results) == 1 and not self.consts
        return self.entry if plain else None


_NOTHING = np.zeros(1, np.uint8)  # the first result of a program that only writes its inputs


def make_route(
    program: Program,
    written: Sequence[tuple[int, int]],
    strides: tuple[tuple[int, ...], ...],
    name: str,
    options: RunOptions = RunOptions(),
) -> ProgramRoute | NoPlan:
    """The route of a program for inputs of these strides, in bytes.

    ``written``: pairs of an input and the result that is left in its memory.
    """
    isa = active_isa()
    own = [at for at in range(len(program.outputs)) if at not in {output for _, output in written}]
    request = ProgramRequest(
        program=program,
        strides=strides,
        written=tuple(written),
        threads=config.threads(options.threads),
        isa=isa.name,
        name=name,
        epilogues=options.epilogues,
    )
    try:
        plan = build_program(request, measured.machine(isa))
    except NotLowered as why:
        return NoPlan(str(why))
    places = tuple(own.index(at) if at in own else None for at in range(len(program.outputs)))
    return ProgramRoute(bound(plan, options.profile), program, places, tuple(at for at, _ in written))


def injective(array: np.ndarray) -> bool:
    """Whether no two elements of an array share a byte: such a one can be written in place."""
    return array.flags.c_contiguous or View((*array.shape, array.itemsize), (*array.strides, 1)).injective()
