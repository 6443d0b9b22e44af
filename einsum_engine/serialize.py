"""Compiled objects as JSON: the request, the order and a readable summary of the plan, which is checked on loading, as is
a digest of the whole text.

The plan itself is not read back: planning is deterministic, so it is made again and its hash compared. What only
stored objects need of the standard library is imported where it is used: the first einsum does not wait for it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Mapping

import numpy as np

from . import dtypes
from .cost import Machine
from .errors import EngineTypeError, EngineValueError
from .expr import Expr, from_terms, quoted
from .memory import MemoryLimit
from .options import Options
from .plan import Plan
from .planners.order import Order
from .version import __version__

FORMAT = "einsum_engine plan"
VERSION = 3


@dataclass(frozen=True, kw_only=True)
class State:
    """All that makes a compiled object: what was asked, the order that was found, the constants planned with.

    With these it becomes the same plan on any machine that has the instruction set, whatever was measured there.

    ``kinds`` are the dtype and the strides (bytes) of each operand, ``constants`` arrays by operand position, ``same``
    says which operands are one array, as in a `PlanRequest`.
    """

    expr: Expr
    options: Options
    kinds: tuple[tuple[np.dtype, tuple[int, ...]], ...]
    constants: Mapping[int, np.ndarray]
    order: Order
    machine: Machine
    same: tuple[int, ...] = ()


def dump(state: State, plan: Plan) -> str:
    """JSON text of a compiled object and of its plan."""
    import json

    expr, order = state.expr, state.order
    summary = summarise(plan)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "engine": __version__,
        "expr": {"text": expr.text, "inputs": expr.inputs, "output": expr.output, "shapes": expr.shapes},
        "options": _dump_options(state.options),
        "operands": [{"dtype": _dtype_text(dtype), "strides": strides} for dtype, strides in state.kinds],
        "same": state.same,
        "constants": {str(position): _dump_array(array, expr) for position, array in state.constants.items()},
        "order": asdict(order),
        "machine": asdict(state.machine),
        "isa": plan.isa,
        "threads": plan.threads,
        "hash": plan_hash(plan),
        "plan": summary,
    }
    return json.dumps(document | {"digest": digest(document)}, indent=1)


def read(text: bytes) -> tuple[State, dict[str, Any]]:
    """The state in a JSON text, and the document. EngineValueError where the text is not of this format, or no text."""
    import json

    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineValueError(f"not a saved plan: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise EngineValueError(f"not a saved plan: the text has no format {FORMAT!r}")
    if document.get("version") != VERSION:
        raise EngineValueError(f"saved plan of version {document.get('version')!r}; this engine reads {VERSION}")
    if document.get("digest") != digest(document):
        raise EngineValueError("saved plan is damaged: its content was changed after it was saved, or its digest is gone")
    try:
        return _read_state(document), document
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise EngineValueError(f"saved plan is damaged: {type(error).__name__} {error}") from None


def digest(document: Mapping[str, Any]) -> str:
    """A digest of all that a document says, however it is laid out: a constant or a stride that was changed makes no other
    plan, so `verify` would not see it."""
    return _hash({name: value for name, value in document.items() if name != "digest"})


def verify(document: Mapping[str, Any], plan: Plan) -> None:
    """EngineValueError where ``plan``, made for the same machine by the same engine, is not what was saved."""
    here = {"engine": __version__, "isa": plan.isa, "threads": plan.threads}
    # Another engine, instruction set or thread count may plan the same request in another way.
    if any(document[name] != value for name, value in here.items()):
        return
    if document["hash"] != plan_hash(plan):
        raise EngineValueError(
            f"saved plan of {quoted(plan.expr.text)} has hash {document['hash']!r}, planning it again gives"
            f" {plan_hash(plan)!r}: the file was changed, or planning is not what it was"
        )


def plan_hash(plan: Plan) -> str:
    """A hash of what a plan does, not of how fast it is predicted to be.

    It identifies the plan wherever it is made again: results of slices, for instance, belong to one.
    """
    return _hash(summarise(plan))


def _hash(data: Mapping[str, Any]) -> str:
    import hashlib
    import json

    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def summarise(plan: Plan) -> dict[str, Any]:
    """A plan as plain data, without predicted times."""
    return {
        "expr": plan.expr.eq,
        "shapes": plan.expr.shapes,
        "path": plan.path,
        "dtype": plan.dtype,
        "compute_dtype": plan.compute_dtype,
        "isa": plan.isa,
        "threads": plan.threads,
        "flops": plan.flops,
        "bytes_moved": plan.bytes_moved,
        "peak_bytes": plan.peak_bytes,
        "output_bytes": plan.output_bytes,
        "arena_bytes": plan.arena_bytes,
        "table_bytes": plan.table_bytes,
        "constant_bytes": plan.constant_bytes,
        "buffers": [
            {
                "name": buffer.name,
                "kind": buffer.kind,
                "offset": buffer.offset,
                "nbytes": buffer.nbytes,
                "dtype": buffer.dtype,
                "layout": buffer.layout.describe(),
            }
            for buffer in plan.buffers
        ],
        "steps": [
            {
                "expr": step.expr,
                "family": step.family,
                "kernel": step.kernel,
                "tile": step.tile,
                "dims": {kind: [[str(index), size] for index, size in dims] for kind, dims in step.dims.items()},
                "inputs": step.inputs,
                "output": step.output,
                "layouts": step.layouts,
                "flops": step.flops,
                "bytes_moved": step.bytes_moved,
                "tasks": step.tasks,
                "once": step.once,
            }
            for step in plan.steps
        ],
    }


def _read_state(document: Mapping[str, Any]) -> State:
    options = _read_options(document["options"])
    given = document["expr"]
    expr = from_terms(
        [_tuples(term) for term in given["inputs"]],
        _tuples(given["output"]),
        [_tuples(shape) for shape in given["shapes"]],
        strict=options.strict,
        text=given["text"],
    )
    order = document["order"]
    kinds = tuple((dtypes.to_dtype(each["dtype"]), _tuples(each["strides"])) for each in document["operands"])
    return State(
        expr=expr,
        options=options,
        kinds=kinds,
        constants={int(position): _read_array(array) for position, array in document["constants"].items()},
        order=Order(**{**order, "path": _tuples(order["path"])}),
        machine=Machine(**document["machine"]),
        same=_tuples(document.get("same", [])),
    )


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _dump_options(options: Options) -> dict[str, Any]:
    return {
        "dtype": _dtype_text(options.dtype),
        "casting": options.casting,
        "order": options.order,
        "alpha": _dump_number(options.alpha),
        "beta": _dump_number(options.beta),
        "conj": options.conj,
        "strict": options.strict,
        "accumulate": _dtype_text(options.accumulate),
        "threads": options.threads,
        "memory_limit": asdict(options.memory_limit),
        "max_time": options.max_time,
        "layouts": options.layouts,
        "profile": options.profile,
    }


def _read_options(saved: Mapping[str, Any]) -> Options:
    special = {
        "dtype": _read_dtype(saved["dtype"]),
        "accumulate": _read_dtype(saved["accumulate"]),
        "alpha": _read_number(saved["alpha"]),
        "beta": _read_number(saved["beta"]),
        "conj": _tuples(saved["conj"]),
        "memory_limit": MemoryLimit(**saved["memory_limit"]),
    }
    return Options(**{**saved, **special})


def _dump_number(value: Any) -> Any:
    """A number with its type: ``[real, imag]`` where it is complex."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, (bool, int, float)):
        return value
    raise EngineTypeError(f"a factor of type {type(value).__name__} cannot be saved as JSON")


def _read_number(value: Any) -> Any:
    return complex(*value) if isinstance(value, list) else value


def _dtype_text(dtype: np.dtype | None) -> str | None:
    """``<f8``, ``>c16``, ..., ``bfloat16``."""
    return None if dtype is None else dtype.name if dtypes.row(dtype).kind == "bf16" else dtype.str


def _read_dtype(text: str | None) -> np.dtype | None:
    return None if text is None else dtypes.to_dtype(text)


def _dump_array(array: np.ndarray, expr: Expr) -> dict[str, Any]:
    import base64

    if array.dtype.hasobject:
        raise EngineTypeError(f"a constant of {quoted(expr.text)} holds Python objects, which JSON cannot: pickle it")
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"dtype": _dtype_text(array.dtype), "shape": array.shape, "data": data}


def _read_array(saved: Mapping[str, Any]) -> np.ndarray:
    import base64

    flat = np.frombuffer(base64.b64decode(saved["data"]), dtypes.to_dtype(saved["dtype"]))
    return flat.reshape(saved["shape"])
