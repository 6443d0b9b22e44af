"""The cases of the benchmark: contractions from the literature, a registry of families, files of further cases.

A case is data only: an einsum expression for C-ordered arrays, the shapes, a dtype and sometimes a path.
To add a family, write a function ``(large: bool) -> list[Case]`` and register it with `register_family`.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterable, Sequence

from ..errors import EngineValueError

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One contraction to time.

    ``path`` is a tuple of position tuples in opt_einsum's convention, or None (each library finds its own).
    ``values`` is ``"small"`` (integers from -9 to 9) or ``"full"`` (integers over their whole range).
    ``external`` marks a case from a file: its expression and shapes are not written into results.
    ``peers`` names those that take part; None means all. ``copied``: one operand is permuted, and held against copies.
    """

    family: str
    name: str
    expr: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    path: tuple[tuple[int, ...], ...] | None = None
    values: str = "small"
    external: bool = False
    peers: tuple[str, ...] | None = None
    copied: bool = False

    @property
    def key(self) -> str:
        """What tells this case from every other, as a digest: expression and shapes are part of it but not readable."""
        words = (self.family, self.name, self.expr, self.shapes, self.dtype, self.path, self.values, self.peers)
        return hashlib.sha256(repr(words).encode()).hexdigest()[:16]

    def full_range(self) -> "Case":
        """The same case with integers over their full range."""
        return replace(self, name=f"{self.name} full range", values="full")

    @property
    def is_integer(self) -> bool:
        return self.dtype in INTEGERS


def operands(case: Case, seed: int = 0) -> list[Any]:
    """C-contiguous NumPy arrays for ``case``, the same at every call: standard normal (complex ones in both
    parts), integers from -9 to 9 (0 to 9 if unsigned) or over the full range, booleans with equal odds.
    """
    import numpy as np  # not before libraries are held to their threads: a run chooses its cases first

    rng = np.random.default_rng([seed, zlib.crc32(f"{case.expr} {case.shapes} {case.dtype}".encode())])
    return [_operand(rng, shape, case) for shape in case.shapes]


def _operand(rng: Any, shape: tuple[int, ...], case: Case) -> Any:
    import numpy as np

    from ..dtypes import as_numpy

    if case.dtype == "bool":
        return rng.integers(0, 2, size=shape, dtype=np.int8).astype(bool)
    if case.is_integer:
        info = np.iinfo(case.dtype)
        low, high = (info.min, info.max) if case.values == "full" else (max(info.min, -9), 9)
        return np.asarray(rng.integers(low, high, size=shape, dtype=case.dtype, endpoint=True))
    if case.dtype.startswith(("complex", "clongdouble")):
        array = np.empty(shape, dtype=case.dtype)
        array.real = rng.standard_normal(shape)
        array.imag = rng.standard_normal(shape)
        return array
    return np.asarray(rng.standard_normal(shape)).astype(as_numpy(case.dtype))


# --- The einsum thesis, figures 19 to 24 -----------------------------------------------------------------------
# Every index of a case has one size. A case is (label, expression); labels give the figure's own number.
# Figure 23 is ordinary 0 at 2048, figure 24 (a) and (b) are networks 0: they are not repeated.

_ORDINARY = (
    ("0", "km,nk->nm"),
    ("1", "mk,kn->mn"),
    ("2 batch last", "mkb,nbk->bmn"),
    ("3 batch last (as printed)", "mkb,nbk->bmn"),
    ("3 batch last (mended)", "kmb,nbk->bmn"),
    ("4", "ab,ca,dc->db"),
    ("5", "ba,ac,cd->bd"),
    ("6", "ba,bc,cd,ed,fe,fh->ah"),
    ("7 matrix-vector", "mk,k->m"),
)

_NETWORKS = (
    ("0", "abcd,befg,cdjl,fhij,gikl->aehk"),
    ("1", "abrs,bct,cdefu,defgv,ghwx,hijk,ijlos,lmuv,mnprw,nqtx->akopq"),
    (
        "2",
        "atuv,abuvL,bcwx,cdyzA,dewABC,efC,fgBD,ghD,hiE,ij,jtk,klxEFM,lmyGM,mouzN,ouHN,opG,pqI,qrJK,rs,sIK->LFHJ",
    ),
    ("3 (0 permuted)", "cadb,fbge,cdlj,hifj,lkig->eakh"),
    ("4 (1 permuted, as printed)", "sbra,ctb,ufedc,evdgc,xghw,hjki,olsji,lmuv,pmrwn,txqn->oakpq"),
    ("4 (1 permuted, mended)", "sbra,ctb,ufedc,evdgf,xghw,hjki,olsji,lmuv,pmrwn,txqn->oakpq"),
)

