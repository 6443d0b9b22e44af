"""One run of the benchmark from request to data: what the console script's `bench` does, without its arguments."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterable, Sequence

from ..errors import EngineError, EngineValueError
from . import families as _families  # noqa: F401  registers its families
from .cases import (
    CALLS,
    CHAINS,
    KERNELS,
    REDUCTIONS,
    SCALING,
    TABLES,
    VIEWS,
    WHOLE,
    Case,
    families,
    load_cases,
    select,
    with_full_range,
)
from .program_cases import ProgramCase, programs
from .threads import available_cpus, equal_threads


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run. No families and no files mean everything; ``peers`` None means all that are installed.

    ``only`` is a regular expression searched for in family, name and dtype of a case, with blanks between. ``record``
    is the JSON file that is written after every case; with ``resume`` what it holds already is not measured again.
    ``layouts``: layouts of intermediates against each other, instead of peers against ours.
    """

    families: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    only: str | None = None
    peers: tuple[str, ...] | None = None
    threads: int | None = None
    large: bool = False
    quick: bool = False
    record: Path | None = None
    resume: bool = False
    layouts: bool = False

    def chosen_cases(self) -> list[Case]:
        """The cases asked for, integers also over their full range."""
        found = select(self.names(), large=self.large)
        for path in self.files:
            found += load_cases(path)
        found = with_full_range(found)
        if self.only is not None:
            pattern = _pattern(self.only)
            found = [case for case in found if pattern.search(f"{case.family} {case.name} {case.dtype}")]
        return found

    def chosen_tables(self) -> tuple[str, ...]:
        """The families without expressions that are asked for; a filter leaves those with programs that match."""
        if self.layouts:
            return ()
        asked = self.names() if self.only is None else {case.family for case in self.chosen_programs()}
        return tuple(name for name in TABLES if name in asked)

    def chosen_programs(self) -> tuple[ProgramCase, ...]:
        """The programs asked for."""
        found = programs(self.names())
        if self.only is None:
            return found
        pattern = _pattern(self.only)
        return tuple(case for case in found if pattern.search(case.title))

    def names(self) -> tuple[str, ...]:
        """Families and parts by name: all of them where neither families nor files are given."""
        return self.families if self.families or self.files else families()


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise EngineValueError(f"{text!r} is no regular expression: {error}") from error


def bench(request: Request, engine: Any = None) -> tuple[dict[str, Any], int]:
    """Run ``request``, printing as it goes; returns the data of the run and the number of cases that are wrong or void.

    ``engine`` is the module with the public API (default: this package).
    """
    if request.resume and request.record is None:
        raise EngineValueError("a run is resumed from the JSON file that it left: name it")
    threads = request.threads or available_cpus()
    cases = request.chosen_cases()
    if not cases and not request.chosen_tables():
        raise EngineValueError(f"no case matches {request.only!r}")
    with equal_threads(threads) as remarks:
        # Only now: these import NumPy and the peers, which read their number of threads when they load.
        run = _Run.start(request, threads, remarks, engine)
        run.measure(cases)
        return run.finish()


