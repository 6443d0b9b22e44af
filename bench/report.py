"""Results as text and as JSON: rules, a line per case, a summary per family."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from .run import CaseResult, KernelResult

RULES = (
    "Ours and the peers alternate in one process with the same number of threads; times are medians of one call.",
    "Each peer is compiled once where it can be and runs on our path and on its own: the better counts. Results are"
    " C-contiguous and fresh; 'out' is the ratio where everybody writes into out=. Idle pools are waited for.",
    "ratio = fastest peer / ours (above 1 the engine is faster). noise = ours against ours.",
    "share = limit / ours. The limit of a step of our path is the larger of flops over the FMA peak of its dtype and"
    " distinct bytes touched over the copy bandwidth at that footprint, both measured in this run. Shares are capped at"
    " 1 in means; a limit under 50 us gives none; a peer 5 % above the limit voids the run.",
    "PASS: each component within 4 (K + 2) eps of |A||B| and the largest error within 4 times the fastest peer's (one"
    " rounding of the largest component is always allowed); integers exact. Outputs of few components are judged over"
    " several draws of the operands; where time does not allow them, beside the largest error of all peers.",
    "plan: path search included, and path given. first: the first call, kernels on disk. Steady state is 'ours'.",
)

# Families that are also summed up together: (title, patterns of families).
ROLLUPS = (
    ("thesis, small sizes", ("thesis_*_small", "thesis_*_small_f64")),
    ("thesis, large sizes", ("thesis_*_large",)),
    ("thesis, networks and general, large", ("thesis_networks_large", "thesis_general_large")),
    ("tccg", ("tccg_*",)),
)

_SHORT = {"numpy-optimize": "np-opt", "opt_einsum": "oe", "opt_einsum-torch": "oe-torch", "cotengra": "ctg"}


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean, or None of nothing.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def format_seconds(seconds: float | None) -> str:
    """Three digits and a unit.

    >>> format_seconds(1.2345e-5), format_seconds(None)
    ('12.3us', '-')
    """
    if seconds is None:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * scale:
            return f"{_digits(seconds / scale)}{unit}"
    return f"{seconds * 1e9:.0f}ns"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def _number(value: float | None, pattern: str = "{:.2f}") -> str:
    return "-" if value is None else pattern.format(value)


def header(peers: Sequence[str]) -> str:
    """The line of column titles for `line`."""
    columns = [f"{'case':<40} {'dtype':<10} {'ours':>8}"]
    columns += [f"{_SHORT.get(name, name):>8}" for name in peers]
    columns += [f"{'ratio':>7} {'out':>6} {'share':>6} {'error':>8} {'plan':>8} {'given':>8} {'first':>8}  verdict"]
    return " ".join(columns)


def line(result: CaseResult, peers: Sequence[str]) -> str:
    """One case on one line; the fastest peer carries a star."""
    columns = [f"{result.case.name[:40]:<40} {result.case.dtype:<10} {format_seconds(result.seconds):>8}"]
    for name in peers:
        peer = result.peers.get(name)
        text = format_seconds(peer.seconds if peer else None) + ("*" if name == result.best else "")
        columns.append(f"{text:>8}")
    share = None if result.share is None else 100 * result.share
    planning = [format_seconds(result.planning.get(key)) for key in ("with_search", "path_given", "first_call")]
    columns.append(
        f"{_number(result.ratio):>7} {_number(result.out_ratio):>6} {_number(share, '{:.0f} %'):>6}"
        f" {_number(result.error, '{:.1e}'):>8} {planning[0]:>8} {planning[1]:>8} {planning[2]:>8}  {verdict(result)}"
    )
    return " ".join(columns)


def verdict(result: CaseResult) -> str:
    """PASS, or FAIL with the reason, and the marks of the case."""
    words = "PASS" if result.verdict.passed else f"FAIL ({result.verdict.reason})"
    marks = [*result.marks, *(f"VOID: {name} above the limit" for name in result.void)]
    return " ".join([words, *(f"[{mark}]" for mark in marks)])


def kernel_line(result: KernelResult) -> str:
    """One microkernel on one line."""
    tile = "x".join(map(str, result.tile))
    return (
        f"{result.name:<40} {result.dtype:<10} {tile:>8} {result.rate / 1e9:>9.1f} Gflop/s"
        f" {100 * result.share:>6.1f} % of the FMA peak"
    )


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One family, or several together."""

    title: str
    cases: int
    passed: int
    ratio: float | None
    worst: float | None
    worst_case: str | None
    out_ratio: float | None
    share: float | None
    worst_share: float | None
    shares: int
    noise: float | None