# The thesis says that every index is in two terms: (1) has a lone c, (5) a lone x that network 2 has twice.
# (2) is printed in two ways, in figure 22 and in figure 24 (c) and (d).
_GENERAL = (
    ("0", "aabcd,grwas,fdwsar,dgf->abgc"),
    ("1 (as printed)", "abcef,ubhwi,fpewaib,begwi,beop->boauhg"),
    ("1 (mended)", "abef,ubhwi,fpewaib,begwi,beop->boauhg"),
    ("2 (figure 22)", "abczef,reaqb,oz,abqsa,feabo->asrbc"),
    ("2 (figure 24)", "abczef,reabq,oza,abqsa,feabo->asrbc"),
    ("3", "abxcd,befg,cdxjl,fhij,giklk->aexhk"),
    ("4", "abrbs,bct,cdefu,deXfgv,ghwhx,hijk,ijlos,lmluv,mnpCrw,nXqCtx->akXopq"),
    (
        "5 (as printed)",
        "atXuv,abuvL,bcwX,cdyXzA,dewABC,efXC,fgBD,ghXD,hiE,iXj,jtk,klxEFM,lmyGM,mouzN,ouHYN,oYpG,pqXYI,qrJK,"
        "rYs,sIXK->LFYXHJ",
    ),
    (
        "5 (mended)",
        "atXuv,abuvL,bcwxX,cdyXzA,dewABC,efXC,fgBD,ghXD,hiE,iXj,jtk,klxEFM,lmyGM,mouzN,ouHYN,oYpG,pqXYI,qrJK,"
        "rYs,sIXK->LFYXHJ",
    ),
)


