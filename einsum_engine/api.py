"""What users call: `einsum`, `compile`, `tensordot`, `transpose`, `load`.

The modules beside this one that only it uses (`contractor`, `compiled`, `routes`, `options`, ...) are its parts:
together they are the one place that knows planners and the executor.
"""

from __future__ import annotations

from functools import lru_cache, partial, wraps
from operator import index, is_not
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Sequence, Unpack

import numpy as np

from . import dtypes, recycle, serialize
from .arrays import adapt, adapt_all, adapt_out
from .callkeys import alternating, remembered, with_options
from .compiled import Compiled, hand_back, rebuild
from .contract_traced import contract_traced, readable, traced_among
from .contractor import Contractor, Kind, same_arrays
from .errors import EngineTypeError, EngineValueError
from .expr import Expr, from_terms, parse, parse_interleaved, quoted
from .lru import BoundedCache
from .measured import time_objective
from .options import DEFAULT, CallOptions, CompileOptions, Options, check_flag, one_or_several, parse_options
from .planners.order import register_optimizer, registry_version
from .planners.request import LAYOUTS
from .views import dense_strides

if TYPE_CHECKING:
    from .planners.paths import contract_path, einsum_path

__all__ = [
    "Compiled",
    "clear_cache",
    "compile",
    "contract_path",
    "einsum",
    "einsum_path",
    "load",
    "register_optimizer",
    "tensordot",
    "time_objective",
    "transpose",
]

# Expressions (with shapes and options) whose order and plans are kept.
CONTRACTORS = 1024
BACKENDS = ("cpu",)
_INT = {int}

_contractors = BoundedCache(CONTRACTORS)
# Subscripts, or axes of a tensordot -> the quick function used last for them: tried first, it checks its operands.
_entries = BoundedCache(CONTRACTORS)
_raw_entries = BoundedCache(CONTRACTORS)
_into_entries = BoundedCache(CONTRACTORS)


def einsum(subscripts: Any = (), *operands: Any, out: Any = None, **options: Unpack[CallOptions]) -> Any:
    """The Einstein summation ``subscripts`` over ``operands``, with the meaning of ``np.einsum(optimize=False)``.

    ``subscripts`` is a string (any Unicode letters), or operands alternate with lists of integers. Besides NumPy's
    options:

    - ``optimize``: True or ``"auto"``, False (left to right), the name of an optimiser, a path, or an optimiser
      of opt_einsum or cotengra; ``max_time`` bounds the search, in seconds.
    - ``minimize``: what that search makes small, ``"flops"`` or ``"time"`` (as the engine predicts it for these
      dtypes), or what `time_objective` returns.
    - ``order``: of a fresh result, ``C`` unless said otherwise; ``K`` promises no strides.
    - ``alpha``, ``beta``: ``alpha * result + beta * out``; ``beta=0`` never reads ``out``.
    - ``conj``: positions of operands that are conjugated.
    - ``strict``: True refuses to broadcast an axis of size 1 of a named index.
    - ``accumulate``: a wider dtype to sum in; an integer result has it too, unless ``dtype`` is given.
    - ``copy``: True returns a fresh array where NumPy's einsum returns a view (``ij->ji``, ``ii->i``).
    - ``threads``: at most so many. ``memory_limit``: an int is elements of the largest intermediate, ``"8GiB"`` or
      ``"80%"`` bounds the bytes that the call holds besides its operands.

    An output index may be repeated (``i->ii``). The result has the type of the operands (NumPy, PyTorch or JAX on the
    CPU); without axes and ``out`` it is a scalar.

    Raises `EngineValueError` or `EngineTypeError`, which are also ValueError and TypeError, and then writes nothing;
    `EngineMemoryError` names the bytes.

    >>> a = np.arange(6.0).reshape(2, 3)
    >>> einsum("ij,kj->ik", a, a)
    array([[ 5., 14.],
           [14., 50.]])
    """
    try:
        if subscripts.__class__ is str:
            key, arrays = subscripts, operands
        else:
            key, arrays = alternating(subscripts, operands)
        if options:
            key = with_options(key, options)
        entry = (_entries if out is None else _into_entries).get(key)
    except (TypeError, ValueError):
        # Something that cannot be part of a key, such as a path as an array.
        entry = None
    if entry is not None:
        result = entry(*arrays) if out is None else entry(*arrays, out)
        if result is not NotImplemented:
            return result
    return _einsum(subscripts, operands, out, options)


