"""The families of functions: jitted, beside NumPy, PyTorch, JAX and others on the same arguments.

Every candidate has copies of the arguments of its own and is called on them again and again: what a function writes is
not restored between calls, for nobody, and JAX gets back what it returned for the arguments that the others write, once
new and once in buffers that it was given (donated). Each is first judged by one call on fresh arguments, beside NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from ..errors import EngineError
from . import program_numpy, program_passes
from .cases import CHAINS, REDUCTIONS, VIEWS
from .check import Verdict
from .copies import copies
from .figures import Figure, geometric_mean
from .limits import Roof, share, voids
from .program_cases import ProgramCase
from .program_passes import Without
from .program_peers import EAGER, PROGRAM_PEERS, ProgramPeer
from .report import format_number, format_seconds, format_share
from .run import AGAIN, OURS, PeerResult, Settings
from .timing import Candidate, compare, seconds_of

# How far a component may be from NumPy's, in eps of the dtype times the largest component of that array.
_BOUND = 100
# Calls before the judged one: TorchScript changes its code until then, and others compile.
_WARMING = 2
_LIMIT_TRIES = 3
# What is asked of a family: PyTorch eager over ours and the best peer over ours, means; the least share of one pass,
# and of the copy beside it.
_ASKED = {VIEWS: (4.0, 1.5, 0.7, 0.7), CHAINS: (None, 1.0, None, 0.75), REDUCTIONS: (None, 1.2, None, None)}

Arrays = Sequence[np.ndarray]


@dataclass(kw_only=True)
class ProgramResult:
    """Everything measured on one case; times in seconds.

    ``without``: ours, ours again, and ours with one pass switched off. ``nbytes`` are moved by one pass over arguments
    and results, which lie in ``footprint`` bytes; ``limit`` and ``share`` are those of that pass, ``copy_seconds`` what
    the fastest copy inside as many bytes takes in the same rounds, for each byte that it moves, compared round by round;
    of large cases only.
    ``error`` and ``bound`` are relative to the largest component.
    """

    case: ProgramCase
    seconds: float | None = None
    again: float | None = None
    peers: dict[str, PeerResult] = field(default_factory=dict)
    without: dict[str, Without] = field(default_factory=dict)
    nbytes: int = 0
    footprint: int = 0
    limit: float | None = None
    share: float | None = None
    copy_seconds: float | None = None
    void: list[str] = field(default_factory=list)
    error: float | None = None
    bound: float = 0.0
    verdict: Verdict = Verdict(passed=False, reason="not run")

    @property
    def best(self) -> str | None:
        """The fastest peer."""
        timed = {name: peer.seconds for name, peer in self.peers.items() if peer.seconds is not None}
        return min(timed, key=timed.__getitem__, default=None)

    @property
    def ratio(self) -> float | None:
        """Best peer over ours: above 1 the engine is faster."""
        return None if self.best is None else self.over(self.best)

    @property
    def copy_share(self) -> float | None:
        """The fastest copy over ours; None where nothing was copied."""
        return self.copy_seconds / self.seconds if self.copy_seconds and self.seconds else None

    def over(self, name: str) -> float | None:
        """The time of a peer over ours."""
        peer = self.peers.get(name)
        return None if peer is None or peer.seconds is None or self.seconds is None else peer.seconds / self.seconds


# -- calls ------------------------------------------------------------------------------------------------------------


class _Calls:
    """A function on arguments of its own; those that a pure one returns new take the place of the old."""

    def __init__(self, peer: ProgramPeer, function: Callable[..., Any], case: ProgramCase, arrays: Arrays) -> None:
        self._function, self._written, self._pure = function, case.written, peer.pure
        self.args = [peer.convert(array) for array in arrays]

    def candidate(self, name: str, first: float | None = None) -> Candidate:
        """What is timed: the bare function, where nothing needs to be carried."""
        if self._pure and self._written:
            return Candidate(name=name, function=self, first=first)
        return Candidate(name=name, function=self._function, args=tuple(self.args), first=first)

    def __call__(self) -> Any:
        result = self._function(*self.args)
        if self._pure and self._written:
            for at, new in zip(self._written, result[-len(self._written) :]):
                self.args[at] = new
        return result

    def outcome(self, result: Any) -> list[np.ndarray]:
        """Results, then written arguments, of a call."""
        found = [] if result is None else list(result) if isinstance(result, (tuple, list)) else [result]
        if not self._pure:
            found += [self.args[at] for at in self._written]
        return [np.asarray(array) for array in found]


# -- judging ----------------------------------------------------------------------------------------------------------


def error_of(found: Arrays, wanted: Arrays) -> float:
    """The largest error, relative to the largest component of each array; infinite where shape or dtype differ.

    >>> error_of([np.array([1.0, 4.0])], [np.array([1.0, 2.0])])
    1.0
    """
    if [(each.shape, each.dtype) for each in found] != [(each.shape, each.dtype) for each in wanted]:
        return float("inf")
    errors = [0.0]
    for one, other in zip(found, wanted):
        largest = float(np.max(np.abs(other), initial=0.0)) or 1.0
        worst = float(np.max(np.abs(one - other), initial=0.0)) / largest
        errors.append(float("inf") if np.isnan(worst) else worst)
    return max(errors)


def bound_of(case: ProgramCase) -> float:
    """The largest error that passes."""
    return _BOUND * float(np.finfo(case.dtype).eps)


def reference(case: ProgramCase, arrays: Arrays) -> list[np.ndarray]:
    """Results and written arguments by NumPy run eagerly on copies."""
    calls = _Calls(PROGRAM_PEERS[0], program_numpy.function(case), case, arrays)
    return calls.outcome(calls())


def judged(
    peer: ProgramPeer, function: Callable[..., Any], case: ProgramCase, arrays: Arrays, wanted: Arrays
) -> tuple[_Calls, float, float]:
    """Calls on fresh arguments, of which one was made; its seconds, and its error."""
    warming = _Calls(peer, function, case, arrays)
    for _ in range(_WARMING):
        warming()
    calls = _Calls(peer, function, case, arrays)
    seconds, result = seconds_of(calls)
    return calls, seconds, error_of(calls.outcome(result), wanted)


# -- measuring --------------------------------------------------------------------------------------------------------


def run_program(
    case: ProgramCase,
    engine: Any,
    peers: Sequence[ProgramPeer],
    settings: Settings,
    roof: Roof,
    passes: Sequence[str] = (),
) -> ProgramResult:
    """Judge and time one case; ``passes`` are switched off one by one, as columns."""
    arrays = program_numpy.arguments(case)
    wanted = reference(case, arrays)
    written = [arrays[at].nbytes for at in case.written]
    fresh = [array.nbytes for array in wanted[: len(wanted) - len(written)]]
    result = ProgramResult(case=case, bound=bound_of(case))
    result.footprint = sum(array.nbytes for array in arrays) + sum(fresh)
    result.nbytes = result.footprint + sum(written)
    jitted = _jitted(case, engine, passes)
    calls = _judged(jitted, case, arrays, wanted, result)
    if not result.verdict.passed:
        return result
    ours = [calls[OURS], calls[AGAIN]]
    able = [peer for peer in peers if case.written or not peer.writers]
    rivals = [each for peer in able if (each := _rival(peer, case, arrays, wanted, settings, result)) is not None]
    settings = settings.warmed(result.footprint)
    # our results, too, lie in memory that was written before: what a call made is gone before the next one
    copied = copies(_half(result.footprint, case.dtype), engine, settings.threads) if case.large else []
    always = tuple(each.name for each in ours)
    compare([*ours, *rivals, *copied], always=always, equal=always, budget=settings.budget, settle=settings.settle)
    if copied:
        # for as long again without the others, who took most of the time: large calls vary, and few rounds say little
        compare([*ours, *copied], always=always, budget=settings.budget, settle=settings.settle)
        result.copy_seconds = _beside(ours[0], copied) * result.nbytes / result.footprint
    result.seconds, result.again = (each.median for each in ours)
    if passes:
        result.without = program_passes.measure(jitted, arrays, settings)
    for each in rivals:
        row = result.peers[each.name]
        row.seconds, row.samples = each.median, len(each.samples)
    if case.large:
        _hold_against_one_pass(roof, settings, result)
    return result


def _beside(ours: Candidate, copied: Sequence[Candidate]) -> float:
    """Seconds of the fastest copy: as many times ours as in the median of the rounds that they shared."""
    fastest = min(copied, key=attrgetter("median"))
    return ours.median * median(other / own for other, own in zip(fastest.samples, ours.samples, strict=True))


def _half(nbytes: int, dtype: str) -> np.ndarray:
    """What a copy reads that touches ``nbytes``, half of them where it writes."""
    return np.ones(nbytes // (2 * np.dtype(dtype).itemsize), dtype=dtype)


def _jitted(case: ProgramCase, engine: Any, passes: Sequence[str]) -> dict[str, Any]:
    """Ours twice, and without each of the passes."""
    function = program_numpy.function(case)
    jitted = {OURS: engine.jit(function), AGAIN: engine.jit(function)}
    return jitted | {name: engine.jit(function, passes=[each for each in passes if each != name]) for name in passes}


def _judged(
    jitted: Mapping[str, Any], case: ProgramCase, arrays: Arrays, wanted: Arrays, result: ProgramResult
) -> dict[str, Candidate]:
    """Those of ours that are right, or at least ran; verdict and error of the result."""
    candidates, result.error, reasons = {}, 0.0, []
    for name, each in jitted.items():
        try:
            calls, seconds, error = judged(PROGRAM_PEERS[0], each, case, arrays, wanted)
        except EngineError as raised:
            reasons.append(f"{name}: {type(raised).__name__}: {str(raised).splitlines()[0]}")
            continue
        result.error = max(result.error, error)
        if not error <= result.bound:
            reasons.append(f"{name}: error {error:.1e} above {result.bound:.1e}")
        candidates[name] = calls.candidate(name, seconds)
    result.verdict = Verdict(passed=not reasons, reason="; ".join(reasons))
    return candidates


def _rival(
    peer: ProgramPeer, case: ProgramCase, arrays: Arrays, wanted: Arrays, settings: Settings, result: ProgramResult
) -> Candidate | None:
    row = result.peers[peer.name] = PeerResult()
    try:
        calls, seconds, row.error = judged(peer, peer.make(case, settings.threads), case, arrays, wanted)
    except Exception as error:  # whatever a library raises is its reason, and the others go on
        row.reason = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
        return None
    if not row.error <= result.bound:
        row.reason = f"wrong: error {row.error:.1e} above {result.bound:.1e}"
        return None
    return calls.candidate(peer.name, seconds)


def _hold_against_one_pass(roof: Roof, settings: Settings, result: ProgramResult) -> None:
    """Fill limit and share; where a time is above the limit, the limit is measured again."""
    work, dtype = [(0, result.footprint)], result.case.dtype
    roof.refresh(work, dtype)
    for _ in range(_LIMIT_TRIES):
        hold_against(result, roof)
        assert result.limit is not None and result.seconds is not None
        if not result.void and not voids(result.limit, result.seconds):
            return
        settings.settle()
        roof.again(work, dtype)
    hold_against(result, roof)


def hold_against(result: ProgramResult, roof: Roof) -> None:
    """Limit, share and who is above the limit, by all that ``roof`` knows by now."""
    if not result.case.large or result.seconds is None:
        return
    result.limit = result.nbytes / roof.bandwidth(result.footprint)
    result.share = share(result.limit, result.seconds)
    result.void = [
        name for name, peer in result.peers.items() if peer.seconds is not None and voids(result.limit, peer.seconds)
    ]


# -- report -----------------------------------------------------------------------------------------------------------


def header(peers: Sequence[ProgramPeer], passes: Sequence[str]) -> str:
    """The line of column titles for `line`; passes have those of `program_passes`."""
    columns = [f"{'program':<28} {'dtype':<10} {'ours':>8}", *(f"{peer.name[:13]:>13}" for peer in peers)]
    columns += [f"{'eager':>7} {'ratio':>7} {'share':>6} {'copy':>6} {'error':>8}"]
    return " ".join(columns) + program_passes.header(passes) + "  verdict"


def line(result: ProgramResult, peers: Sequence[ProgramPeer], passes: Sequence[str]) -> str:
    """One case on one line; the fastest peer carries a star."""
    columns = [f"{result.case.name[:28]:<28} {result.case.dtype:<10} {format_seconds(result.seconds):>8}"]
    for peer in peers:
        row = result.peers.get(peer.name, PeerResult())
        columns.append(f"{format_seconds(row.seconds) + '*' * (peer.name == result.best):>13}")
    columns.append(f"{format_number(result.over(EAGER)):>7} {format_number(result.ratio):>7}")
    columns += [f"{format_share(part):>6}" for part in (result.share, result.copy_share)]
    columns.append(f"{format_number(result.error, '{:.1e}'):>8}")
    columns[-1] += program_passes.cells(result.without, passes)
    words = "PASS" if result.verdict.passed else f"FAIL ({result.verdict.reason})"
    reasons = [f"[{name}: {peer.reason}]" for name, peer in result.peers.items() if peer.reason]
    return " ".join([*columns, f" {words}", *(f"[VOID: {name} above the limit]" for name in result.void), *reasons])


def figures_of(results: Sequence[ProgramResult]) -> list[Figure]:
    """Means of each family, beside what is asked of them."""
    families = dict.fromkeys(result.case.family for result in results)
    inside = {name: [each for each in results if each.case.family == name] for name in families}
    return [figure for name, some in inside.items() for figure in _means(name, some)]


def _means(family: str, results: Sequence[ProgramResult]) -> list[Figure]:
    eager_asked, ratio_asked, share_asked, copy_asked = _ASKED.get(family, (None, None, None, None))
    eager = [value for each in results if (value := each.over(EAGER)) is not None]
    best = [value for each in results if (value := each.ratio) is not None]
    shares = [min(1.0, each.share) for each in results if each.share is not None]
    copied = [min(1.0, each.copy_share) for each in results if each.copy_share is not None]
    make = partial(Figure, table=family)
    found = [
        make(
            name="PyTorch eager / ours, geometric mean",
            value=geometric_mean(eager),
            unit="x",
            asked=eager_asked,
        ),
        make(
            name="best peer / ours, geometric mean",
            value=geometric_mean(best),
            unit="x",
            asked=ratio_asked,
        ),
        make(name="best peer / ours, worst", value=min(best, default=None), unit="x"),
    ]
    if any(each.case.large for each in results):
        for name, parts, asked in (
            ("share of one pass over the bytes", shares, share_asked),
            ("share of a copy beside it", copied, copy_asked),
        ):
            name = f"{name}, large arrays"
            found.append(make(name=f"{name}, geometric mean", value=geometric_mean(parts), unit="%"))
            found.append(make(name=f"{name}, worst", value=min(parts, default=None), unit="%", asked=asked))
    return found + program_passes.figures(family, [each.without for each in results if each.without])


# -- record -----------------------------------------------------------------------------------------------------------

_COPIED = ("seconds", "again", "nbytes", "footprint", "limit", "share", "copy_seconds", "void", "bound")


def to_json(result: ProgramResult) -> dict[str, Any]:
    """One case as plain data."""
    peers = {
        name: {key: _finite(value) for key, value in vars(peer).items() if value is not None}
        for name, peer in result.peers.items()
    }
    case = {**vars(result.case), "written": list(result.case.written), "shape": list(result.case.shape)}
    return (
        {**case, "key": result.case.key}
        | {name: getattr(result, name) for name in _COPIED}
        | {"without": {name: vars(each) for name, each in result.without.items()}}
        | {"best": result.best, "ratio": result.ratio, "eager_ratio": result.over(EAGER)}
        | {"copy_share": result.copy_share}
        | {"error": _finite(result.error), "passed": result.verdict.passed, "reason": result.verdict.reason}
        | {"peers": peers}
    )


def from_json(data: Mapping[str, Any]) -> ProgramResult:
    """What `to_json` made of a result."""
    names = ("family", "name", "function", "dtype", "large", "axis")
    places = {name: tuple(data[name]) for name in ("written", "shape")}
    case = ProgramCase(**{name: data[name] for name in names}, **places)
    rows = {name: dict(row) for name, row in data["peers"].items()}
    return ProgramResult(
        case=case,
        **{name: data[name] for name in _COPIED},
        without={name: Without(**each) for name, each in data["without"].items()},
        error=None if data["error"] is None else float(data["error"]),
        verdict=Verdict(passed=data["passed"], reason=data["reason"]),
        peers={
            name: PeerResult(**{key: float(value) if key == "error" else value for key, value in row.items()})
            for name, row in rows.items()
        },
    )


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