def uniform_shapes(expr: str, size: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of an explicit expression in which every index has the same size.

    >>> uniform_shapes("ij,jkk->i", 2)
    ((2, 2), (2, 2, 2))
    """
    return tuple((size,) * len(term) for term in expr.partition("->")[0].split(","))


def _ordinary_size(label: str, small: bool, large: bool) -> int:
    if "batch" in label:
        return 16 if small else (512 if large else 256)
    return 32 if small else 2048


def _network_size(label: str, small: bool, of_four: str) -> int:
    # The thesis takes 4 where 8 would make intermediates too large.
    return 2 if small else (4 if label[0] in of_four else 8)


def thesis_cases(large: bool = False) -> list[Case]:
    """Figures 19 to 24: each expression small and large, misprints as printed and mended.

    The large batched products have size 256, and the thesis's own 512 if ``large``.
    """
    cases = []
    for small in (True, False):
        size = "small" if small else "large"
        for label, expr in _ORDINARY:
            shapes = uniform_shapes(expr, _ordinary_size(label, small, large))
            cases.append(_thesis(f"thesis_ordinary_{size}", "ordinary", label, expr, shapes))
            if small:
                cases.append(_thesis("thesis_ordinary_small_f64", "ordinary", label, expr, shapes, "float64"))
        for label, expr in _NETWORKS:
            shapes = uniform_shapes(expr, _network_size(label, small, "14"))
            cases.append(_thesis(f"thesis_networks_{size}", "network", label, expr, shapes))
        for label, expr in _GENERAL:
            shapes = uniform_shapes(expr, _network_size(label, small, "45"))
            cases.append(_thesis(f"thesis_general_{size}", "general", label, expr, shapes))
    return sorted(cases, key=lambda case: case.family.split("_")[2:] == ["large"])


def _thesis(
    family: str, kind: str, label: str, expr: str, shapes: tuple[tuple[int, ...], ...], dtype: str = "float32"
) -> Case:
    return Case(family=family, name=f"{kind} {label}", expr=expr, shapes=shapes, dtype=dtype)


# --- TCCG: the 24 core contractions ----------------------------------------------------------------------------
# (number, output-left-right in the benchmark's own column-major notation, sizes of the indices in alphabetical
# order for float32, and for float64): the largest tensor takes about 16 MiB.

_TCCG = (
    ("01", "abc-bda-dc", (168, 168, 24, 168), (144, 144, 24, 144)),
    ("02", "abc-dca-bd", (168, 24, 160, 168), (144, 24, 128, 144)),
    ("03", "abcd-dbea-ec", (48, 44, 24, 48, 48), (48, 40, 24, 48, 48)),
    ("04", "abcd-deca-be", (48, 24, 44, 48, 44), (48, 24, 40, 48, 40)),
    ("05", "abcd-ebad-ce", (48, 44, 24, 44, 48), (48, 40, 24, 40, 48)),
    ("06", "abcde-efbad-cf", (24, 20, 24, 20, 24, 20), (24, 20, 24, 20, 24, 20)),
    ("07", "abcde-ecbfa-fd", (24, 20, 20, 24, 24, 24), (24, 20, 20, 24, 24, 24)),
    ("08", "abcde-efcad-bf", (24, 24, 20, 20, 24, 20), (24, 24, 20, 20, 24, 20)),
    ("09", "abcd-ea-ebcd", (48, 44, 44, 44, 48), (48, 40, 40, 40, 48)),
    ("10", "abcd-eb-aecd", (48, 44, 44, 44, 48), (48, 40, 40, 40, 48)),
    ("11", "abcd-ec-abed", (48, 44, 44, 44, 48), (48, 40, 40, 40, 48)),
    ("12", "ab-ac-cb", (2064, 2048, 2064), (1464, 1448, 1464)),
    ("13", "ab-acd-dbc", (168, 160, 160, 168), (144, 128, 128, 144)),
    ("14", "ab-cad-dcb", (168, 160, 168, 168), (144, 128, 144, 144)),
    ("15", "abc-acd-db", (168, 160, 160, 168), (144, 128, 128, 144)),
    ("17", "abc-adc-bd", (168, 168, 160, 160), (144, 144, 128, 128)),
    ("19", "abc-adec-ebd", (48, 44, 44, 44, 48), (48, 40, 40, 40, 48)),
    ("20", "abcd-aebf-dfce", (48, 44, 44, 48, 44, 44), (48, 40, 40, 48, 40, 40)),
    ("21", "abcd-aebf-fdec", (48, 44, 44, 44, 44, 48), (48, 40, 40, 40, 40, 48)),
    ("30", "abcd-eafd-fbec", (48, 44, 44, 44, 48, 48), (48, 40, 40, 40, 48, 48)),
    ("31", "abcdef-dega-gfbc", (24, 12, 12, 24, 12, 12, 24), (24, 12, 12, 24, 12, 12, 24)),
    ("32", "abcdef-degb-gfac", (24, 12, 12, 24, 12, 12, 24), (24, 12, 12, 24, 12, 12, 24)),
    ("33", "abcdef-degc-gfab", (24, 12, 12, 24, 12, 12, 24), (24, 12, 12, 24, 12, 12, 24)),
    ("35", "abcdef-dfgb-geac", (24, 12, 12, 24, 12, 12, 24), (24, 12, 12, 24, 12, 12, 24)),
)


def tccg_cases(large: bool = False) -> list[Case]:
    """The 24 core contractions in float32 and float64; index strings are reversed for C order."""
    return [
        _tccg(number, notation, sizes, dtype)
        for dtype in ("float32", "float64")
        for number, notation, *both in _TCCG
        for sizes in (both[dtype == "float64"],)
    ]


def _tccg(number: str, notation: str, sizes: tuple[int, ...], dtype: str) -> Case:
    output, left, right = (term[::-1] for term in notation.split("-"))
    size_of = dict(zip(sorted(set(left + right)), sizes))
    return Case(
        family=f"tccg_{'f64' if dtype == 'float64' else 'f32'}",
        name=f"tccg {number} {notation}",
        expr=f"{left},{right}->{output}",
        shapes=tuple(tuple(size_of[index] for index in term) for term in (left, right)),
        dtype=dtype,
    )


# --- Registry and files ----------------------------------------------------------------------------------------

FamilyFunction = Callable[[bool], list[Case]]
_FAMILIES: dict[str, FamilyFunction] = {}

# Families without expressions, measured in their own ways: microkernels alone, what a call costs, threads and primes,
# programs (`program_cases`).
KERNELS, CALLS, SCALING = "kernels", "calls", "scaling"
VIEWS, WHOLE, CHAINS, REDUCTIONS = "views", "whole", "chains", "reductions"
TABLES = (KERNELS, CALLS, SCALING, VIEWS, WHOLE, CHAINS, REDUCTIONS)


def register_family(name: str, function: FamilyFunction) -> None:
    """Add a family of cases under ``name``; a name that is taken is refused."""
    if name in TABLES or name in _FAMILIES:
        raise EngineValueError(f"family {name!r} is registered already")
    _FAMILIES[name] = function


register_family("thesis", thesis_cases)
register_family("tccg", tccg_cases)


def families() -> tuple[str, ...]:
    """The names that `select` accepts besides the names and patterns of sub-families."""
    return (*_FAMILIES, *TABLES)


def select(names: Sequence[str], *, large: bool = False) -> list[Case]:
    """The cases of ``names``: families, their parts or patterns of parts (``tccg_f32``, ``thesis_*_small``)."""
    chosen: list[Case] = []
    for name in names:
        if name in TABLES:
            continue
        if name in _FAMILIES:
            found = _FAMILIES[name](large)
        else:
            every = [case for function in _FAMILIES.values() for case in function(large)]
            found = [case for case in every if fnmatch.fnmatchcase(case.family, name)]
            if not found:
                parts = sorted({case.family for case in every})
                raise EngineValueError(
                    f"unknown family {name!r}; families: {', '.join(families())}; parts: {', '.join(parts)}"
                )
        chosen += [case for case in found if case not in chosen]
    return chosen


def load_cases(path: str | Path) -> list[Case]:
    """Read cases from a JSON file: a list of ``{family, name, expr, shapes, dtype[, path]}``.

    Raises EngineValueError that names the file, the entry and the field that does not fit.
    """
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise EngineValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(entries, list):
        raise EngineValueError(f"{path}: expected a list of cases, found {type(entries).__name__}")
    return [_entry_to_case(path, number, entry) for number, entry in enumerate(entries)]


def _entry_to_case(path: str | Path, number: int, entry: Any) -> Case:
    from ..dtypes import to_dtype

    where = f"{path}: case {number}"
    if not isinstance(entry, dict):
        raise EngineValueError(f"{where}: expected an object, found {type(entry).__name__}")
    required = ("family", "name", "expr", "shapes", "dtype")
    missing = [key for key in required if key not in entry]
    unknown = sorted(set(entry) - {*required, "path"})
    if missing or unknown:
        raise EngineValueError(f"{where}: missing {missing}, unknown {unknown}")
    try:
        shapes = _integer_tuples(entry["shapes"])
        steps = None if entry.get("path") is None else _integer_tuples(entry["path"])
    except (TypeError, ValueError) as error:
        raise EngineValueError(f"{where}: shapes and path are lists of lists of integers: {error}") from error
    terms = str(entry["expr"]).partition("->")[0].split(",")
    if len(terms) != len(shapes):
        raise EngineValueError(f"{where}: expression {entry['expr']!r} has {len(terms)} terms, {len(shapes)} shapes")
    to_dtype(str(entry["dtype"]), f"{where}: dtype ")
    return Case(
        family=str(entry["family"]),
        name=str(entry["name"]),
        expr=str(entry["expr"]),
        shapes=shapes,
        dtype=str(entry["dtype"]),
        path=steps,
        external=True,
    )


def _integer_tuples(rows: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(number) for number in row) for row in rows)


def with_full_range(cases: Iterable[Case]) -> list[Case]:
    """``cases``, each integer one followed by itself over the full range of its dtype."""
    return [variant for case in cases for variant in ((case, case.full_range()) if case.is_integer else (case,))]


def case_from_data(data: dict[str, Any]) -> Case:
    """The case of a record of results; an external one has no expression any more."""
    return Case(
        family=data["family"],
        name=data["name"],
        expr=data.get("expr", ""),
        shapes=tuple(map(tuple, data.get("shapes", ()))),
        dtype=data["dtype"],
        values=data["values"],
        external="expr" not in data,
    )
