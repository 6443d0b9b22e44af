"""The family `chains`: element-wise functions of arrays of one axis, each as one text for all libraries.

A text holds the arrays ``a``, ``b``, ``c``, arithmetic, and functions that every library knows by the same name. The
number in a name is that of its operations.
"""

from __future__ import annotations

import re
from typing import Any, Callable

import numpy as np

CHAINS = {
    "chain_2_arithmetic": "a * b + c",
    "chain_4_arithmetic": "(a - b) * (a + b) * c",
    "chain_8_arithmetic": "(((a * b + c) * a + b) * a + c) * a + b",
    "chain_12_arithmetic": "(a * b + c) / (a * a + b * b + c * c) - (a - b) * (b - c)",
    "chain_2_functions": "exp(a) * b",
    "chain_4_functions": "tanh(a * b + c) * a",
    "chain_8_functions": "sqrt(a * a + b * b) * exp(-c) + a",
    "chain_12_functions": "(a / (b + exp(-c)) + tanh(a * b)) * sqrt(a * a + c * c)",
}
_FUNCTIONS = ("exp", "tanh", "sqrt")
# Bytes of an array from which a loop of numba's is worth waking its threads.
_PARALLEL_BYTES = 1 << 18

Function = Callable[..., Any]


def operands(name: str) -> list[str]:
    """The arrays of a chain.

    >>> operands("chain_2_functions")
    ['a', 'b']
    """
    return sorted(set(re.findall(r"\b[abc]\b", CHAINS[name])))


def function(name: str, library: Any) -> Function:
    """A chain as a function of a library's arrays, new at each call."""
    return _defined(f"def {name}({', '.join(operands(name))}):\n    return {CHAINS[name]}\n", name, library)


def _defined(text: str, name: str, library: Any, **more: Any) -> Function:
    namespace = {each: getattr(library, each) for each in _FUNCTIONS} | more
    exec(text, namespace)
    return namespace[name]


def numexpr_function(name: str, dtype: str, threads: int) -> Function:
    """A chain compiled by numexpr."""
    import numexpr
    from numexpr.necompiler import kind_to_type

    numexpr.set_num_threads(threads)
    kind = kind_to_type[{"float32": "float", "float64": "double"}[dtype]]
    return numexpr.NumExpr(CHAINS[name], [(each, kind) for each in operands(name)])


def numba_function(name: str, nbytes: int, threads: int) -> Function:
    """A chain as one writes it by hand for numba: a loop over elements, without fast-math.

    ``nbytes``: of an array."""
    import numba

    parallel = threads > 1 and nbytes >= _PARALLEL_BYTES
    if parallel:
        numba.set_num_threads(threads)
    element = re.sub(r"\b([abc])\b", r"\1[i]", CHAINS[name])
    text = (
        f"def {name}({', '.join(operands(name))}):\n"
        "    out = empty_like(a)\n"
        "    for i in indices(a.size):\n"
        f"        out[i] = {element}\n"
        "    return out\n"
    )
    loop = _defined(text, name, np, empty_like=np.empty_like, indices=numba.prange if parallel else range)
    return numba.njit(parallel=parallel, error_model="numpy")(loop)
