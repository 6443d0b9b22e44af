"""Kernels that write down each address they ask for: for scripts in a process and a cache of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from einsum_engine.kernels.cpu import cores, emit

ADDRESSES = 1 << 20


class Log:
    """What kernels that are made from now on ask for, one thread of them, as cores do that no maker's options are known of."""

    def __init__(self) -> None:
        self.words = words = np.zeros(1 + ADDRESSES, np.int64)  # how many, and the addresses

        def prefetch(f, addr, write=False, locality=3) -> None:
            place, many = f.i64(words.ctypes.data), f.word(f.i64(words.ctypes.data))
            f.store(addr, place + (many & (ADDRESSES - 1)) * 8 + 8)
            f.store(many + 1, place)

        cores.here = lambda: cores.PLAIN
        emit.Fn.prefetch = prefetch

    def __enter__(self) -> "Log":
        self.words[0] = 0
        return self

    def __exit__(self, *_) -> None:
        assert 0 < self.words[0] < ADDRESSES

    @property
    def addresses(self) -> np.ndarray:
        return self.words[1 : self.words[0] + 1]


def found_by(script: str, folder: Path) -> dict:
    """What a script prints as JSON, its kernels in ``folder``."""
    env = dict(os.environ, EINSUM_ENGINE_CACHE_DIR=str(folder), PYTHONPATH=str(Path(__file__).parent))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