@dataclass(kw_only=True)
class _Run:
    """A run that is under way: what it runs with, and what it has found."""

    request: Request
    engine: Any
    peers: list[Any]
    settings: Any
    roof: Any
    store: Any
    facts: dict[str, Any]
    remarks: list[str]
    sessions: int
    results: list[Any]
    kernels: list[Any]
    figures: list[Any]
    layouts: list[Any]
    programs: list[Any]
    startup: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def start(cls, request: Request, threads: int, remarks: list[str], engine: Any) -> _Run:
        """Import what takes part, read what is resumed, print the head."""
        from . import layouts, limits, machine, programs, record, run
        from .peers import choose, import_all

        engine = engine or importlib.import_module(__package__.rpartition(".")[0])
        peers, left_out = choose(() if request.layouts else request.peers)
        remarks += left_out
        import_all(peers)
        facts = machine.describe()
        store = record.Store(request.record, _settings(request, threads, peers, facts))
        if request.resume:
            store.resume()
        earlier = store.earlier
        roof = limits.Roof(threads)
        roof.include(earlier.get("peaks", {}), earlier.get("bandwidths", {}))
        started = cls(
            request=request,
            engine=engine,
            peers=peers,
            settings=run.Settings.quick(threads) if request.quick else run.Settings(threads=threads),
            roof=roof,
            store=store,
            facts=facts,
            remarks=remarks,
            sessions=1 + earlier.get("sessions", 0),
            results=[record.case_from_json(each) for each in earlier.get("cases", ())],
            kernels=[record.kernel_from_json(each) for each in earlier.get("kernels", ())],
            figures=[record.figure_from_json(each) for each in earlier.get("tables", ())],
            layouts=[layouts.from_json(each) for each in earlier.get("layouts", ())],
            programs=[programs.from_json(each) for each in earlier.get("programs", ())],
        )
        _say(_head(facts, threads, remarks))
        return started

    def measure(self, cases: Sequence[Case]) -> None:
        """Tables and cases that are not known yet, written as they come."""
        from . import report, run

        known = {each["key"] for part in ("cases", "layouts") for each in self.store.earlier.get(part, ())}
        left = [case for case in cases if case.key not in known]
        if known:
            _say([f"{len(cases) - len(left)} of {len(cases)} cases were measured before"])
        if self.request.layouts:
            return self._measure_layouts(left)
        self.roof.prime({case.dtype for case in left})
        self._measure_tables()
        names = [peer.name for peer in self.peers]
        if left:
            _say(["", report.header(names)])
        run.run(
            left,
            self.engine,
            self.peers,
            self.settings,
            self.roof,
            on_result=lambda result: self._keep(result, report.line(result, names)),
            progress=lambda items: _bar(items, "cases"),
        )

    def _keep(self, result: Any, line: str) -> None:
        self.results.append(result)
        _say([line])
        self.store.write(self.data(complete=False))

    def _measure_layouts(self, cases: Sequence[Case]) -> None:
        from . import layouts

        _say(["", layouts.header()])

        def keep(result: Any) -> None:
            self.layouts.append(result)
            _say([layouts.line(result)])
            self.store.write(self.data(complete=False))

        layouts.run(cases, self.engine, self.settings, on_result=keep, progress=lambda items: _bar(items, "cases"))

    def _measure_tables(self) -> None:
        done = {figure.table for figure in self.figures} | ({KERNELS} if self.kernels else set())
        for name in self.request.chosen_tables():
            if name in done:
                continue
            _TABLES[name](self)
            self.store.write(self.data(complete=False))

    def finish(self) -> tuple[dict[str, Any], int]:
        """Summary, figures and rules; the complete data, and how many cases are wrong or void."""
        from . import layouts, programs, report, run

        for result in self.results:
            run.hold_against(result, self.roof)
        for program in self.programs:
            programs.hold_against(program, self.roof)
        if self.results:
            _say(["", *report.summary_lines(self.results)])
            self.startup = {} if self.request.quick else _startup(self.remarks)
        data = self.data(complete=True)
        if self.request.layouts:
            _say(["", *layouts.summary_lines(self.layouts)])
            self.store.write(data)
            return data, sum(1 for result in self.layouts if result.wrong)
        _say(["", *report.figure_lines(self._all_figures())])
        _say([*report.startup_lines(self.startup), "", *(f"- {rule}" for rule in report.RULES)])
        if any(result.void for result in (*self.results, *self.programs)):
            _say(["VOID: a peer was faster than the limit, so peak or bandwidth was measured wrongly in this run"])
        self.store.write(data)
        return data, report.failures([*self.results, *self.programs])

    def _all_figures(self) -> list[Any]:
        from . import programs
        from .figures import figures_of, kernel_figures

        widest = self.facts["isa"] == self.facts["widest_isa"]
        found = [*figures_of(self.results), *kernel_figures(self.kernels, widest=widest), *self.figures]
        return found + programs.figures_of(self.programs)

    def data(self, *, complete: bool) -> dict[str, Any]:
        """Everything known, as plain data for ``json.dump``."""
        from . import layouts, programs, record, report

        return {
            "complete": complete,
            "sessions": self.sessions,
            "settings": _settings(self.request, self.settings.threads, self.peers, self.facts),
            "machine": self.facts,
            "threads": self.settings.threads,
            "rules": list(report.RULES),
            "remarks": list(self.remarks),
            "void": any(result.void for result in self.results),
            "peaks": dict(self.roof.peaks),
            "bandwidths": {str(nbytes): rate for nbytes, rate in sorted(self.roof.bandwidths.items())},
            "startup": self.startup,
            "summary": [vars(row) for row in report.summarise(self.results)],
            "figures": record.figures_to_json(self._all_figures()),
            "tables": record.figures_to_json(self.figures),
            "kernels": record.kernels_to_json(self.kernels),
            "cases": [record.case_to_json(result) for result in self.results],
            "layouts": [layouts.to_json(result) for result in self.layouts],
            "programs": [programs.to_json(result) for result in self.programs],
        }


def _settings(request: Request, threads: int, peers: Sequence[Any], facts: dict[str, Any]) -> dict[str, Any]:
    """What two parts of one run must have in common."""
    return {
        "commit": facts["commit"],
        "cpu": facts["cpu"],
        "isa": facts["isa"],
        "versions": facts["versions"],
        "threads": threads,
        "quick": request.quick,
        "peers": [peer.name for peer in peers],
        "layouts": request.layouts,
    }


def _measure_kernels(run: _Run) -> None:
    from ..kernels import calibrate
    from . import report
    from .kernels import run_kernels

    run.kernels = run_kernels(calibrate, run.settings.threads, progress=lambda items: _bar(items, KERNELS))
    lines = [report.kernel_line(result) for result in run.kernels]
    _say(["", *lines, "", *report.kernel_summary_lines(run.kernels)])


def _measure_calls(run: _Run) -> None:
    from . import calls

    run.figures += calls.measure(run.engine, run.settings, progress=lambda items: _bar(items, CALLS))


def _measure_scaling(run: _Run) -> None:
    from . import scaling

    run.figures += scaling.measure(run.engine, run.settings, progress=lambda items: _bar(items, SCALING))


def _measure_programs(run: _Run, family: str) -> None:
    """The programs of a family that are not known yet, written as they come; of `whole`, also without each pass."""
    from . import program_peers, programs

    known = {each["key"] for each in run.store.earlier.get("programs", ())}
    cases = [case for case in run.request.chosen_programs() if case.family == family and case.key not in known]
    peers = program_peers.program_peers((peer.name for peer in run.peers), family, run.request.quick)
    passes = tuple(run.engine.jit(abs).passes) if family == WHOLE else ()
    _say(["", programs.header(peers, passes)])
    for case in _bar(cases, family):
        result = programs.run_program(case, run.engine, peers, run.settings, run.roof, passes)
        run.programs.append(result)
        _say([programs.line(result, peers, passes)])
        run.store.write(run.data(complete=False))


_TABLES: dict[str, Callable[[_Run], None]] = {
    KERNELS: _measure_kernels,
    CALLS: _measure_calls,
    SCALING: _measure_scaling,
    **{name: partial(_measure_programs, family=name) for name in (VIEWS, WHOLE, CHAINS, REDUCTIONS)},
}


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
