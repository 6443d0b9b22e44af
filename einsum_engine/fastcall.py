"""Builds the native entry of a plan (`kernels.cpu.entry`): a builtin function that takes exactly the plan's arrays.

Everything that it relies on is checked first: 64-bit CPython with the GIL, and the array struct of the NumPy that is
loaded. Where a check fails there is no entry, and every call takes the general path.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
import sysconfig
from functools import cache, lru_cache
from typing import Callable, Sequence
from weakref import WeakValueDictionary

import numpy as np

from .kernels.cpu import entry_abi, library
from .kernels.failures import FAILURES
from .kernels.isa import ISA

# places in NumPy's C API: PyArray_Empty and PyArray_Return, fixed since 1.7; PyDataMem_SetHandler and
# PyDataMem_DefaultHandler, since 1.22
_EMPTY, _RETURN, _SET_HANDLER, _DEFAULT_HANDLER = 184, 76, 304, 306
_METH_FASTCALL = 0x0080
_IMMORTAL_CHECKED = (3, 11) <= sys.version_info[:2] <= (3, 14)


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


@lru_cache(maxsize=1)
def available() -> bool:
    """True when object and array structs are what the entry reads."""
    if struct.calcsize("P") != 8 or sys.implementation.name != "cpython" or not _IMMORTAL_CHECKED:
        return False
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    probe = np.zeros((3, 5, 7), np.float32)[1:, ::2].transpose(2, 0, 1)
    word = lambda at: ctypes.c_int64.from_address(at).value  # noqa: E731
    base = id(probe)
    rank = ctypes.c_int32.from_address(base + entry_abi.RANK).value
    if rank != 3 or word(base + entry_abi.TYPE) != id(np.ndarray):
        return False
    shape = tuple(word(word(base + entry_abi.SHAPE) + 8 * i) for i in range(3))
    strides = tuple(word(word(base + entry_abi.STRIDES) + 8 * i) for i in range(3))
    same = shape == probe.shape and strides == probe.strides and word(base + entry_abi.DATA) == probe.ctypes.data
    return same and word(base + entry_abi.DESCR) == id(probe.dtype)


@cache
def _api(at: int) -> int:
    """What stands at a place of NumPy's C API: an address."""
    from numpy._core import _multiarray_umath

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = get(_multiarray_umath._ARRAY_API, None)
    return ctypes.c_int64.from_address(table + 8 * at).value


@cache
def _set_handler() -> Callable:
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_api(_SET_HANDLER))


def set_handler(handler: object) -> object:
    """Has NumPy make arrays by a memory handler (a capsule) from now on, in this context; the one before."""
    return _set_handler()(handler)


def default_handler() -> object:
    """NumPy's own memory handler."""
    return ctypes.py_object.from_address(_api(_DEFAULT_HANDLER)).value


