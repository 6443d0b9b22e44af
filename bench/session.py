"""One run of the benchmark from request to data: what the console script's `bench` does, without its arguments."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any, Iterable, Sequence

from ..errors import EngineError, EngineValueError
from .cases import KERNELS, Case, families, load_cases, select, with_full_range
from .threads import available_cpus, equal_threads


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run. No families and no files mean everything; ``peers`` None means all that are installed."""

    families: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    match: str | None = None
    peers: tuple[str, ...] | None = None
    threads: int | None = None
    large: bool = False
    quick: bool = False

    def chosen_cases(self) -> list[Case]:
        """The cases asked for, integers also over their full range."""
        found = select(self.names(), large=self.large)
        for path in self.files:
            found += load_cases(path)
        if self.match is not None:
            found = [case for case in found if self.match in case.name]
        return with_full_range(found)

    def names(self) -> tuple[str, ...]:
        """Families and parts by name: all of them where neither families nor files are given."""
        return self.families if self.families or self.files else families()


def bench(request: Request, engine: Any = None) -> tuple[dict[str, Any], int]:
    """Run ``request``, printing as it goes; returns the data of the run and the number of cases that are wrong or void.

    ``engine`` is the module with the public API (default: this package).
    """
    threads = request.threads or available_cpus()
    cases = request.chosen_cases()
    if not cases and KERNELS not in request.names():
        raise EngineValueError(f"no case matches {request.match!r}")
    with equal_threads(threads) as remarks:
        return _bench(request, cases, threads, remarks, engine)


def _bench(
    request: Request, cases: Sequence[Case], threads: int, remarks: list[str], engine: Any
) -> tuple[dict[str, Any], int]:
    # Only now: these import NumPy and the peers, which read their number of threads when they load.
    from . import limits, machine, report, run
    from .peers import choose, import_all

    engine = engine or importlib.import_module(__package__.rpartition(".")[0])
    peers, left_out = choose(request.peers)
    remarks += left_out
    import_all(peers)
    settings = run.Settings.quick(threads) if request.quick else run.Settings(threads=threads)
    roof = limits.Roof(threads)
    facts = machine.describe()
    names = [peer.name for peer in peers]

    _say(_head(facts, threads, remarks))
    kernels = _run_kernels(request, threads)
    results: list[Any] = []
    if cases:
        _say(["", report.header(names)])
        results = run.run(
            cases,
            engine,
            peers,
            settings,
            roof,
            on_result=lambda result: _say([report.line(result, names)]),
            progress=lambda items: _bar(items, "cases"),
        )
        _say(["", *report.summary_lines(results)])
    startup = {} if request.quick or not cases else _startup(remarks)
    _say([*report.startup_lines(startup), "", *(f"- {rule}" for rule in report.RULES)])
    wrong = report.failures(results)
    if any(result.void for result in results):
        _say(["VOID: a peer was faster than the limit, so peak or bandwidth was measured wrongly in this run"])
    data = report.to_json(
        results,
        machine=facts,
        threads=threads,
        remarks=remarks,
        kernels=kernels,
        startup=startup,
        roof=roof,
    )
    return data, wrong


def _run_kernels(request: Request, threads: int) -> list[Any]:
    if KERNELS not in request.names():
        return []
    from ..kernels import calibrate
    from . import report, run

    results = run.run_kernels(calibrate, threads, progress=lambda items: _bar(items, "kernels"))
    _say([*(report.kernel_line(result) for result in results), "", *report.kernel_summary_lines(results)])
    return results


def _startup(remarks: list[str]) -> dict[str, dict[str, float]]:
    from . import startup

    try:
        return startup.measure()
    except EngineError as error:
        remarks.append(str(error))
        _say([str(error)])
        return {}


def _head(facts: dict[str, Any], threads: int, remarks: Sequence[str]) -> list[str]:
    caches = ", ".join(f"L{cache['level']} {cache['bytes'] // 1024} KiB" for cache in facts["caches"])
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return [
        f"{facts['cpu']}, {facts['isa']}, {facts['cores']} cores ({caches}), {threads} threads",
        f"Python {facts['python']}, {versions}, commit {facts['commit'] or 'unknown'}",
        *remarks,
    ]


def _bar(items: Iterable[Any], what: str) -> Iterable[Any]:
    from tqdm import tqdm

    return tqdm(items, desc=what, unit="", leave=False, disable=None, file=sys.stderr)


def _say(lines: Iterable[str]) -> None:
    from tqdm import tqdm

    for text in lines:
        tqdm.write(text, file=sys.stdout)