def summarise(results: Sequence[CaseResult]) -> list[Summary]:
    """A summary per family, then the roll-ups that hold more than one family."""
    families = list(dict.fromkeys(result.case.family for result in results))
    rows = [_summary(name, [each for each in results if each.case.family == name]) for name in families]
    for title, patterns in ROLLUPS:
        inside = [name for name in families if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
        if len(inside) > 1:
            rows.append(_summary(title, [each for each in results if each.case.family in inside]))
    return rows


def _summary(title: str, results: Sequence[CaseResult]) -> Summary:
    rated = [(each.ratio, each.case) for each in results if each.ratio is not None]
    shares = [min(1.0, each.share) for each in results if each.share is not None]
    worst = min(rated, key=lambda pair: pair[0], default=None)
    return Summary(
        title=title,
        cases=len(results),
        passed=sum(each.verdict.passed for each in results),
        ratio=geometric_mean(ratio for ratio, _ in rated),
        worst=worst[0] if worst else None,
        worst_case=f"{worst[1].name} {worst[1].dtype}" if worst else None,
        out_ratio=geometric_mean(each.out_ratio for each in results if each.out_ratio is not None),
        share=geometric_mean(shares),
        worst_share=min(shares, default=None),
        shares=len(shares),
        noise=geometric_mean(each.noise for each in results if each.noise is not None),
    )


def summary_lines(results: Sequence[CaseResult]) -> list[str]:
    """The summary as a table."""
    titles = f"{'family':<36} {'cases':>5} {'PASS':>5} {'ratio':>7} {'worst':>7} {'out':>7} {'share':>7} {'noise':>6}"
    lines = [titles + "  worst case"]
    for row in summarise(results):
        share = None if row.share is None else 100 * row.share
        lines.append(
            f"{row.title:<36} {row.cases:>5} {row.passed:>5} {_number(row.ratio):>7} {_number(row.worst):>7}"
            f" {_number(row.out_ratio):>7} {_number(share, '{:.0f} %'):>7} {_number(row.noise):>6}"
            f"  {row.worst_case or ''}"
        )
    return lines


def kernel_summary_lines(results: Sequence[KernelResult]) -> list[str]:
    """The best and the worst microkernel of each dtype."""
    lines = []
    for dtype in dict.fromkeys(result.dtype for result in results):
        shares = [100 * result.share for result in results if result.dtype == dtype]
        mean = geometric_mean(shares)
        lines.append(
            f"{dtype:<10} {len(shares)} tiles: mean {mean:.1f} %, best {max(shares):.1f} %, worst {min(shares):.1f} %"
        )
    return lines


def startup_lines(startup: dict[str, dict[str, float]]) -> list[str]:
    """What a fresh process pays, cold (nothing on disk) and warm."""
    return [
        f"fresh process, {name:<4} kernel cache: import {format_seconds(times['import'])},"
        f" first einsum {format_seconds(times['first_call'])}, second {format_seconds(times['second_call'])},"
        f" from nothing to the first result {format_seconds(times['total'])}"
        for name, times in startup.items()
    ]


def failures(results: Sequence[CaseResult]) -> int:
    """Cases that did not pass or whose run is void."""
    return sum(1 for result in results if not result.verdict.passed or result.void)


def case_to_json(result: CaseResult) -> dict[str, Any]:
    """One case as plain data; of an external one the name and figures only, no expression or shapes."""
    case = result.case
    data: dict[str, Any] = {"family": case.family, "name": case.name, "dtype": case.dtype, "values": case.values}
    plan = dict(result.plan)
    if case.external:
        plan = {key: plan[key] for key in ("flops", "bytes_moved", "peak_bytes") if key in plan}
    else:
        data |= {"expr": case.expr, "shapes": [list(shape) for shape in case.shapes]}
    data |= {
        "seconds": result.seconds,
        "again": result.again,
        "out_seconds": result.out_seconds,
        "best": result.best,
        "ratio": result.ratio,
        "out_ratio": result.out_ratio,
        "limit": result.limit,
        "share": result.share,
        "void": result.void,
        "error": _finite(result.error),
        "bound": result.bound,
        "passed": result.verdict.passed,
        "reason": "" if case.external and not result.verdict.passed else result.verdict.reason,
        "marks": result.marks,
        "planning": result.planning,
        "plan": plan,
        "peers": {name: _peer_to_json(peer, case.external) for name, peer in result.peers.items()},
    }
    return data


def _peer_to_json(peer: Any, external: bool) -> dict[str, Any]:
    data = {key: _finite(value) if key == "error" else value for key, value in vars(peer).items() if value is not None}
    if external and "reason" in data:
        data["reason"] = "left out"  # a library's message may quote the expression
    return data


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def to_json(
    results: Sequence[CaseResult],
    *,
    machine: dict[str, Any],
    threads: int,
    remarks: Sequence[str] = (),
    kernels: Sequence[KernelResult] = (),
    startup: dict[str, dict[str, float]] | None = None,
    roof: Any = None,
) -> dict[str, Any]:
    """The whole run as plain data for ``json.dump``."""
    return {
        "machine": machine,
        "threads": threads,
        "rules": list(RULES),
        "remarks": list(remarks),
        "void": any(result.void for result in results),
        "peaks": dict(roof.peaks) if roof else {},
        "bandwidths": {str(nbytes): rate for nbytes, rate in sorted(roof.bandwidths.items())} if roof else {},
        "startup": startup or {},
        "summary": [vars(row) for row in summarise(results)],
        "kernels": [vars(row) | {"share": row.share} for row in kernels],
        "cases": [case_to_json(result) for result in results],
    }
