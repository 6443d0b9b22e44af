"""One row of the step table before it has addresses: what a family's lowering returns to the executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Row:
    """``words``: plain int64 words by position (`cpu.abi`); ``tables``: offset vectors (int64, bytes) whose address
    goes into a word; ``kernels``: names of compiled functions whose address goes into a word (``FN`` included);
    ``scratch``: bytes per worker; ``tasks``: independent shares."""

    words: Mapping[int, int]
    tables: Mapping[int, np.ndarray] = field(default_factory=dict)
    kernels: Mapping[int, str] = field(default_factory=dict)
    scratch: int = 0
    tasks: int = 1
