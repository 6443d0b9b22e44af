"""Plans made without the public API: a request, its plan, and one call of the bound plan."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import Iterator

import numpy as np
import oracle
import pytest
from hypothesis import strategies as st

import einsum_engine as engine
from einsum_engine import cost, executor, measured
from einsum_engine.expr import parse
from einsum_engine.kernels import isa
from einsum_engine.plan import Plan
from einsum_engine.planners import memo
from einsum_engine.planners.build import PlanRequest, build_plan
from einsum_engine.planners.order import find_order


@contextmanager
def made_anew() -> Iterator[None]:
    """Plans that were made before are not found inside, nor those made inside afterwards: constants of planners differ."""
    try:
        memo.forget()
        engine.clear_cache()
        yield
    finally:
        memo.forget()
        engine.clear_cache()


def typical(row: isa.ISA, *, peak: float = 1.0, **factors: float) -> cost.Machine:
    """The typical machine of an instruction set, some constants so many times as large."""
    made = cost.typical_machine(row.name, row.vector_bits, row.fma)
    rates = {name: rate * peak for name, rate in made.peak.items()}
    return replace(made, peak=rates, **{name: by * getattr(made, name) for name, by in factors.items()})


@contextmanager
def machine(**factors: float) -> Iterator[None]:
    """Plans inside are made for a machine whose constants (`cost.CONSTANTS`) are so many times the typical ones."""

    def made(row: isa.ISA) -> cost.Machine:
        typical = cost.typical_machine(row.name, row.vector_bits, row.fma)
        constants = {name: typical.peak.get(name) or getattr(typical, name) for name in cost.CONSTANTS}
        return cost.measured_machine(typical, constants | {name: constants[name] * by for name, by in factors.items()})

    machines = {row.name: made(row) for row in isa.host_isas()}
    with pytest.MonkeyPatch.context() as patch, made_anew():
        patch.setattr(measured, "machine", lambda row: machines[row.name])
        yield


# Cores with large vectors and much memory bandwidth: what moves costs less beside arithmetic than it does typically.
QUICK_MEMORY = dict(cache_bandwidth=1.8, memory_bandwidth=3.0, step_seconds=0.55, call_seconds=0.8)


def request(equation: str, arrays, *, optimize=False, out: np.ndarray | None = None, **more) -> PlanRequest:
    """The request for exactly these arrays; left to right unless ``optimize`` says otherwise."""
    expr = parse(equation, [a.shape for a in arrays])
    terms = [tuple(dict.fromkeys(term)) for term in expr.inputs]
    fields = dict(
        expr=expr,
        dtypes=tuple(a.dtype.newbyteorder("=").name for a in arrays),
        strides=tuple(a.strides for a in arrays),
        out_strides=None if out is None else out.strides,
        dtype=np.result_type(*arrays).name,
        isa=isa.active_isa().name,
        order=find_order(terms, tuple(dict.fromkeys(expr.output)), expr.sizes, optimize=optimize),
    )
    return PlanRequest(**(fields | more))


def plan(equation: str, arrays, **more) -> Plan:
    return build_plan(request(equation, arrays, **more))


def run(made: Plan, arrays) -> np.ndarray:
    """A fresh result by the general path, every byte of it spoiled before."""
    out = np.empty(made.expr.output_shape, made.dtype)
    out.reshape(-1).view(np.uint8)[...] = 0xFF if out.dtype.kind in "fc" else 0x01  # NaN; True
    executor.bind(made).run(arrays, out)
    return out


def drawn_operands(data, equations, back: bool = False) -> tuple[str, list[np.ndarray]]:
    """One of the equations, and an array of small whole float32 numbers for each operand: as it is, every second element of one,
    or with gaps between its rows; ``back``: or from its end."""
    text = data.draw(st.sampled_from(equations))
    sizes = {index: data.draw(st.integers(1, 40), label=index) for index in sorted(set(text) - set(",->"))}
    arrays, rng = [], np.random.default_rng(0)
    for term in text.split("->")[0].split(","):
        shape = [sizes[index] for index in term]
        cut = data.draw(st.sampled_from([1, 2]))
        whole = rng.integers(-3, 4, [*shape[:-1], cut * shape[-1]]).astype(np.float32)
        view = whole[..., :: cut if data.draw(st.booleans()) else 1][..., : shape[-1]]
        arrays.append(view[::-1] if back and data.draw(st.booleans()) else view)
    return text, arrays


def operands(equation: str, sizes: dict[str, int], dtype: str, seed: int = 0, exact: bool = True) -> list[np.ndarray]:
    """Random arrays for an equation of single letters."""
    rng = np.random.default_rng(seed)
    terms = equation.split("->")[0].split(",")
    return [oracle.random(rng, [sizes[letter] for letter in term], dtype, exact) for term in terms]
