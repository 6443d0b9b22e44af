"""A contraction engine: compile an einsum or a tensor network once, call it many times, fast.

>>> import numpy as np
>>> import einsum_engine as engine
>>> a, b = np.ones((2, 3)), np.ones((3, 4))
>>> engine.einsum("ij,jk->ik", a, b).shape
(2, 4)
>>> f = engine.compile("ij,jk->ik", a, b)
>>> bool((f(a, b) == a @ b).all())
True

The module is a backend of opt_einsum, cotengra and quimb: pass ``backend="einsum_engine"`` there. Importing it loads
nothing; what is named here is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    EngineAttributeError,
    EngineAxisError,
    EngineError,
    EngineIndexError,
    EngineMemoryError,
    EngineProgramError,
    EngineTypeError,
    EngineValueError,
)
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .api import (
        Compiled,
        clear_cache,
        compile,
        contract_path,
        einsum,
        einsum_path,
        load,
        register_optimizer,
        tensordot,
        time_objective,
        transpose,
    )
    from .control import cond, while_loop
    from .functions import (
        erf,
        logsumexp,
        random_bits,
        random_key,
        random_normal,
        random_uniform,
        rsqrt,
        sigmoid,
        where,
    )
    from .jitted import jit

__all__ = [
    "Compiled",
    "EngineAttributeError",
    "EngineAxisError",
    "EngineError",
    "EngineIndexError",
    "EngineMemoryError",
    "EngineProgramError",
    "EngineTypeError",
    "EngineValueError",
    "clear_cache",
    "compile",
    "cond",
    "contract_path",
    "einsum",
    "einsum_path",
    "erf",
    "jit",
    "load",
    "logsumexp",
    "random_bits",
    "random_key",
    "random_normal",
    "random_uniform",
    "register_optimizer",
    "rsqrt",
    "sigmoid",
    "tensordot",
    "time_objective",
    "transpose",
    "where",
    "while_loop",
]

# Names of traced functions -> the module that has them; every other name is in `api`.
MODULES = {
    "jit": "jitted",
    **dict.fromkeys(("cond", "while_loop"), "control"),
    **dict.fromkeys(("erf", "sigmoid", "rsqrt", "logsumexp", "where"), "functions"),
    **dict.fromkeys(("random_bits", "random_key", "random_normal", "random_uniform"), "functions"),
}

# What libraries ask a backend for besides contractions. These follow the type of their arguments, whatever it is.
# The list is explicit: a library that probes for another name must see that it is not here.
ARRAY_FUNCTIONS = (
    "abs",
    "array",
    "concatenate",
    "log10",
    "max",
    "reshape",
    "stack",
    "sum",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f".{MODULES.get(name, 'api')}", __name__), name)
        return value
    if name in ARRAY_FUNCTIONS:
        from .api import array_function

        return array_function(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *ARRAY_FUNCTIONS})