@cache
def _symbol(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value


@cache
def _failures() -> tuple[int, np.ndarray, list]:
    """Address of the table of exceptions and texts, and what it lies in."""
    texts = [ctypes.create_string_buffer(text.encode()) for _, text in FAILURES.values()]
    pairs = zip(FAILURES.values(), texts)
    words = np.array([word for (kind, _), text in pairs for word in (id(kind), ctypes.addressof(text))], np.int64)
    return place(words), words, texts


def make_entry(
    *,
    isa: ISA,
    dtypes: Sequence[np.dtype],
    shapes: Sequence[tuple[int, ...]],
    strides: Sequence[tuple[int, ...]],
    out_dtype: np.dtype,
    out_shape: tuple[int, ...],
    out_strides: tuple[int, ...] | None = None,
    out_order: str = "C",
    places: Sequence[int],
    context: int,
    table: int,
    lock: int,
    release_gil: bool,
    written: Sequence[int] = (),
    handler: object = None,
    pool: int = 0,
    keep: tuple,
) -> Callable | None:
    """A builtin ``f(*arrays) -> array`` or NotImplemented; None where the entry cannot be used.

    With ``out_strides`` it is ``f(*arrays, out) -> out``. The output and the operands ``written`` are not taken where
    they are read-only or share memory with another array. ``out_order``, C or F, is that of a result that it makes.

    ``places`` are addresses of the words of the context that say where each operand lies, and then the output.

    ``handler`` is the memory handler that makes the result (None: NumPy's), ``pool`` the address of its words.

    ``context`` and ``table`` are addresses of the call context and the step table, ``lock`` that of the word which
    says whether the context's arena is in use (0: nobody else has it); ``keep`` holds their owners alive for as long
    as the function lives.
    """
    if not available():
        return None
    arrays = list(zip(dtypes, shapes, strides))
    if out_strides is not None:
        arrays.append((out_dtype, out_shape, out_strides))
        written = (*written, len(dtypes))
    # Behind the words of the record: what is expected of each array, the extents of the result, of each array extents
    # and strides.
    expected = entry_abi.E_WORDS + entry_abi.X_WORDS * len(arrays)
    layouts = list(out_shape or (0,))
    for _, shape, stride in arrays:
        layouts += shape
        layouts += stride
    record = _Record(expected + len(layouts))
    _records[id(record)] = record
    first = place(record)
    values = _common_words(isa, release_gil).copy()
    values[entry_abi.E_OPERANDS] = len(dtypes)
    values[entry_abi.E_LOCK_AT] = lock or first + 8 * entry_abi.E_LOCK
    values[entry_abi.E_CONTEXT] = context
    values[entry_abi.E_TABLE] = table
    values[entry_abi.E_OUT_DESCR] = id(out_dtype)
    values[entry_abi.E_OUT_RANK] = len(out_shape)
    values[entry_abi.E_OUT_SHAPE] = first + 8 * expected
    values[entry_abi.E_EXPECTED] = first + 8 * entry_abi.E_WORDS
    values[entry_abi.E_OUT_ORDER], values[entry_abi.E_OUT_PLACE] = int(out_order == "F"), places[-1]
    values[entry_abi.E_OUT_GIVEN] = int(out_strides is not None)
    values[entry_abi.E_WRITES] = int(len(written) > 0)
    values[entry_abi.E_OUT_BYTES] = out_dtype.itemsize * math.prod(out_shape)
    if handler is not None:
        values[entry_abi.E_HANDLER], values[entry_abi.E_POOL] = id(handler), pool
    where = first + 8 * (expected + max(len(out_shape), 1))
    for at, (dtype, shape, stride) in enumerate(arrays):
        values += id(dtype), len(shape), where, *_bounds(dtype.itemsize, shape, stride), int(at in written), places[at]
        where += 8 * (len(shape) + len(stride))
    values += layouts
    struct.pack_into(f"{len(values)}q", record, 0, *values)
    record.keep = (tuple(dtypes), out_dtype, handler, keep)
    return _new_function()(_method(library.address("entry", isa)), record, None)


@cache
def _method(function: int) -> int:
    """Address of what all entries with this code are made from, which stays for as long as the process."""
    method = _methods[function] = _MethodDef(b"einsum", function, _METH_FASTCALL, None)
    return ctypes.addressof(method)


_methods: dict[int, _MethodDef] = {}


@lru_cache(maxsize=16)
def _common_words(isa: ISA, release_gil: bool) -> list[int]:
    """Words of a record that all entries have."""
    values = [0] * entry_abi.E_WORDS
    values[entry_abi.E_ARRAY_TYPE] = id(np.ndarray)
    values[entry_abi.E_NOT_IMPLEMENTED] = id(NotImplemented)
    values[entry_abi.E_WALK] = library.address("walk", isa)
    values[entry_abi.E_EMPTY], values[entry_abi.E_RETURN] = _api(_EMPTY), _api(_RETURN)
    values[entry_abi.E_SET_HANDLER], values[entry_abi.E_CLEAR] = _api(_SET_HANDLER), _symbol("PyErr_Clear")
    if release_gil:
        values[entry_abi.E_SAVE], values[entry_abi.E_RESTORE] = _symbol("PyEval_SaveThread"), _symbol("PyEval_RestoreThread")
    values[entry_abi.E_SIGNALS], values[entry_abi.E_DECREF] = _symbol("PyErr_CheckSignals"), _symbol("Py_DecRef")
    values[entry_abi.E_FAILURES], values[entry_abi.E_FORMAT] = _failures()[0], _symbol("PyErr_Format")
    return values


@lru_cache(maxsize=1)
def _new_function() -> Callable:
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return new


def place(memory: np.ndarray) -> int:
    """Address of a contiguous array that may be written and has elements; to ask the array takes five times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@lru_cache(maxsize=2048)
def _bounds(itemsize: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """First byte and end of an array's memory, relative to its first element."""
    first, last = 0, itemsize
    for size, stride in zip(shape, strides):
        if stride < 0:
            first += (size - 1) * stride
        else:
            last += (size - 1) * stride
    return first, last


class _Record(np.ndarray):
    """The record array, with a place for what must live as long as it."""

    def __new__(cls, words: int):
        return np.zeros(words, np.int64).view(cls)

    keep: tuple = ()


_records: WeakValueDictionary[int, _Record] = WeakValueDictionary()  # of all entries that live


def _forked() -> None:
    """Entries that another thread of the parent was in are free again: that thread is not in the child."""
    for record in _records.values():
        record[entry_abi.E_LOCK] = 0


os.register_at_fork(after_in_child=_forked)
