"""What a native entry reads: the fields of NumPy's arrays, and words of its record and of each array that it expects."""

from __future__ import annotations

# fields of PyObject and PyArrayObject, in bytes
TYPE, DATA, RANK, SHAPE, STRIDES, DESCR, FLAGS = 8, 16, 24, 32, 40, 56, 64
WRITEABLE = 0x0400

# words of the record
E_OPERANDS = 0
E_ARRAY_TYPE = 1
E_NOT_IMPLEMENTED = 2
E_LOCK = 3  # 1 while a call is in the entry, where it has an arena of its own
E_CONTEXT = 4
E_TABLE = 5
E_WALK = 6
E_OUT_DESCR, E_OUT_RANK, E_OUT_SHAPE = 7, 8, 9
E_EMPTY, E_RETURN = 10, 11  # PyArray_Empty, PyArray_Return
E_SAVE, E_RESTORE = 12, 13  # PyEval_SaveThread, PyEval_RestoreThread; 0: keep the GIL
E_EXPECTED = 14  # address: per array X_DESCR ..., X_WORDS words each
E_OUT_GIVEN = 15  # 1: the last argument is the output
E_LOCK_AT = 16  # address of the lock: E_LOCK, or that of the common arena
E_SIGNALS, E_DECREF = 17, 18  # PyErr_CheckSignals, Py_DecRef
E_FAILURES = 19  # address: for each CTX_ERROR from 1 up, exception and text of PyErr_Format
E_FORMAT = 20  # PyErr_Format
E_HANDLER = 21  # memory handler of a large result; 0: NumPy's own
E_SET_HANDLER = 22  # PyDataMem_SetHandler
E_POOL = 23  # address: words of the pool of results (`results`)
E_OUT_BYTES = 24
E_CLEAR = 25  # PyErr_Clear
E_WRITES = 26  # 1: X_WRITTEN is set of some array
E_OUT_ORDER = 27  # 1: the result is made in Fortran's order
E_OUT_PLACE = 28  # address: the word for where the output lies
E_WORDS = 29

# expected of one array; X_LAYOUT: address of shape and strides (rank words each); X_LOW, X_HIGH: first byte and end of
# its memory, from its first element; X_WRITTEN: the plan writes it; X_PLACE: address of the word for where it lies (the
# words of constants are there before)
X_DESCR, X_RANK, X_LAYOUT, X_LOW, X_HIGH, X_WRITTEN, X_PLACE = range(7)
X_WORDS = 7
