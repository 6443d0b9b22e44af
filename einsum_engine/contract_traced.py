"""`einsum`, `tensordot` and compiled contractions of arrays that are traced: they become equations of the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .contractor import Contractor
from .errors import EngineTypeError
from .expr import quoted
from .options import DEFAULT

if TYPE_CHECKING:
    from .ir import Program

# Options that belong to how a call is run: of a traced contraction, the function says that.
_OF_THE_CALL = ("threads", "memory_limit", "layouts", "profile")
_ORDERS = "CFK"


def traced_among(operands: Sequence[Any]) -> bool:
    """Whether one of ``operands`` is traced; tracing is not imported to see that."""
    trace = sys.modules.get(f"{__package__}.trace")
    return trace is not None and any([isinstance(x, trace.Tracer) for x in operands])


@contextmanager
def readable(name: str, operands: Sequence[Any]) -> Iterator[list[Any]]:
    """Tracers as they are, all others as arrays of NumPy: each with shape and dtype. Errors inside are those of ``name``.

    Raises `EngineTypeError` for arrays of other libraries.
    """
    from .trace import Tracer, plain
    from .trace_lines import located

    with located(name, *operands):
        yield [x if isinstance(x, Tracer) else plain(x) for x in operands]


def contract_traced(contractor: Contractor, operands: Sequence[Any], out: Any, alpha: Any, beta: Any) -> Any:
    """What the contraction of ``operands`` is in the function that is traced.

    Raises `EngineTypeError` for options that say how a call is run.
    """
    from .trace_contract import contract

    expr, options = contractor.expr, contractor.options
    for name in _OF_THE_CALL:
        if getattr(options, name) != getattr(DEFAULT, name):
            raise EngineTypeError(
                f"{name}={getattr(options, name)!r} for {quoted(expr.text)}: not supported in a traced function, whose"
                " contractions are planned with everything around them"
            )
    if options.order not in _ORDERS:
        raise EngineTypeError(
            f"order={options.order!r} for {quoted(expr.text)}: a traced function knows {', '.join(_ORDERS)}"
        )
    own = (options.optimize, options.minimize, options.max_time) == (DEFAULT.optimize, DEFAULT.minimize, None)
    known = [x.dtype.newbyteorder("=") for x in operands]
    return contract(
        expr,
        operands,
        dtype=contractor.result_dtype(known, None if out is None else out.dtype),
        path=None if own else contractor.order.path,
        accumulate=options.accumulate,
        conj=options.conj,
        factors=(alpha, beta),
        fortran=options.order == "F",
        view=contractor.view is not None,
        out=out,
    )


def program_of(
    contractor: Contractor, complete: Callable[[Sequence[Any]], Sequence[Any]], operands: Sequence[np.ndarray]
) -> Program:
    """The program of a contraction of arrays like ``operands``, which ``complete`` puts the constants between.

    Options that say how a call is run are left out. With ``beta`` there is one more input, ``out``.
    """
    from .jitted import jit

    options = contractor.options.replace(**{name: getattr(DEFAULT, name) for name in _OF_THE_CALL})
    base = Contractor(contractor.expr, options, order=contractor.order)

    def contraction(*given: Any) -> Any:
        arrays, out = (given[:-1], given[-1]) if options.beta else (given, None)
        with readable("einsum", complete(arrays)) as operands:
            return contract_traced(base, operands, out, options.alpha, options.beta)

    if options.beta:
        dtype = contractor.result_dtype([x.dtype for x in complete(operands)])
        operands = [*operands, np.empty(contractor.expr.output_shape, dtype)]
    return jit(contraction).program(*operands)
