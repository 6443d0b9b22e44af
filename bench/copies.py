"""Copies that permutations and large functions are held against: as many bytes, in alternation with ours.

A case that says so (`Case.copied`) is timed beside them where everybody writes into ``out=``; the fastest counts. Each
reads what ours reads, writes where ours writes, and has as many threads: which pages memory lies in decides a quarter of
its time. Beside a function on large arrays
(`ProgramCase.large`), they read one half of as many bytes as it touches and write the other; where it moves more, because it
writes in place what it reads, their time counts as often.
"""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any, Callable

import numpy as np

from .timing import Candidate, seconds_of

Copy = Callable[[], Any]


def copies(array: np.ndarray, engine: Any, threads: int, out: np.ndarray | None = None) -> list[Candidate]:
    """Ways to copy ``array``, C-contiguous, to memory that was written before, ``out`` if given; each was called once.

    >>> import einsum_engine
    >>> [candidate.name for candidate in copies(np.ones(4), einsum_engine, 1)][:2]
    ['copy by einsum_engine', 'copy by numpy']
    """
    out = np.zeros_like(array) if out is None else out.reshape(array.shape)
    found: dict[str, Copy] = {
        "einsum_engine": _ours(array, out, engine, threads),
        "numpy": partial(np.copyto, out, array),
    }
    if importlib.util.find_spec("torch") is not None:
        found["torch"] = _torch(array, out, threads)
    return [
        Candidate(name=f"copy by {name}", function=function, first=seconds_of(function)[0], measure=True)
        for name, function in found.items()
    ]


def _ours(array: np.ndarray, out: np.ndarray, engine: Any, threads: int) -> Copy:
    compiled = engine.compile("a->a", (array.size,), dtypes=[array.dtype.name], threads=threads)
    return partial(compiled, array.reshape(-1), out=out.reshape(-1))


def _torch(array: np.ndarray, out: np.ndarray, threads: int) -> Copy:
    import torch

    torch.set_num_threads(threads)
    return partial(torch.from_numpy(out).copy_, torch.from_numpy(array))
