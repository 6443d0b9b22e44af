"""Figures beside what is asked of them: goals of families, and single figures that have no case.

A goal is a row of `GOALS`: patterns of families, a pattern of names, and what is asked of the geometric mean of best
peer / ours and of its worst case (asked once more where everybody writes into ``out=``, since fresh results are faster in
recycled memory, which may be switched off), of the geometric mean of the share of the limit, and of the geometric mean
and the worst share of the time that a copy takes.
"""

from __future__ import annotations

import fnmatch
import math
import re
from dataclasses import dataclass
from operator import attrgetter
from typing import Iterable, Sequence

from .kernels import KernelResult
from .run import CaseResult


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure of a table. ``unit`` is ``"x"`` (a ratio), ``"%"`` (``value`` is a fraction) or ``"s"``.

    ``asked`` is the least that is asked, or the most where ``most``; None where nothing is.
    """

    table: str
    name: str
    value: float | None
    unit: str
    asked: float | None = None
    most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the figure is what was asked; None where nothing was, or nothing was measured."""
        if self.value is None or self.asked is None:
            return None
        return self.value <= self.asked if self.most else self.value >= self.asked


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is asked of some cases together."""

    title: str
    families: tuple[str, ...]
    names: str = ""
    ratio: float | None = None
    worst: float | None = None
    share: float | None = None
    copy_share: float | None = None
    worst_copy_share: float | None = None

    def holds(self, result: CaseResult) -> bool:
        """Whether a case is meant."""
        family = result.case.family
        return any(fnmatch.fnmatchcase(family, each) for each in self.families) and bool(
            re.search(self.names, result.case.name)
        )


_GEMM = ("gemm_f32", "gemm_f64", "gemm_c64", "gemm_c128")
_BANDWIDTH = {"copy_share": 0.8, "worst_copy_share": 0.7}

GOALS = (
    Goal(title="thesis, small sizes", families=("thesis_*_small", "thesis_*_small_f64"), ratio=10, worst=1.5),
    Goal(title="thesis, ordinary, large", families=("thesis_ordinary_large",), ratio=1.3, worst=0.95, share=0.8),
    Goal(
        title="thesis, networks and general, large",
        families=("thesis_networks_large", "thesis_general_large"),
        ratio=4,
        worst=1,
        share=0.5,
    ),
    Goal(title="batch index last", families=("thesis_ordinary_large",), names=r"^ordinary 2", share=0.6),
    Goal(title="tccg, float32", families=("tccg_f32",), ratio=1.8, worst=1, share=0.55),
    Goal(title="tccg, float64", families=("tccg_f64",), ratio=1.8, worst=1, share=0.55),
    Goal(title="cases file: trees, networks", families=("trees", "networks"), ratio=2, worst=1.1, share=0.6),
    Goal(
        title="cases file: other",
        families=("batched", "memory", "skewed", "odd", "dtypes"),
        ratio=1.5,
        worst=1,
        share=0.75,
    ),
    Goal(title="one large GEMM", families=_GEMM, ratio=1, worst=0.95, share=0.9),
    Goal(title="one GEMM of int64", families=("gemm_i64",), ratio=2, share=0.8),
    Goal(title="permutations, float32", families=("permutations_f32",), **_BANDWIDTH),
    Goal(title="permutations, float64", families=("permutations_f64",), **_BANDWIDTH),
)

_KERNEL_DTYPES = ("float32", "float64", "complex64", "complex128")
_KERNEL_SHARE, _NARROWER_SHARE = 0.95, 0.9  # of the widest instruction set of a machine, of others


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean, or None of nothing.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def figures_of(results: Sequence[CaseResult]) -> list[Figure]:
    """The goals that some of ``results`` belong to, measured."""
    found = []
    for goal in GOALS:
        inside = [result for result in results if goal.holds(result)]
        if inside:
            found += _measured(goal, inside)
    return found


def _measured(goal: Goal, results: Sequence[CaseResult]) -> list[Figure]:
    ratios = [each.ratio for each in results if each.ratio is not None]
    into = [each.out_ratio for each in results if each.out_ratio is not None]
    shares = [min(1.0, each.share) for each in results if each.share is not None]
    beside = [min(1.0, each.share_beside) for each in results if each.share_beside is not None]
    copied = [min(1.0, each.copy_share) for each in results if each.copy_share is not None]
    rows = (
        ("best peer / ours, geometric mean", geometric_mean(ratios), "x", goal.ratio),
        ("best peer / ours, worst", min(ratios, default=None), "x", goal.worst),
        ("best peer / ours with out=, geometric mean", geometric_mean(into), "x", goal.ratio),
        ("best peer / ours with out=, worst", min(into, default=None), "x", goal.worst),
        ("share of the limit, geometric mean", geometric_mean(shares), "%", goal.share),
        ("share of the limit in alternation, geometric mean", geometric_mean(beside), "%", goal.share),
        ("share of a copy beside it, geometric mean", geometric_mean(copied), "%", goal.copy_share),
        ("share of a copy beside it, worst", min(copied, default=None), "%", goal.worst_copy_share),
    )
    return [
        Figure(table=goal.title, name=name, value=value, unit=unit, asked=asked)
        for name, value, unit, asked in rows
        if asked is not None
    ]


def kernel_figures(kernels: Sequence[KernelResult], *, widest: bool) -> list[Figure]:
    """The best microkernel of each floating dtype, as a share of the run's FMA peak and of the one beside it.

    Both are those of the instruction set of the run: one that is not the ``widest`` of its machine was forced, and is held
    against its own peak.
    """
    found, asked = [], _KERNEL_SHARE if widest else _NARROWER_SHARE
    for dtype in _KERNEL_DTYPES:
        # One tile for both, so that the second is not the luckiest of many medians.
        best = max((each for each in kernels if each.dtype == dtype), key=attrgetter("share"), default=None)
        if best:
            found.append((f"{dtype}, share of the FMA peak, best tile", best.share))
            found.append((f"{dtype}, share of the FMA peak in alternation, best tile", best.share_beside))
    return [
        Figure(table="microkernels", name=name, value=value, unit="%", asked=asked) for name, value in found
    ]
