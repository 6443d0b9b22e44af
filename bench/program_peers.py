"""Ways to run the functions of the bench: NumPy, PyTorch, JAX and others, each a row of `PROGRAM_PEERS`."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Iterable

import numpy as np

from . import program_chains, program_numpy
from .cases import CHAINS, REDUCTIONS, VIEWS, WHOLE
from .program_cases import ProgramCase

EAGER = "torch"
_ALL = (VIEWS, WHOLE, CHAINS, REDUCTIONS)



@dataclass(frozen=True, kw_only=True)
class ProgramPeer:
    """A way to run the functions. ``needs`` is the peer of the other families that stands for it in a choice of peers.

    ``make(case, threads)`` gives the function, ``convert`` its arguments. ``pure``: it returns what others write.
    ``compiler``: it needs one, and takes long for each case. ``writers``: only for functions that write arguments.
    ``families``: those that it knows.
    """

    name: str
    needs: str
    make: Callable[[ProgramCase, int], Callable[..., Any]]
    convert: Callable[[np.ndarray], Any]
    pure: bool = False
    compiler: bool = False
    writers: bool = False
    families: tuple[str, ...] = _ALL


def _numpy(case: ProgramCase, threads: int) -> Callable[..., Any]:
    return program_numpy.function(case)


def _numexpr(case: ProgramCase, threads: int) -> Callable[..., Any]:
    return program_chains.numexpr_function(case.function, case.dtype, threads)


def _numba(case: ProgramCase, threads: int) -> Callable[..., Any]:
    nbytes = np.dtype(case.dtype).itemsize * case.shape[0]
    return program_chains.numba_function(case.function, nbytes, threads)


def _torch(case: ProgramCase, threads: int) -> Callable[..., Any]:
    import torch

    from . import program_torch

    torch.set_num_threads(threads)
    return _of(case, program_torch, torch)


def _of(case: ProgramCase, module: Any, library: Any) -> Callable[..., Any]:
    """The function of a case: that of the module, or a chain in the library."""
    if case.family == CHAINS:
        return program_chains.function(case.function, library)
    found = getattr(module, case.function)
    return found if case.axis is None else lambda *arrays: found(*arrays, axis=case.axis)


def _torch_script(case: ProgramCase, threads: int) -> Callable[..., Any]:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it still works
        return torch.jit.script(_torch(case, threads))


def _torch_compiled(case: ProgramCase, threads: int) -> Callable[..., Any]:
    import torch
    from torch._inductor import config

    if not any(map(shutil.which, ("g++", "clang++"))):
        raise RuntimeError("no C++ compiler is found")
    config.compile_threads = 1  # no processes beside what is measured
    torch.compiler.reset()  # functions of one code object share a bounded number of shapes
    return torch.compile(_torch(case, threads), dynamic=False)


def _jax(case: ProgramCase, threads: int, donated: tuple[int, ...] = ()) -> Callable[..., Any]:
    import jax

    from . import program_jax

    jax.config.update("jax_enable_x64", True)
    jitted = jax.jit(_of(case, program_jax, jax.numpy), donate_argnums=donated)
    return lambda *arrays: jax.block_until_ready(jitted(*arrays))


def _jax_donated(case: ProgramCase, threads: int) -> Callable[..., Any]:
    return _jax(case, threads, case.written)


def _to_torch(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array.copy())


def _to_jax(array: np.ndarray) -> Any:
    import jax.numpy as jnp

    return jnp.array(array)


PROGRAM_PEERS = (
    ProgramPeer(name="numpy", needs="numpy", make=_numpy, convert=np.copy),
    ProgramPeer(name="numexpr", needs="numpy", make=_numexpr, convert=np.copy, families=(CHAINS,)),
    ProgramPeer(name="numba", needs="numpy", make=_numba, convert=np.copy, families=(CHAINS,)),
    ProgramPeer(name=EAGER, needs="torch", make=_torch, convert=_to_torch),
    ProgramPeer(name="torch-script", needs="torch", make=_torch_script, convert=_to_torch, families=(VIEWS, WHOLE)),
    ProgramPeer(name="torch-compile", needs="torch", make=_torch_compiled, convert=_to_torch, compiler=True),
    ProgramPeer(name="jax", needs="jax", make=_jax, convert=_to_jax, pure=True),
    ProgramPeer(name="jax-donated", needs="jax", make=_jax_donated, convert=_to_jax, pure=True, writers=True),
)


def program_peers(names: Iterable[str], family: str, quick: bool = False) -> list[ProgramPeer]:
    """Those that the chosen peers stand for in a family; a quick run waits for no C++ compiler."""
    names = set(names)
    able = [peer for peer in PROGRAM_PEERS if peer.needs in names and family in peer.families]
    return [peer for peer in able if not (quick and peer.compiler)]
