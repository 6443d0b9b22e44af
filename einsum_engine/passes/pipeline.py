"""The passes by name, in their order, and the loop that runs them.

>>> list(PASSES)
['views', 'regions', 'merge', 'dead']
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from ..errors import EngineValueError
from ..ir import Program
from .dead import dead
from .edit import Pass
from .merge import merge
from .regions import regions
from .view_ssa import view_ssa

PASSES: MappingProxyType[str, Pass] = MappingProxyType(
    {"views": view_ssa, "regions": regions, "merge": merge, "dead": dead}
)
LOWERING = ("epilogues",)  # what planners do with a program, by name: switched on and off as passes are
ROUNDS = 8  # of all passes, after which a program is taken as it is


def selected(names: Sequence[str] | None) -> tuple[str, ...]:
    """The names of passes, and of what planners do (`LOWERING`), in their order; all of them for None.

    `EngineValueError` for a name that is none.
    """
    known = (*PASSES, *LOWERING)
    if isinstance(names, str):
        raise EngineValueError(f"passes={names!r} is a string: a sequence of names is expected")
    wrong = [name for name in names or () if name not in known]
    if wrong:
        raise EngineValueError(f"there is no pass {wrong[0]!r}: passes are {', '.join(known)}")
    return tuple(name for name in known if names is None or name in names)


def optimised(program: Program, names: Sequence[str] | None = None) -> tuple[Program, list[tuple[str, Program]]]:
    """The program after passes, run in turn until none changes it; and each that changed something, with its result."""
    stages: list[tuple[str, Program]] = []
    turns = [name for _ in range(ROUNDS) for name in selected(names) if name in PASSES]
    unchanged: set[str] = set()  # passes that have seen the program as it is now
    for name in turns:
        if name in unchanged:
            continue
        found = PASSES[name](program)
        if found == program:
            unchanged.add(name)
        else:
            stages.append((name, found))
            program = found
            unchanged.clear()
    return program, stages