def _einsum(subscripts: Any, given_operands: Sequence[Any], out: Any, given: CallOptions) -> Any:
    options = parse_options(given, "einsum", also=("out",))
    subject, operands = _subject(subscripts, given_operands)
    if traced_among((*operands, out)):
        with readable("einsum", operands) as arrays:
            contractor = _contractor(subject, arrays, options)
            return contract_traced(contractor, arrays, out, options.alpha, options.beta)
    text = subject if isinstance(subject, str) else ""
    arrays, conj, wrap = adapt_all(operands, text)
    # An operand that comes conjugated is another expression, of which its memory says nothing.
    key = None if conj else remembered(subscripts, given_operands, given, options)
    entry = None if key is None or out is not None or not any(map(is_not, arrays, operands)) else _entries.get(key)
    if entry is not None:
        # Lists and arrays of other libraries are NumPy's by now.
        result = entry(*arrays)
        if result is not NotImplemented:
            return result if wrap is None else wrap(np.asarray(result))
    contractor = _contractor(subject, arrays, options, conj)
    if out is not None:
        target = adapt_out(out, contractor.expr.text)
        contractor.call(arrays, target, options.alpha, options.beta)
        entry = None if key is None else contractor.into_entry(arrays, target, options.alpha, options.beta)
        if entry is not None:
            _into_entries.put(key, entry)
        return out
    result = contractor.call(arrays, None, options.alpha, options.beta)
    if key is not None:
        _remember(_entries, key, contractor, arrays, options.alpha, scalar=True)
    return hand_back(result, wrap)


