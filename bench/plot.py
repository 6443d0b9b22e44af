"""Pictures of a run, drawn from its JSON data: ratios per case, and parts of the time per step where profiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

from ..errors import EngineError
from .profiles import PARTS, shares


def figure_class():  # type: ignore[no-untyped-def]
    """Matplotlib's Figure, imported when first needed; EngineError says how to get it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EngineError("plots need matplotlib: pip install 'einsum-engine[plot]'") from error
    return Figure


def check(path: str | Path) -> None:
    """EngineError where no picture can be drawn to ``path``: before a run, not behind it."""
    known = figure_class()().canvas.get_supported_filetypes()
    suffix = Path(path).suffix[1:].lower()
    if suffix not in known:
        raise EngineError(f"{path}: a picture ends in one of {', '.join(sorted(known))}")


def save(figure: Any, path: str | Path) -> None:
    """Write ``figure`` in the format that the suffix of ``path`` names."""
    check(path)
    figure.savefig(path, bbox_inches="tight", dpi=120)


def plot_run(data: dict[str, Any], path: str | Path) -> None:
    """Draw the ratios of all cases, and below them the profiled cases, into one picture; profiles alone without peers.

    ``data`` is what a run returns and records. A case may carry ``profile``: a list with one entry per step of seconds
    per part (`profiles.PARTS`).
    """
    rated = [case for case in data["cases"] if case["ratio"] is not None]
    profiled = [case for case in data["cases"] if case.get("profile")]
    panels = [(rated, _ratios)] if rated or not profiled else []
    panels += [(profiled, _profiles)] if profiled else []
    heights = [max(4, len(cases)) for cases, _ in panels]
    figure = figure_class()(figsize=(11, 1.5 + 0.22 * sum(heights)), layout="constrained")
    for (axes,), (cases, draw) in zip(figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights), panels):
        draw(axes, cases)
    figure.suptitle(f"{data['machine'].get('cpu', '')}, {data['threads']} threads", fontsize=8)
    save(figure, path)


def _ratios(axes: Any, rated: Sequence[dict[str, Any]]) -> None:
    families = list(dict.fromkeys(case["family"] for case in rated))
    for row, case in enumerate(rated):
        colour = f"C{families.index(case['family']) % 10}"
        axes.barh(row, case["ratio"] - 1, left=1, color=colour, alpha=1.0 if case["passed"] else 0.3)
        axes.annotate(f" {case['ratio']:.2f} {case['best']}", (max(case["ratio"], 1), row), va="center", fontsize=6)
    axes.set_yticks(range(len(rated)), [f"{case['name']} {case['dtype']}" for case in rated], fontsize=6)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel("fastest peer / ours (log scale; right of 1 the engine is faster; pale: FAIL)")


def _profiles(axes: Any, profiled: Sequence[dict[str, Any]]) -> None:
    """Each case as one bar of 100 %, split into the parts of its steps as in the thesis's figures 23 and 24."""
    for row, case in enumerate(profiled):
        total = sum(sum(step.values()) for step in case["profile"])
        left = 0.0
        for colour, part in enumerate(PARTS):
            for step in case["profile"]:
                width = 100 * step.get(part, 0.0) / total if total else 0.0
                axes.barh(row, width, left=left, color=f"C{colour}", edgecolor="white", linewidth=0.5)
                left += width
        parts = " / ".join(f"{100 * share:.0f}" for share in shares(case["profile"]).values())
        axes.annotate(f" {parts}", (100, row), va="center", fontsize=6)
    for colour, part in enumerate(PARTS):
        axes.barh(0, 0, color=f"C{colour}", label=part)
    axes.set_yticks(range(len(profiled)), [f"{case['family']}: {case['name']}" for case in profiled], fontsize=6)
    axes.set_xlim(0, 112)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel(f"share of the time of a call, %: {' / '.join(PARTS)} (each segment is one step)")
    axes.legend(fontsize=6, ncols=len(PARTS), loc="lower right", bbox_to_anchor=(1, 1))


def plot_tree(steps: Sequence[Any], operands: Sequence[str], path: str | Path) -> None:
    """Draw a contraction tree: operands at the left, one box per step, the result at the right.

    ``steps`` are `bench.steps.StepCost`; ``operands`` the terms of the expression in the order of the operands.
    """
    levels, edges = _layout(steps, len(operands))
    labels = [*operands, *(step.eq.partition("->")[2] or "scalar" for step in steps)]
    costs = [0] * len(operands) + [2 * step.multiply_adds + step.adds for step in steps]
    widest = max(y for _, y in levels) + 1
    figure = figure_class()(figsize=(2 + 2.2 * (max(x for x, _ in levels) + 1), 1 + 0.5 * widest))
    axes = figure.subplots()
    for child, parent in edges:
        (x0, y0), (x1, y1) = levels[child], levels[parent]
        axes.plot([x0, x1], [y0, y1], color="0.6", linewidth=1, zorder=1)
    for (x, y), label, cost in zip(levels, labels, costs):
        text = f"{label}\n{cost:.1e} flops" if cost else label
        style = {"boxstyle": "round,pad=0.3", "facecolor": "#dbe9f6" if cost else "#f4f4f4", "edgecolor": "0.5"}
        axes.annotate(text, (x, y), ha="center", va="center", fontsize=7, bbox=style, zorder=2)
    axes.invert_yaxis()
    axes.margins(0.15)
    axes.set_axis_off()
    save(figure, path)


def _layout(steps: Sequence[Any], operands: int) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    """Coordinates of all tensors (operands, then results of steps) and the edges of the tree.

    A result stands right of its inputs and at their mean height; operands are ordered by the tree, so that no two
    edges cross.
    """
    live = list(range(operands))
    children: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        children[operands + number] = [live[position] for position in step.positions]
        live = [node for slot, node in enumerate(live) if slot not in step.positions] + [operands + number]
    order = _leaves(live, children)
    height = {node: float(row) for row, node in enumerate(order)}
    depth = dict.fromkeys(range(operands), 0.0)
    for node, inputs in children.items():
        height[node] = sum(height[child] for child in inputs) / len(inputs)
        depth[node] = 1 + max(depth[child] for child in inputs)
    places = [(depth[node], height[node]) for node in range(operands + len(steps))]
    return places, [(child, node) for node, inputs in children.items() for child in inputs]


def _leaves(roots: Sequence[int], children: dict[int, list[int]]) -> list[int]:
    order, stack = [], list(reversed(roots))
    while stack:
        node = stack.pop()
        if node in children:
            stack.extend(reversed(children[node]))
        else:
            order.append(node)
    return order
