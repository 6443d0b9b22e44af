"""Results as text: rules, a line per case, a summary per family, figures beside what is asked."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any, Sequence

from .figures import Figure, geometric_mean
from .kernels import KernelResult
from .run import CaseResult, PeerResult

RULES = (
    "Ours and the peers alternate in one process with the same number of threads; times are medians of one call.",
    "Each peer is compiled once where it can be and runs on our path and on its own: the better counts. Results are"
    " C-contiguous and fresh; 'out' is the ratio where everybody writes into out=. Idle pools are waited for,"
    " cores are woken before each sample, and free memory is kept resident.",
    "Who cannot win is not waited for. A peer whose first call takes over a second and 10 times the fastest's has that"
    " one sample. One loop of np.einsum over all indices is not run where a third of what a part of that loop"
    " says is over a second and 5 times the fastest peer so far: '>' is then a lower bound, never the best.",
    "ratio = fastest peer / ours (above 1 the engine is faster). noise = ours against ours.",
    "share = limit / ours. The limit of a step of our path is the larger of flops over the FMA peak of its dtype and"
    " distinct bytes touched over the copy bandwidth at that footprint, both measured in this run: the largest of all"
    " measurements counts, and they are repeated where a time is above the limit. Shares are capped at 1 in means; a"
    " limit under 50 us gives none; a peer that stays 5 % above the limit voids the run.",
    "now = the same limit as the machine has it at that moment / ours: multiply-adds in registers and copies of as many"
    " bytes run in alternation with ours, each sample of ours between two of them; the median.",
    "Permutations: the share of a copy is that of the fastest of our, NumPy's and PyTorch's copies of the operand, in alternation"
    " with ours, everybody writing into memory that is there: the median over rounds of all of them.",
    "PASS: each component within 4 (K + 2) eps of |A||B| and the largest error within 4 times the fastest peer's (one"
    " rounding of the largest component is always allowed); integers exact. Of outputs that take seconds to check,"
    " random positions along each axis, with the first and the last, are judged so, and the others beside a peer's."
    " Outputs of few components are judged over several draws of the operands; where time does not allow them, beside"
    " the largest error of all peers.",
    "Programs: what they write is restored for nobody between calls; JAX returns it, also in donated buffers; each is"
    " judged by one call on fresh arguments, within 100 eps of the largest component of NumPy's. share = one pass over the bytes of"
    " arguments and results at copy bandwidth / ours, of large ones; copy = the fastest of our, NumPy's and"
    " PyTorch's copies that touch as many bytes, in the same rounds and by their median, for as many bytes moved / ours;"
    " -pass = without that pass: time / ours, steps, bytes moved / ours, or = for the same plan; again = the noise of these times.",
    "plan: path search included, and path given. first: the first call, kernels on disk. Steady state is 'ours'.",
)

# Families that are also summed up together: (title, patterns of families).
ROLLUPS = (
    ("thesis, small sizes", ("thesis_*_small", "thesis_*_small_f64")),
    ("thesis, large sizes", ("thesis_*_large",)),
    ("thesis, networks and general, large", ("thesis_networks_large", "thesis_general_large")),
    ("tccg", ("tccg_*",)),
)

_HOURS = 9999
_SHORT = {"numpy-optimize": "np-opt", "opt_einsum": "oe", "opt_einsum-torch": "oe-torch", "cotengra": "ctg"}


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


def format_number(value: float | None, pattern: str = "{:.2f}") -> str:
    """A dash for what was not measured.

    >>> format_number(1.234), format_number(None)
    ('1.23', '-')
    """
    return "-" if value is None else pattern.format(value)


def format_share(part: float | None) -> str:
    """A fraction in per cent.

    >>> format_share(0.5), format_share(None)
    ('50 %', '-')
    """
    return format_number(None if part is None else 100 * part, "{:.0f} %")


def header(peers: Sequence[str]) -> str:
    """The line of column titles for `line`."""
    columns = [f"{'case':<40} {'dtype':<10} {'ours':>8}"]
    columns += [f"{_SHORT.get(name, name):>8}" for name in peers]
    columns += [f"{'ratio':>7} {'out':>6} {'share':>6} {'now':>6} {'error':>8} {'plan':>8} {'given':>8} {'first':>8}"]
    columns[-1] += "  verdict"
    return " ".join(columns)


def line(result: CaseResult, peers: Sequence[str]) -> str:
    """One case on one line; the fastest peer carries a star."""
    columns = [f"{result.case.name[:40]:<40} {result.case.dtype:<10} {format_seconds(result.seconds):>8}"]
    for name in peers:
        text = _peer_time(result.peers.get(name)) + ("*" if name == result.best else "")
        columns.append(f"{text:>8}")
    planning = [format_seconds(result.planning.get(key)) for key in ("with_search", "path_given", "first_call")]
    columns.append(
        f"{format_number(result.ratio):>7} {format_number(result.out_ratio):>6} {format_share(result.share):>6}"
        f" {format_share(result.share_beside):>6} {format_number(result.error, '{:.1e}'):>8}"
        f" {planning[0]:>8} {planning[1]:>8} {planning[2]:>8}  {verdict(result)}"
    )
    return " ".join(columns)


def _peer_time(peer: PeerResult | None) -> str:
    if peer is None or peer.seconds is not None or peer.at_least is None:
        return format_seconds(peer.seconds if peer else None)
    return f">{format_seconds(peer.at_least) if peer.at_least < _HOURS else f'{peer.at_least:.0e}s'}"


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
        f" {100 * result.share:>6.1f} % of the FMA peak, {format_share(result.share_beside):>5} of that beside it"
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
    share_beside: float | None
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
        share_beside=geometric_mean(min(1.0, each.share_beside) for each in results if each.share_beside is not None),
        noise=geometric_mean(each.noise for each in results if each.noise is not None),
    )


def summary_lines(results: Sequence[CaseResult]) -> list[str]:
    """The summary as a table."""
    titles = f"{'family':<36} {'cases':>5} {'PASS':>5} {'ratio':>7} {'worst':>7} {'out':>7} {'share':>7} {'now':>6}"
    lines = [f"{titles} {'noise':>6}  worst case"]
    for row in summarise(results):
        lines.append(
            f"{row.title:<36} {row.cases:>5} {row.passed:>5}"
            f" {format_number(row.ratio):>7} {format_number(row.worst):>7}"
            f" {format_number(row.out_ratio):>7} {format_share(row.share):>7} {format_share(row.share_beside):>6}"
            f" {format_number(row.noise):>6}  {row.worst_case or ''}"
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


def failures(results: Sequence[Any]) -> int:
    """Cases and functions (`run.CaseResult`, `programs.ProgramResult`) that did not pass or whose run is void."""
    return sum(1 for result in results if not result.verdict.passed or result.void)


def figure_lines(figures: Sequence[Figure]) -> list[str]:
    """Figures beside what is asked of them, table by table."""
    lines = []
    for figure in figures:
        asked = ""
        if figure.asked is not None:
            asked = f"{'at most' if figure.most else 'at least'} {_in_unit(figure, figure.asked)}"
        met = {True: "met", False: "NOT met", None: ""}[figure.met]
        measured = _in_unit(figure, figure.value)
        lines.append(f"{figure.table:<36} {figure.name:<66} {measured:>8} {asked:<16} {met}".rstrip())
    titles = f"{'figure':<36} {'':<66} {'measured':>8} asked"
    return [titles, *lines] if lines else []


def _in_unit(figure: Figure, value: float | None) -> str:
    if figure.unit == "s":
        return format_seconds(value)
    if figure.unit == "%":
        return format_share(value)
    return format_number(value)