def _subject(subscripts: Any, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """What is contracted, hashable (a string, or terms of integers), and the operands."""
    if isinstance(subscripts, (str, bytes)):
        return str(subscripts) if isinstance(subscripts, str) else subscripts, operands
    arrays, terms, output = parse_interleaved((subscripts, *operands))
    return (terms, output), arrays


def _expr(subject: Any, shapes: Sequence[tuple[int, ...]], strict: bool) -> Expr:
    if isinstance(subject, tuple):
        return from_terms(subject[0], subject[1], shapes, strict=strict)
    return parse(subject, shapes, strict=strict)


def _contractor(
    subject: Any, arrays: Sequence[np.ndarray], options: Options, lazy_conj: tuple[int, ...] = ()
) -> Contractor:
    """The contraction of these shapes and options, from the cache where it was made before."""
    shapes = tuple([array.shape for array in arrays])
    if options.minimize == "time":
        options = _timed(options, [array.dtype for array in arrays], subject)
    if options is DEFAULT and not lazy_conj:
        key: Any = (subject, shapes)
    else:
        if lazy_conj:
            options = options.replace(conj=tuple(sorted(set(options.conj) ^ set(lazy_conj))))
        # Factors belong to the call. Of an optimiser object the path counts: it may find another each time.
        options = options.replace(alpha=1, beta=0)
        if not isinstance(options.optimize, (str, bool, tuple)):
            contractor = Contractor(_expr(subject, shapes, options.strict), options)
            options = options.replace(optimize=contractor.order.path)
        key = (subject, shapes, options, registry_version())
    found = _contractors.get(key)
    if found is None:
        found = Contractor(_expr(subject, shapes, options.strict), options)
        _contractors.put(key, found)
    return found


def _timed(options: Options, known: Sequence[np.dtype], subject: Any) -> Options:
    """The options with the objective that ``minimize="time"`` means for operands of these dtypes."""
    text = subject if isinstance(subject, str) else ""
    dtype = dtypes.result_type(*known, dtype=options.dtype, casting=options.casting, out=None, text=text)
    return options.replace(minimize=time_objective(dtype, threads=options.threads))


def _remember(
    entries: BoundedCache, key: Any, contractor: Contractor, arrays: Sequence[np.ndarray], alpha: Any, scalar: bool
) -> None:
    """Let the quick function for these operands be the one that is tried first for ``key``."""
    kinds = tuple([(array.dtype, array.strides) for array in arrays])
    route = contractor.route(kinds, None, alpha != 1, contractor.same(arrays))
    entry = contractor.entry(route, kinds, alpha, scalar=scalar) if route.calls >= 2 else None
    if entry is not None:
        entries.put(key, entry)


def clear_cache() -> None:
    """Forget all plans that `einsum` and `tensordot` made, for instance after an environment variable was changed, and
    let go of memory that is kept for results and intermediates to come."""
    for cache in (_contractors, _entries, _raw_entries, _into_entries, recycle.results, recycle.arenas):
        cache.clear()


def compile(expr: Any, *operands: Any, **options: Unpack[CompileOptions]) -> Compiled:
    """Plan ``expr`` once, for arrays like ``operands``: a callable ``f(*arrays, out=None)``.

    ``operands`` are arrays or shapes (tuples of ints); ``expr`` is a string, or they alternate with lists of integers
    as in `einsum`, whose options it takes besides ``out``. And:

    - ``dtypes``: one for all shapes or a sequence, one per operand (float64 where it is not said).
    - ``constants``: positions of operands that never change and are given here as arrays, or a dict from positions to
      arrays. They are copied, and left out of the calls.
    - ``backend``: ``"cpu"``.
    - ``layouts``: how intermediates lie in memory. ``"solve"``: as is predicted to be fastest; ``"natural"`` (C order),
      ``"merged"`` (the matrix that the next step reads), ``"panels"`` and ``"nested"`` (panels in blocks of the summed
      dimension) are there to be compared with it.
    - ``profile``: True has every call measured, which makes calls slower: `Compiled.explain` then shows, and
      `Compiled.profiles` has, the time of each step in kernel, packing and unpacking.

    Where one array is given for several operands, what is contracted twice in the same way is planned to be done once.
    That plan serves calls in which those operands are one array again; others are planned at their first call.

    Raises what `einsum` raises, `EngineValueError` also where no order keeps to ``memory_limit``.

    >>> f = compile("ij,jk->ik", (2, 3), (3, 4))
    >>> f(np.ones((2, 3)), np.ones((3, 4)))[0]
    array([3., 3., 3., 3.])
    >>> f.plan.output_bytes
    64
    """
    given = dict(options)
    wanted, constants, backend = given.pop("dtypes", None), given.pop("constants", None), given.pop("backend", "cpu")
    profile = check_flag("profile")(given.pop("profile", False))
    if backend not in BACKENDS:
        raise EngineValueError(f"backend={backend!r}: there is {', '.join(BACKENDS)}")
    layouts = given.pop("layouts", "solve")
    if layouts not in LAYOUTS:
        raise EngineValueError(f"layouts={layouts!r}: there are {', '.join(LAYOUTS)}")
    parsed = parse_options(given, "compile", also=("backend", "constants", "dtypes", "layouts", "profile"))
    if profile or layouts != parsed.layouts:
        parsed = parsed.replace(profile=profile, layouts=layouts)
    subject, operands = _subject(expr, operands)
    text = subject if isinstance(subject, str) else ""
    fixed = _constants(constants, operands, text)
    samples = [fixed.get(position, each) for position, each in enumerate(operands)] if fixed else operands
    kinds, shapes, arrays = _kinds(samples, wanted, text)
    parsed_expr = _expr(subject, shapes, parsed.strict)
    for position, array in fixed.items():
        fixed[position] = _frozen(array, position, text)
        kinds[position] = (fixed[position].dtype, fixed[position].strides)
    variables = [n for n, array in enumerate(arrays) if array is not None and n not in fixed]
    same = same_arrays(arrays, variables) if variables else ()
    if parsed.minimize == "time":
        parsed = _timed(parsed, [dtype for dtype, _ in kinds], subject)
    return Compiled(parsed_expr, parsed, kinds, constants=fixed, same=same).prepare()


def _constants(constants: Any, operands: Sequence[Any], text: str) -> dict[int, Any]:
    """Position -> array, of ``constants=`` as a dict or as positions."""
    if constants is None:
        return {}
    if isinstance(constants, dict):
        found = dict(constants)
    else:
        found = {position: None for position in one_or_several(constants)}
    for position in found:
        if not hasattr(position, "__index__") or isinstance(position, bool):
            raise EngineTypeError(f"constants={constants!r}: expected positions or a dict from positions to arrays")
        if not 0 <= position < len(operands):
            raise EngineValueError(f"constants names operand {position} of {quoted(text)}, which has {len(operands)}")
        if found[position] is None:
            found[position] = operands[position]
        if _is_shape(found[position]):
            raise EngineTypeError(f"operand {position} of {quoted(text)} is a constant: give the array, not its shape")
        given = operands[position]
        if _is_shape(given) and tuple(given) != np.shape(found[position]):
            raise EngineValueError(
                f"operand {position} of {quoted(text)} has shape {tuple(given)}, but its constant has"
                f" {np.shape(found[position])}"
            )
    return found


def _frozen(operand: Any, position: int, text: str) -> np.ndarray:
    """A private copy of a constant, in C order."""
    adapted = adapt(operand, position, text)
    array = np.array(adapted.array, order="C", copy=True)
    if adapted.conj:
        np.conjugate(array, out=array)
    array.flags.writeable = False
    return array


def _is_shape(operand: Any) -> bool:
    if not isinstance(operand, (tuple, list)):
        return False
    if set(map(type, operand)) <= _INT:
        return True
    return all([size.__class__ is int or hasattr(size, "__index__") for size in operand])


def _kinds(
    operands: Sequence[Any], wanted: Any, text: str
) -> tuple[list[Kind], list[tuple[int, ...]], list[np.ndarray | None]]:
    """Dtype and strides of each operand to compile for, its shape, and the array where it is not given as a shape."""
    if wanted is None or isinstance(wanted, (str, type, np.dtype)) or not hasattr(wanted, "__len__"):
        wanted = [wanted] * len(operands)
    if len(wanted) != len(operands):
        raise EngineValueError(f"dtypes names {len(wanted)} dtypes, {quoted(text)} has {len(operands)} operands")
    kinds: list[Kind] = []
    shapes: list[tuple[int, ...]] = []
    arrays: list[np.ndarray | None] = []
    known, named = None, None  # the name before this one, which is mostly the same, and its dtype
    for position, (operand, name) in enumerate(zip(operands, wanted)):
        if name is not known:
            known, named = name, None if name is None else dtypes.to_dtype(name, f"dtypes[{position}]=")
        dtype = named
        if _is_shape(operand):
            dtype = np.dtype(np.float64) if dtype is None else dtype
            shape = tuple(map(index, operand))
            strides = dense_strides(shape, dtype.itemsize)
            arrays.append(None)
        else:
            array = adapt(operand, position, text).array
            if dtype is not None and dtype != array.dtype:
                raise EngineTypeError(
                    f"operand {position} of {quoted(text)} has dtype {array.dtype}, but dtypes says {dtype}"
                )
            dtype, shape, strides = array.dtype, array.shape, array.strides
            arrays.append(array)
        kinds.append((dtype, strides))
        shapes.append(shape)
    return kinds, shapes, arrays


def __getattr__(name: str) -> Any:
    # Paths alone are asked for seldom: the first einsum does not wait for their module.
    if name in ("contract_path", "einsum_path"):
        from .planners import paths

        return _on_this_machine(getattr(paths, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _on_this_machine(search: Callable[..., Any]) -> Callable[..., Any]:
    """``search`` with ``minimize="time"`` as `time_objective` means it, for float64."""

    @wraps(search)
    def searched(*operands: Any, minimize: Any = "flops", **options: Any) -> Any:
        by_time = isinstance(minimize, str) and minimize == "time"
        return search(*operands, minimize=time_objective() if by_time else minimize, **options)

    return searched


def array_function(name: str) -> Callable[..., Any]:
    """A NumPy function that goes by the type of its arguments, for libraries that have this module as a backend."""
    import autoray  # only where a library asks

    return partial(autoray.do, name)


def load(path: str | PathLike[str]) -> Compiled:
    """The compiled object that ``Compiled.save`` wrote; planned again, and checked against what was saved.

    EngineValueError where the file is not a saved plan, was changed since, or its plan is not what this engine makes of it.
    """
    state, document = serialize.read(Path(path).read_bytes())
    found = rebuild(state).prepare()
    serialize.verify(document, found.plan)
    return found


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """``np.tensordot``: sum over ``axes``, the number of last axes of ``a`` and first of ``b``, or a pair of lists.

    >>> tensordot(np.ones((2, 3)), np.ones((3, 2)), axes=1)
    array([[3., 3.],
           [3., 3.]])
    """
    try:
        entry = _raw_entries.get(axes)
    except TypeError:
        # Lists of axes.
        axes = _pair_of_axes(axes)
        entry = _raw_entries.get(axes)
    if entry is not None:
        result = entry(a, b)
        if result is not NotImplemented:
            return result
    if traced_among((a, b)):
        with readable("tensordot", (a, b)) as arrays:
            subject = _tensordot_terms(arrays[0].shape, arrays[1].shape, _pair_of_axes(axes))
            return contract_traced(_contractor(subject, arrays, DEFAULT), arrays, None, 1, 0)
    arrays, conj, wrap = adapt_all((a, b), "tensordot")
    subject = _tensordot_terms(arrays[0].shape, arrays[1].shape, _pair_of_axes(axes))
    contractor = _contractor(subject, arrays, DEFAULT, conj)
    result = contractor.call(arrays)
    if wrap is not None:
        return wrap(result)
    _remember(_raw_entries, axes, contractor, arrays, 1, scalar=False)
    return result


def _pair_of_axes(axes: Any) -> Any:
    """``axes`` as an int or as two tuples of ints."""
    try:
        return index(axes)
    except TypeError:
        pass
    try:
        left, right = (_axes_of_one(each) for each in axes)
    except (TypeError, ValueError):
        raise EngineTypeError(f"tensordot: axes={axes!r}: expected an int, or a pair of axes or of lists") from None
    return left, right


def _axes_of_one(axes: Any) -> tuple[int, ...]:
    try:
        return (index(axes),)
    except TypeError:
        return tuple([index(axis) for axis in axes])


@lru_cache(maxsize=1024)
def _tensordot_terms(a: tuple[int, ...], b: tuple[int, ...], axes: Any) -> tuple[Any, Any]:
    """Terms of integers: the axes of ``a`` are 0, 1, ..., those of ``b`` follow, summed ones have one number."""
    if isinstance(axes, int):
        if not 0 <= axes <= min(len(a), len(b)):
            raise EngineValueError(f"tensordot: axes={axes}, but the operands have shapes {a} and {b}")
        axes = (tuple(range(len(a) - axes, len(a))), tuple(range(axes)))
    left, right = (
        [_axis(axis, shape, position) for axis in each] for position, (each, shape) in enumerate(zip(axes, (a, b)))
    )
    if len(left) != len(right):
        raise EngineValueError(f"tensordot: {len(left)} axes of operand 0 meet {len(right)} of operand 1: {axes}")
    for axis_a, axis_b in zip(left, right):
        if a[axis_a] != b[axis_b]:
            raise EngineValueError(
                f"tensordot: axis {axis_a} of operand 0 has size {a[axis_a]}, axis {axis_b} of operand 1 has"
                f" {b[axis_b]} (shapes {a} and {b})"
            )
    for position, each in enumerate((left, right)):
        if len(set(each)) != len(each):
            raise EngineValueError(f"tensordot: axes={axes} names an axis of operand {position} twice")
    first = tuple(range(len(a)))
    second = tuple(left[right.index(axis)] if axis in right else len(a) + axis for axis in range(len(b)))
    output = tuple(i for i in first if i not in left) + tuple(i for i in second if i >= len(a))
    return (first, second), output


def _axis(axis: int, shape: tuple[int, ...], position: int) -> int:
    if not -len(shape) <= axis < len(shape):
        raise EngineValueError(f"tensordot: operand {position} of shape {shape} has no axis {axis}")
    return axis % len(shape)


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """``np.transpose``: a view with the axes in another order, of the type of ``x``.

    >>> transpose(np.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    if isinstance(x, np.ndarray):
        try:
            return x.transpose(axes)
        except ValueError as error:
            raise EngineValueError(f"transpose: axes={axes!r} of an array of shape {x.shape}: {error}") from None
    if not hasattr(x, "ndim"):
        return transpose(np.asarray(x), axes)
    order = tuple(range(x.ndim)[::-1] if axes is None else axes)
    # torch calls it permute, and means two axes by transpose.
    return x.permute(order) if hasattr(x, "permute") else x.transpose(order)
