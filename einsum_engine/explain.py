"""A plan as text: one line per step, then the totals."""

from __future__ import annotations

from typing import Any, Sequence

from .expr import letters, quoted
from .plan import Plan, Signature, Step
from .profile import PARTS, Profile, StepTime

# Marks a step that a slow reference kernel would run: no plan over supported dtypes has one.
REFERENCE_MARK = "REFERENCE"
_COLUMNS = ("step", "expression", "dimensions", "layouts", "kernel", "tile", "flops", "bytes", "time")
_MEASURED = ("predicted", "measured", *PARTS)
_RIGHT = {"step", "flops", "bytes", "time", *_MEASURED}


def explain(plan: Plan, profile: Profile | None = None) -> str:
    """The table of ``plan``: per step its einsum, the sizes of its dimension types (B batch, M left, N right, K
    summed), the layouts of its operands and of its result, kernel and tile, flops, bytes moved, predicted time.

    Steps in branches and loops are indented, and their figures are those of one turn; steps of family ``control`` say
    which step comes next. The totals give ``peak_bytes`` and its parts. A step on constant operands alone, which runs once
    for all calls, is marked ``once``; a step of a reference kernel ``REFERENCE``.

    With a ``profile``, measured times are means of its calls: of the whole step, of its kernel, of packing and unpacking.
    """
    name = letters(plan.expr.indices)
    rows = [_row(step, name) for step in plan.steps if step.block[0] == 0 or profile is not None]
    titles, totals = _COLUMNS, _totals(plan)
    if profile is not None:
        titles = (*_COLUMNS[:-1], *_MEASURED)
        rows = [(*row, *_measured(time)) for row, time in zip(rows, profile.mean().steps)]
        turns = ", measured times are of all turns" if _counted(plan) else ""
        totals.insert(1, _measured_total(profile) + turns)
    return "\n".join([*_header(plan), "", *_aligned([titles, *rows]), "", *totals])


def is_reference(step: Step) -> bool:
    """Whether a slow reference kernel runs ``step``."""
    return "reference" in step.family or "reference" in step.kernel


def _header(plan: Plan) -> list[str]:
    if isinstance(plan.expr, Signature):
        results = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in plan.expr.results) or "nothing new"
        return [f"plan of {plan.expr.text} -> {results}, {plan.isa}, {_threads(plan)}"]
    result = f"{plan.dtype}{list(plan.expr.output_shape)}"
    computed = "" if plan.compute_dtype == plan.dtype else f", computed in {plan.compute_dtype}"
    return [f"{quoted(plan.expr.text)} -> {result}{computed}, {plan.isa}, {_threads(plan)}"]


def _threads(plan: Plan) -> str:
    return f"{plan.threads} thread{'s' if plan.threads > 1 else ''}"


def _row(step: Step, name: dict[Any, str]) -> tuple[str, ...]:
    mark = (f" {REFERENCE_MARK}" if is_reference(step) else "") + (" once" if step.once else "")
    return (
        str(step.number),
        "  " * step.depth + step.expr + (f", 1 of {step.block[1]} blocks" if step.block[1] > 1 else ""),
        " ".join(_dimensions(kind, indices, name) for kind, indices in step.dims.items() if indices) or "-",
        _layouts(step),
        f"{step.family} {step.kernel}{mark}" if step.kernel != step.family else f"{step.kernel}{mark}",
        "x".join(map(str, step.tile)) or "-",
        quantity(step.flops),
        quantity(step.bytes_moved),
        duration(step.seconds),
    )


def _measured(time: StepTime) -> tuple[str, ...]:
    if not time.seconds:
        return ("-",) * (1 + len(PARTS))
    return (duration(time.seconds), *(duration(getattr(time, part)) for part in PARTS))


def _measured_total(profile: Profile) -> str:
    calls = f"{profile.calls} call{'s' if profile.calls > 1 else ''}"
    shares = ", ".join(f"{part} {100 * profile.share(part):.1f} %" for part in PARTS)
    return f"measured {duration(profile.mean().seconds)}, mean of {calls}: {shares}"


def _dimensions(kind: str, indices: Sequence[tuple[Any, int]], name: dict[Any, str]) -> str:
    """``M[i=4 j=3]``."""
    return f"{kind}[{' '.join(f'{name.get(index, index)}={size}' for index, size in indices)}]"


def _layouts(step: Step) -> str:
    """``C,fbl32->C`` and what else the planner says about operands."""
    if step.family == "control":
        return "-"
    count = len(step.inputs)
    shown = f"{','.join(step.layouts[:count])}->{','.join(step.layouts[count : count + 1])}"
    return " ".join((shown, *step.layouts[count + 1 :]))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if title in _RIGHT else cell.ljust(width)
            for cell, width, title in zip(row, widths, rows[0])
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _totals(plan: Plan) -> list[str]:
    marked = sum(map(is_reference, plan.steps))
    kept = f" (of it {plan.constant_bytes} made once from constants)" if plan.constant_bytes else ""
    lines = [
        f"flops {quantity(plan.flops)}, bytes moved {quantity(plan.bytes_moved)}, predicted {duration(plan.seconds)}"
        f" (of it the call {duration(plan.call_seconds)}){_counted(plan)}",
        f"peak bytes {plan.peak_bytes} = output {plan.output_bytes} + arena {plan.arena_bytes}"
        f"{kept} + tables {plan.table_bytes}",
    ]
    return lines + [f"{marked} steps run by a reference kernel, which is slow"] * (marked > 0)


def _counted(plan: Plan) -> str:
    """How often the totals count what is not done once."""
    decide = any(step.kernel in ("branch", "jump") for step in plan.steps)
    return ": one turn of each loop, both ways of each branch" if decide else ""


def quantity(number: float) -> str:
    """Three digits and a decimal prefix.

    >>> quantity(999), quantity(123456), quantity(5e9)
    ('999', '123k', '5G')
    """
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5 or prefix == "P":
            break
        number /= 1000
    return f"{number:.3g}{prefix}"


def duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> duration(2.5e-6), duration(0.012)
    ('2.5us', '12ms')
    """
    for factor, unit in ((1e9, "ns"), (1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g}{unit}"
    return f"{seconds:.3g}s"
