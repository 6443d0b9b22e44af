"""The numbers of a GEMM that its time is predicted from."""

from __future__ import annotations

from typing import NamedTuple

IN_PLACE_BYTES = 256 << 10  # of a B that is read in place however it runs


class GemmWork(NamedTuple):
    """``outer``, ``panels``, ``columns``, ``k``: iterations of the loops; ``rows`` of C that exist, of one outer
    iteration; ``kc``, ``chunk``, ``blocks``: as in `kernels.gemm.GemmProblem`.

    ``stored``: panels of C that are stored as whole vectors, those that are stored by mask or through the stack, and
    the lanes that are not adjacent; ``crowded``: these share few cache sets; ``far_b``: B is read in place, not along K,
    and does not stay in cache; ``waits_b``: cycles that a panel waits for lines of another B that is read in place, of
    which little is read at a time (`cache_sets`); ``narrow``: so it is read in short rows, as A is; ``in_place``: it is so read;
    ``close``: what is no whole vector goes past the caches together with the next columns;
    ``across``: panels that are unpacked together, 0: each is stored as it is; ``pack_modes``: how tasks pack A and B,
    None where they do not; ``pack_runs``: elements that lie side by side there, 0 where they do not; ``paged``: from rows
    at distances of whole pages.
    """

    dtype: str
    mv: int
    nr: int
    mr: int
    outer: int
    panels: int
    rows: int
    columns: int
    k: int
    kc: int
    chunk: int
    blocks: tuple[int, int, int]
    stored: tuple[int, int, int]
    crowded: bool
    far_b: bool
    waits_b: float
    narrow: bool
    in_place: bool
    across: int
    close: bool
    pack_modes: tuple[int | None, int | None]
    pack_runs: tuple[int, int]
    paged: tuple[bool, bool]
