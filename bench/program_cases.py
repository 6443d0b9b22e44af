"""The cases of the families `views` and `whole`: functions with views and writes in place, as a table.

A row names a function, which `program_numpy` has for NumPy and for ours, `program_torch` for PyTorch and `program_jax`
for JAX, and whose arguments `program_numpy.arguments` makes. The table itself is data: it imports no library.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Sequence

from .cases import VIEWS, WHOLE


@dataclass(frozen=True, kw_only=True)
class ProgramCase:
    """One function to time. ``function`` is its name in each of the modules above.

    ``written``: positions of the arguments that it writes. ``large``: so much memory that it is held against one pass
    over its bytes: all arguments read once, those that are written and the results written once.
    """

    family: str
    name: str
    function: str
    dtype: str = "float32"
    written: tuple[int, ...] = ()
    large: bool = False

    @property
    def key(self) -> str:
        """What tells this case from every other."""
        words = (self.family, self.name, self.function, self.dtype, self.written, self.large)
        return hashlib.sha256(repr(words).encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """What a pattern of cases is searched for in."""
        return f"{self.family} {self.name} {self.dtype}"


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
)


def programs(families: Sequence[str] = (VIEWS, WHOLE)) -> tuple[ProgramCase, ...]:
    """The cases of these families, in the order of the table."""
    return tuple(case for case in PROGRAMS if case.family in families)
