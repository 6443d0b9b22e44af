"""Words of a step of the guard family, after the header of `abi`. Operand A is a bool."""

from __future__ import annotations

G_CODE = 16  # what CTX_ERROR becomes where it is true
