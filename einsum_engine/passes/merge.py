"""Equations that say the same are one, and scalars known before the call are computed before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import Atom, Eqn, Literal, Program
from ..ops import OPS
from ..views import View
from .edit import Rewriter, in_regions


def merge(program: Program) -> Program:
    """Each pure equation once (all are pure); maps of literals, and casts of counts, folded. Nothing large is made."""
    edit = Rewriter(program)
    known: dict[Any, tuple[Atom, ...]] = {}
    for given in program.eqns:
        eqn = in_regions(edit.renamed(given), merge)
        folded = _folded(eqn, edit)
        if folded is not None:
            edit.put(eqn.outputs[0], folded)
            continue
        key = (eqn.op, eqn.inputs, tuple([(k, _key(v)) for k, v in eqn.params]))
        found = known.setdefault(key, eqn.outputs)
        if found is eqn.outputs:
            edit.keep(eqn)
        for var, atom in zip(eqn.outputs, found):
            edit.put(var, atom)
    return edit.finish()


def _key(value: Any) -> Any:
    return value.canonical() if isinstance(value, View) else (type(value), value)


def _folded(eqn: Eqn, edit: Rewriter) -> Atom | None:
    if not eqn.outputs:  # a branch of which nobody needs anything
        return None
    row, out = OPS[eqn.op], eqn.outputs[0]
    if row.kind == "map" and all([isinstance(atom, Literal) for atom in eqn.inputs]):
        with np.errstate(all="ignore"):
            found = row.numpy(*(np.asarray(atom.value) for atom in eqn.inputs), **eqn.named)
        return Literal.of(np.asarray(found)[()], out.dtype)
    made = edit.defs.get(eqn.inputs[0].number) if eqn.op == "cast" else None
    if made is not None and made.op == "iota" and made.named["dtype"] == np.intp:
        return edit.emit("iota", (), eqn.where, size=made.named["size"], dtype=out.dtype)[0]
    return None
