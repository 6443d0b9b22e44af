"""What a fresh process pays: import, the first einsum and the first call of a jitted function, with an empty and with a
filled kernel cache."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from ..errors import EngineError
from .cases import Case

_EXPRESSION = "abc,bcd,de->ae"
_SHAPES = ((8, 16, 4), (16, 4, 32), (32, 8))
_DTYPE = "float32"
_PROCESSES = 5  # with a warm cache: one alone says what the machine did in that moment

# The clock starts before anything but the standard library is imported.
_PROBE = """
import json, sys, time
expr, shapes, dtype = json.loads(sys.argv[1])
start = time.perf_counter()
import einsum_engine
imported = time.perf_counter()
import numpy
arrays = [numpy.ones(shape, dtype=dtype) for shape in shapes]
ready = time.perf_counter()
einsum_engine.einsum(expr, *arrays)
first = time.perf_counter()
einsum_engine.einsum(expr, *arrays)
second = time.perf_counter()
times = {"import": imported - start, "first_call": first - ready, "second_call": second - first, "total": first - start}
print(json.dumps(times))
"""

# A function of that many operations: a chain of different ones, with a row sum every tenth, so that it has several steps.
_FUNCTION_PROBE = """
import json, sys, time
import numpy as np
import einsum_engine as engine
count = json.loads(sys.argv[1])
steps = (np.add, np.multiply, np.subtract, np.maximum, lambda a, b: np.tanh(a), np.minimum, lambda a, b: np.exp(-abs(a)),
         lambda a, b: np.sqrt(abs(a)), lambda a, b: a / (b + 3))
def function(a, b):
    for at in range(count):
        a = a - a.sum(-1, keepdims=True) if at % 10 == 9 else steps[at % len(steps)](a, b)
    return a
a, b = np.ones((2, 20, 30))
engine.jit(lambda a, b: engine.einsum("ij,kj->ik", a, a).sum() + b)(a, b)  # modules are loaded
start = time.perf_counter()
jitted = engine.jit(function)
jitted(a, b)
first = time.perf_counter()
jitted(a, b)
print(json.dumps({"first_call": first - start, "second_call": time.perf_counter() - first}))
"""


def measure_function(operations: int, timeout: float = 300.0) -> dict[str, dict[str, float]]:
    """Seconds of the first call of a new jitted function of so many operations, after another one: ``cold`` (none of its
    kernels on disk) and ``warm``. As in `measure`, the cache folder is a temporary one."""
    return _cold_and_warm(operations, timeout, _FUNCTION_PROBE)


def measure(case: Case | None = None, timeout: float = 300.0) -> dict[str, dict[str, float]]:
    """Seconds of import, first and second einsum in a new process: ``cold`` (no kernel on disk) and ``warm``.

    ``total`` is the way from nothing to the first result, NumPy's import included. The cache folder is a temporary
    one; the user's own is untouched.
    """
    question = (_EXPRESSION, _SHAPES, _DTYPE) if case is None else (case.expr, case.shapes, case.dtype)
    return _cold_and_warm(question, timeout, _PROBE)


def _cold_and_warm(question: Any, timeout: float, probe: str) -> dict[str, dict[str, float]]:
    """One process with an empty cache, and medians of several with what that one left there."""
    with tempfile.TemporaryDirectory() as folder:
        cold, *warm = (_probe(question, folder, timeout, probe) for _ in range(1 + _PROCESSES))
    return {"cold": cold, "warm": {name: statistics.median(each[name] for each in warm) for name in cold}}


def _probe(question: Any, cache: str, timeout: float, probe: str) -> dict[str, float]:
    environment = {**os.environ, "EINSUM_ENGINE_CACHE_DIR": cache}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", probe, json.dumps(question)],  # the installed package, not a folder of its name
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or ["no message"]
        raise EngineError(f"a fresh process failed: {last[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"a fresh process took more than {timeout:.0f} s") from error
    return dict(json.loads(done.stdout))
