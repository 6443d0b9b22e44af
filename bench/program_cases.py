"""The cases of the families `views`, `whole`, `chains` and `reductions`: functions, as a table.

A row names a function, which `program_numpy` has for NumPy and for ours, `program_torch` for PyTorch and `program_jax`
for JAX, and whose arguments `program_numpy.arguments` makes; chains are texts in `program_chains`. The table itself is
data: it imports no library.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Sequence

from .cases import CHAINS, REDUCTIONS, VIEWS, WHOLE


@dataclass(frozen=True, kw_only=True)
class ProgramCase:
    """One function to time. ``function`` is its name in each of the modules above.

    ``written``: positions of the arguments that it writes. ``large``: so much memory that it is held against one pass
    over its bytes: all arguments read once, those that are written and the results written once. ``shape``: of the
    first argument, where the function does not say it; ``axis``: that it is given.
    """

    family: str
    name: str
    function: str
    dtype: str = "float32"
    written: tuple[int, ...] = ()
    large: bool = False
    shape: tuple[int, ...] = ()
    axis: int | None = None

    @property
    def key(self) -> str:
        """What tells this case from every other."""
        words = (self.family, self.name, self.function, self.dtype, self.written, self.large, self.shape, self.axis)
        return hashlib.sha256(repr(words).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """What a pattern of cases is searched for in."""
        return f"{self.family} {self.name} {self.dtype}"


_KB, _MB = 1 << 10, 1 << 20
_SIZES = {"1 kB": _KB, "64 kB": 64 * _KB, "1 MB": _MB, "16 MB": 16 * _MB, "64 MB": 64 * _MB}  # of an array
_KINDS, _LENGTHS = ("arithmetic", "functions"), (2, 4, 8, 12)
_ITEMS = {"float32": 4, "float64": 8}
_REDUCED = {
    -1: {"float32": ((4096, 512), (256, 8192), (65536, 64), (131072, 16)), "float64": ((512, 512), (4096, 512))},
    0: {"float32": ((512, 4096), (8192, 256), (64, 65536), (4096, 512)), "float64": ((512, 512), (512, 4096))},
}


def _chain(length: int, kind: str, size: str, dtype: str) -> ProgramCase:
    return ProgramCase(
        family=CHAINS,
        name=f"{length} {kind} {size} {dtype[-2:]}",
        function=f"chain_{length}_{kind}",
        dtype=dtype,
        large=_SIZES[size] >= 16 * _MB,
        shape=(_SIZES[size] // _ITEMS[dtype],),
    )


def _chains() -> tuple[ProgramCase, ...]:
    """Every chain in every size in float32; the longer ones in float64, in two sizes."""
    single = [_chain(n, kind, size, "float32") for kind in _KINDS for n in _LENGTHS for size in _SIZES]
    double = [_chain(n, kind, size, "float64") for kind in _KINDS for n in (4, 12) for size in ("64 kB", "16 MB")]
    return (*single, *double)


def _reductions() -> tuple[ProgramCase, ...]:
    return tuple(
        ProgramCase(
            family=REDUCTIONS,
            name=f"{function} {rows}x{columns} axis {axis} {dtype[-2:]}",
            function=function,
            dtype=dtype,
            shape=(rows, columns),
            axis=axis,
        )
        for function in ("softmax", "layer_norm", "log_sum_exp")
        for axis, dtypes in _REDUCED.items()
        for dtype, shapes in dtypes.items()
        for rows, columns in shapes
    )


PROGRAMS = (
    ProgramCase(family=VIEWS, name="view_example", function="view_example", written=(0,)),
    ProgramCase(family=VIEWS, name="offset2bbox", function="offset2bbox"),
    ProgramCase(family=VIEWS, name="yolov3 boxes", function="yolov3_boxes"),
    ProgramCase(family=VIEWS, name="ssd anchors", function="ssd_anchors"),
    ProgramCase(family=VIEWS, name="fcos centres", function="fcos_centres"),
    ProgramCase(family=VIEWS, name="normalisation 800x1333x3", function="normalisation", written=(0,), large=True),
    ProgramCase(family=VIEWS, name="yolact mask crop", function="mask_crop", written=(0,), large=True),
    ProgramCase(family=VIEWS, name="lstm cell", function="lstm_cell", written=(1, 2)),
    ProgramCase(family=VIEWS, name="attention with cache", function="cached_attention", written=(3, 4)),
    ProgramCase(family=VIEWS, name="tebd gate sweep", function="gate_sweep", dtype="float64", written=(0,)),
    ProgramCase(family=VIEWS, name="jacobi sweep", function="jacobi_sweep", written=(0,), large=True),
    ProgramCase(
        family=VIEWS, name="red-black sweep", function="red_black_sweep", dtype="float64", written=(0,), large=True
    ),
    ProgramCase(family=WHOLE, name="tebd, normalised", function="tebd", dtype="complex64", written=(0,)),
    ProgramCase(family=WHOLE, name="peps boundary", function="peps_boundary", dtype="float64", written=(0,)),
    ProgramCase(family=WHOLE, name="attention layer with cache", function="attention_layer", written=(4, 5)),
    ProgramCase(family=WHOLE, name="coupled-cluster residual", function="ccd_residual", dtype="float64", written=(0,)),
    ProgramCase(family=WHOLE, name="correlation of columns", function="correlation"),
    ProgramCase(family=WHOLE, name="gaussian kernel matrix", function="gaussian_kernel", dtype="float64"),
    ProgramCase(family=WHOLE, name="dominant site of a boundary", function="dominant_site", dtype="float64"),
    *_chains(),
    *_reductions(),
)


def programs(families: Sequence[str] = (VIEWS, WHOLE, CHAINS, REDUCTIONS)) -> tuple[ProgramCase, ...]:
    """The cases of these families, in the order of the table."""
    return tuple(case for case in PROGRAMS if case.family in families)
