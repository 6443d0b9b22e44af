"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, data: bytes, move: Callable[[Path, Path], None] | None = None) -> None:
    """Writes a temporary file beside ``path``, which ``move`` (`os.replace`) gives that name: no reader sees half of it.

    Who may read it is what the umask says of any new file: folders of kernels serve several users.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        (move or os.replace)(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
