"""A run as data: to JSON after every case, and back, so that a run that was cut short can be resumed.

Of external cases names and figures only are written, never expressions or shapes.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Sequence

from ..errors import EngineValueError
from ..files import write_whole
from .cases import case_from_data
from .check import Verdict
from .figures import Figure
from .kernels import KernelResult
from .run import CaseResult, PeerResult

_COPIED = (
    *("seconds", "again", "out_seconds", "copy_seconds", "copy_share", "best", "limit", "share", "share_beside"),
    *("void", "bound", "marks", "planning"),
)
_PUBLIC_PLAN = ("flops", "bytes_moved", "peak_bytes")


def case_to_json(result: CaseResult) -> dict[str, Any]:
    """One case as plain data."""
    case = result.case
    data: dict[str, Any] = {name: getattr(case, name) for name in ("family", "name", "dtype", "values")}
    data["key"] = result.key
    plan = dict(result.plan)
    if case.external:
        plan = {key: plan[key] for key in _PUBLIC_PLAN if key in plan}
    else:
        data |= {"expr": case.expr, "shapes": [list(shape) for shape in case.shapes]}
    return (
        data
        | {name: getattr(result, name) for name in _COPIED}
        | {
            "ratio": result.ratio,
            "out_ratio": result.out_ratio,
            "error": _finite(result.error),
            "passed": result.verdict.passed,
            "reason": "" if case.external and not result.verdict.passed else result.verdict.reason,
            "work": [list(step) for step in result.work],
            "plan": plan,
            "profile": result.profile,
            "peers": {name: _peer_to_json(peer, case.external) for name, peer in result.peers.items()},
        }
    )


def case_from_json(data: dict[str, Any]) -> CaseResult:
    """What `case_to_json` made of a result; an external case has no expression any more."""
    return CaseResult(
        case=case_from_data(data),
        key=data["key"],
        **{name: data[name] for name in _COPIED},
        error=_number(data["error"]),
        verdict=Verdict(passed=data["passed"], reason=data["reason"]),
        work=[(flops, nbytes) for flops, nbytes in data["work"]],
        plan=data["plan"],
        profile=data.get("profile", []),
        peers={
            name: PeerResult(**{key: _number(value) if key == "error" else value for key, value in peer.items()})
            for name, peer in data["peers"].items()
        },
    )


def kernel_from_json(data: dict[str, Any]) -> KernelResult:
    """A row of ``kernels`` as it was measured."""
    known = {key: data[key] for key in ("name", "dtype", "rate", "peak")}
    return KernelResult(**known, tile=tuple(data["tile"]), share_beside=data.get("share_beside"))


def _peer_to_json(peer: PeerResult, external: bool) -> dict[str, Any]:
    data = {key: _finite(value) if key == "error" else value for key, value in vars(peer).items() if value is not None}
    if external and "reason" in data and peer.at_least is None:
        data["reason"] = "left out"  # a library's message may quote the expression
    return data


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def kernels_to_json(kernels: Sequence[KernelResult]) -> list[dict[str, Any]]:
    """Microkernels with their shares."""
    return [vars(row) | {"share": row.share} for row in kernels]


def figures_to_json(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Figures with what is asked of them."""
    return [vars(figure) | {"met": figure.met} for figure in figures]


def figure_from_json(data: dict[str, Any]) -> Figure:
    """A figure as it was measured."""
    return Figure(**{key: value for key, value in data.items() if key != "met"})


class Store:
    """The file of a run, written whole and atomically at each `write`; without a path nothing is.

    ``settings`` are what must be the same for two runs to be one: commit, threads, length of samples, peers.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self._path, self._settings = path, settings
        self.earlier: dict[str, Any] = {}

    def resume(self) -> None:
        """Read what an earlier run with the same settings left, if there is a file.

        Raises EngineValueError that names the first setting that differs, and both values.
        """
        if self._path is None or not self._path.exists():
            return
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            found = data["settings"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise EngineValueError(f"{self._path}: not the record of a run: {error!r}") from error
        for name, value in self._settings.items():
            if found.get(name) != value:
                raise EngineValueError(
                    f"{self._path}: measured with {name} {found.get(name)!r}, this run has {value!r}: cannot be resumed"
                )
        self.earlier = data

    def write(self, data: dict[str, Any]) -> None:
        """Replace the file by ``data``; a reader sees the old file or the new one."""
        if self._path is None:
            return
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_whole(self._path, text.encode())
