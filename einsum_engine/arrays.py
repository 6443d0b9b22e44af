"""Arrays of other libraries to NumPy arrays without a copy, and results back to the type of the operands.

No library is imported here for its own sake: an operand can only be a torch tensor where torch is loaded already.

What is returned: all operands from NumPy (arrays, scalars, lists, anything with ``__array__``) give NumPy; as soon
as one operand is a torch tensor, a JAX array or an array of the array API standard, the result is of that library,
on the CPU. Two such libraries in one call are an error. As in `np.einsum`, subclasses of `np.ndarray` (matrix, masked
arrays, whose mask is ignored) are read as plain arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from .devices import device_of
from .dtypes import as_numpy
from .errors import EngineTypeError, EngineValueError
from .expr import quoted

_PLAIN = (np.ndarray, np.generic, list, tuple, int, float, complex)
_SPARSE_MODULES = ("scipy.sparse", "sparse", "jax.experimental.sparse", "cupyx.scipy.sparse")


class Adapted(NamedTuple):
    """An operand as the engine reads it: ``conj`` asks for the conjugate of ``array``.

    ``wrap`` turns a NumPy result into the operand's own type (None: NumPy it stays); ``family`` names the library.
    """

    array: np.ndarray
    conj: bool = False
    wrap: Callable[[Any], Any] | None = None
    family: str = "numpy"


class Operands(NamedTuple):
    """All operands of a call: arrays, the positions to conjugate, and how to wrap the result (None: NumPy)."""

    arrays: tuple[np.ndarray, ...]
    conj: tuple[int, ...]
    wrap: Callable[[Any], Any] | None


def adapt_all(operands: Sequence[Any], text: str = "") -> Operands:
    """`adapt` for each operand of the expression ``text``; plain NumPy arrays pass at once.

    Raises as `adapt` does, and `EngineTypeError` where operands come from two libraries besides NumPy.

    >>> adapt_all([np.ones(3), [1, 2]]).arrays[1]
    array([1, 2])
    """
    if all([type(x) is np.ndarray for x in operands]):
        return Operands(tuple(operands), (), None)
    seen: dict[int, Adapted] = {}  # an operand that is given twice is one array
    for position, x in enumerate(operands):
        if id(x) not in seen:
            seen[id(x)] = adapt(x, position, text)
    adapted = [seen[id(x)] for x in operands]
    foreign = [(position, item) for position, item in enumerate(adapted) if item.wrap is not None]
    for position, item in foreign[1:]:
        first, (_, _, _, family) = foreign[0]
        if item.family != family:
            raise EngineTypeError(
                f"{_operand(position, text)} is an array of {item.family}, operand {first} one of {family}: "
                "convert one of them, the result can be of one library only"
            )
    conj = tuple([position for position, item in enumerate(adapted) if item.conj])
    return Operands(tuple([item.array for item in adapted]), conj, foreign[0][1].wrap if foreign else None)


def adapt(x: Any, position: int = 0, text: str = "") -> Adapted:
    """Read ``x``, operand ``position`` of the expression ``text``, as a NumPy array that shares its memory.

    Lists and objects that only have ``__array__`` may be copied. A lazily conjugated torch tensor is read as its
    storage with ``conj`` set; bfloat16 becomes ``ml_dtypes.bfloat16``. The dtype is not checked here.

    Raises `EngineTypeError` for what would lose something in silence: tensors that require gradients, tracers,
    sparse arrays (nothing is densified), arrays on a device, objects that are no arrays; `EngineValueError` for
    ragged lists.

    >>> adapt(2.5).array.shape
    ()
    """
    if type(x) is np.ndarray:
        return Adapted(x)
    if isinstance(x, _PLAIN):
        return Adapted(_as_array(x, position, text))
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if isinstance(x, getattr(torch, "Tensor", ())):
        return _adapt_torch(torch, x, position, text)
    if isinstance(x, getattr(jax, "Array", ())):
        return _adapt_jax(jax, x, position, text)
    return _adapt_other(x, position, text)


def adapt_out(out: Any, text: str = "") -> np.ndarray:
    """The NumPy array through which results are written into ``out`` (an array, or a plain torch CPU tensor).

    Raises `EngineTypeError` for anything that cannot be written in place, `EngineValueError` if it is read-only.

    >>> adapt_out([1, 2], "i->i")
    Traceback (most recent call last):
    einsum_engine.errors.EngineTypeError: out= of 'i->i' is a list: it must be an array that can be written into
    """
    if isinstance(out, np.ndarray):
        array = np.asarray(out)
    elif isinstance(out, getattr(sys.modules.get("torch"), "Tensor", ())):
        if out.is_conj() or out.is_neg():
            raise EngineTypeError(f"{_out(text)} is a lazily conjugated or negated torch.Tensor: resolve it first")
        array, _ = _read_torch(sys.modules["torch"], out, _out(text))
    else:
        note = " (jax arrays are immutable)" if isinstance(out, getattr(sys.modules.get("jax"), "Array", ())) else ""
        kind = type(out).__name__
        raise EngineTypeError(f"{_out(text)} is a {kind}{note}: it must be an array that can be written into")
    if not array.flags.writeable:
        raise EngineValueError(f"{_out(text)} is read-only")
    return array


def _as_array(x: Any, position: int, text: str) -> np.ndarray:
    try:
        return np.asarray(x)
    except ValueError as error:
        raise EngineValueError(f"{_operand(position, text)} cannot be read as an array: {error}") from error
    except (TypeError, RuntimeError) as error:
        raise EngineTypeError(f"{_operand(position, text)} cannot be read as an array: {error}") from error


# ---- torch ----------------------------------------------------------------------------------------------------


def _adapt_torch(torch: Any, x: Any, position: int, text: str) -> Adapted:
    array, conj = _read_torch(torch, x, _operand(position, text))
    return Adapted(array, conj, partial(_to_torch, torch), "torch")


def _read_torch(torch: Any, x: Any, where: str) -> tuple[np.ndarray, bool]:
    """Memory of a tensor, and whether its lazy conjugate bit is set. A lazy negative bit is resolved by a copy."""
    if x.requires_grad:
        raise EngineTypeError(f"{where} is a torch.Tensor that requires grad, which would be lost: pass x.detach()")
    if x.device.type != "cpu":
        raise EngineTypeError(f"{where} is a torch.Tensor on device {x.device}: only CPU memory can be read")
    if x.layout != torch.strided:
        raise EngineTypeError(f"{where} is a {x.layout} tensor: sparse operands are not densified, pass x.to_dense()")
    conj = x.is_conj()
    try:
        stored = (x.conj() if conj else x).resolve_neg()
        if x.dtype == torch.bfloat16:
            return stored.view(torch.int16).numpy().view(as_numpy("bfloat16")), conj
        return stored.numpy(), conj
    except (TypeError, RuntimeError) as error:
        kind = f"{type(x).__module__}.{type(x).__name__} of dtype {x.dtype}"
        raise EngineTypeError(f"{where} is a {kind} whose memory cannot be read: {error}") from error


def _to_torch(torch: Any, result: Any) -> Any:
    array = np.asarray(result)
    if array.dtype == object or array.dtype.char in "gG":
        raise EngineTypeError(f"the result is of dtype {array.dtype}, which torch does not have: give dtype=")
    if min(array.strides, default=0) < 0 or not array.flags.writeable:
        array = array.copy()
    if array.dtype.kind == "V":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


# ---- JAX ------------------------------------------------------------------------------------------------------


def _adapt_jax(jax: Any, x: Any, position: int, text: str) -> Adapted:
    if isinstance(x, jax.core.Tracer):
        raise EngineTypeError(
            f"{_operand(position, text)} is a jax tracer ({type(x).__name__}): the engine needs values, so it cannot "
            "be called inside jit, grad or vmap; use jax.pure_callback, or call it outside"
        )
    try:
        devices = x.devices()
        if any(device.platform != "cpu" for device in devices):
            names = ", ".join(sorted(map(str, devices)))
            raise EngineTypeError(f"{_operand(position, text)} is a jax.Array on device {names}: only the CPU is read")
        array = np.asarray(x)
    except EngineTypeError:
        raise
    except (TypeError, RuntimeError) as error:
        raise EngineTypeError(f"{_operand(position, text)} is a jax.Array that cannot be read: {error}") from error
    # A result stays uncommitted unless the operand is committed, so that later calls may still move it.
    device = next(iter(devices)) if len(devices) == 1 and getattr(x, "committed", False) else None
    return Adapted(array, False, partial(_to_jax, jax, device), "jax")


def _to_jax(jax: Any, device: Any, result: Any) -> Any:
    array = np.asarray(result)
    if array.dtype == object or array.dtype.char in "gG":
        raise EngineTypeError(f"the result is of dtype {array.dtype}, which jax does not have: give dtype=")
    return jax.device_put(array, device)


# ---- anything else --------------------------------------------------------------------------------------------


def _adapt_other(x: Any, position: int, text: str) -> Adapted:
    kind, where = f"{type(x).__module__}.{type(x).__name__}", _operand(position, text)
    if f"{kind}.".startswith(tuple([f"{module}." for module in _SPARSE_MODULES])):
        raise EngineTypeError(f"{where} is a {kind}: sparse operands are not densified, convert it to an array first")
    device = device_of(x)
    if device is not None:
        raise EngineTypeError(f"{where} is a {kind} on a {device} device: only CPU memory can be read")
    array = _from_dlpack(x)
    if array is None:
        array = _as_array(x, position, text)
    if array.ndim == 0 and array.dtype == object and not isinstance(x, Number):
        raise EngineTypeError(f"{where} is a {kind}, which is no array and has no __array__ or __dlpack__")
    if not hasattr(x, "__array_namespace__"):
        return Adapted(array)
    return Adapted(array, False, x.__array_namespace__().asarray, type(x).__module__.partition(".")[0])


def _from_dlpack(x: Any) -> np.ndarray | None:
    """Shared memory of ``x``, None where it has no DLPack, or not for its dtype or for NumPy."""
    if not hasattr(x, "__dlpack__"):
        return None
    try:
        return np.from_dlpack(x)
    except (BufferError, TypeError, RuntimeError, ValueError, AttributeError):
        return None


def _operand(position: int, text: str) -> str:
    return f"operand {position} of {quoted(text)}" if text else f"operand {position}"


def _out(text: str) -> str:
    return f"out= of {quoted(text)}" if text else "out="
