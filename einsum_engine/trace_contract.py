"""Contractions of tracers: what `einsum_engine.einsum` and compiled contractions do in a function that is traced.

One equation `einsum`, with casts, conjugates and factors around it as equations of their own; where a path is given,
one equation for each of its steps (the planner draws up neighbours as one contraction of that order again).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .dtypes import result_type
from .expr import Expr, Index, Term, from_terms, kept, letters, parse, parse_interleaved, spelled
from .trace import Tracer, apply_map, as_tracer, given_dtype, implements
from .trace_lines import located
from .trace_functions import zeros
from .trace_store import destination, finish
from .trace_ufuncs import apply_einsum
from .views import View

Path = Sequence[tuple[int, ...]]


def contract(
    expr: Expr,
    operands: Sequence[Any],
    *,
    dtype: np.dtype,
    path: Path | None = None,
    accumulate: np.dtype | None = None,
    conj: Sequence[int] = (),
    factors: tuple[Any, Any] = (1, 0),
    fortran: bool = False,
    view: bool = False,
    out: Any = None,
    casting: str = "same_kind",
) -> Any:
    """``alpha * einsum(operands) + beta * out``, traced; ``factors`` are alpha and beta.

    ``dtype`` is that of the result; ``path`` a contraction path (None: the planner's own); ``view``: where NumPy's
    einsum returns a view, this is one of the traced array; ``fortran``: the result lies in Fortran order; ``casting``: the
    rule by which it goes to ``out``.
    """
    with located("einsum", *operands):
        arrays = [as_tracer(x) for x in operands]
        if view and not conj and out is None and arrays[0].dtype == dtype and expr.is_view:
            found = arrays[0].derive(lambda old: diagonal_view(old, expr))
            return found if found.shape else found[()]  # NumPy's is a number
        arrays = [x.conj() if at in conj else x for at, x in enumerate(arrays)]
        found = _whole(expr, arrays, path, dtype if accumulate is None else np.result_type(dtype, accumulate), fortran)
        found = _scaled(found.astype(dtype, copy=False), factors, out, dtype)
        return finish(found, out, casting)


def diagonal_view(old: View, expr: Expr) -> View:
    """The view of an operand that the expression names (`Expr.is_view`).

    >>> from einsum_engine.expr import parse
    >>> print(diagonal_view(View.whole((3, 2, 3)), parse("iji->ji", [(3, 2, 3)])))
    ([2,3],[3,7],0)
    """
    return View(expr.output_shape, _strides(old, expr.inputs[0], tuple(expr.output)), old.offset)


@implements(np.einsum)
def _np_einsum(
    *operands: Any,
    out: Any = None,
    dtype: Any = None,
    order: str = "K",
    casting: str = "safe",
    optimize: Any = False,
) -> Any:
    if isinstance(operands[0], (str, bytes)):
        arrays = [as_tracer(x) for x in operands[1:]]
        expr = parse(operands[0], [x.shape for x in arrays])
    else:
        given, terms, output = parse_interleaved(operands)
        arrays = [as_tracer(x) for x in given]
        expr = from_terms(terms, output, [x.shape for x in arrays])
    path = optimize[1:] if isinstance(optimize, (list, tuple)) and optimize and optimize[0] == "einsum_path" else None
    target = destination(out)
    given = [given_dtype(x) for x in arrays]
    with_out = [] if dtype is not None or target is None else [target.dtype]  # NumPy computes in a dtype of all
    wanted = result_type(*given, *with_out, dtype=dtype, casting=casting, text=expr.text)
    how = {"dtype": wanted, "path": path, "fortran": order == "F", "view": True}
    return contract(expr, arrays, **how, out=target, casting=casting)


def _whole(expr: Expr, arrays: list[Tracer], path: Path | None, dtype: np.dtype, fortran: bool) -> Tracer:
    """The sum in the order of the result's axes, repeated ones written to a diagonal of zeros."""
    output = tuple(dict.fromkeys(expr.output))
    output = output[::-1] if fortran else output
    terms, names = list(expr.inputs), letters([index for term in expr.inputs for index in term])
    for group in path or ():
        chosen = [(arrays.pop(at), terms.pop(at)) for at in sorted(group, reverse=True)][::-1]
        left = kept([term for _, term in chosen], [*terms, output]) if terms else output
        arrays.append(_einsum(chosen, left, names, dtype))
        terms.append(left)
    if terms == [output]:
        found = arrays[0].astype(dtype)
    else:
        found = _einsum(list(zip(arrays, terms)), output, names, dtype)
    found = found.transpose() if fortran else found
    if len(output) == len(expr.output):
        return found
    whole = zeros(expr.output_shape, dtype)
    distinct = tuple(dict.fromkeys(expr.output))
    whole.derive(lambda old: View(found.shape, _strides(old, expr.output, distinct), old.offset)).write(found)
    return whole


def _strides(old: View, term: Term, wanted: Term) -> tuple[int, ...]:
    """For each index of ``wanted`` the sum of the strides of the axes that ``term`` says have it."""
    strides = dict.fromkeys(wanted, 0)
    for index, stride in zip(term, old.strides):
        strides[index] += stride
    return tuple(strides.values())


def _einsum(chosen: Sequence[tuple[Tracer, Term]], output: Term, names: dict[Index, str], dtype: np.dtype) -> Tracer:
    subscripts = spelled([term for _, term in chosen], output, names)
    return apply_einsum(subscripts, *(array for array, _ in chosen), dtype=dtype)


def _scaled(found: Tracer, factors: tuple[Any, Any], out: Any, dtype: np.dtype) -> Tracer:
    alpha, beta = factors
    if alpha != 1:
        found = apply_map(np.multiply, found, dtype.type(alpha))
    if beta != 0:
        found = apply_map(np.add, found, apply_map(np.multiply, as_tracer(out).astype(dtype), dtype.type(beta)))
    return found


__all__ = ["contract", "diagonal_view"]
