"""What is kept of an expression besides its sizes: other shapes find it, and nothing that it depends on is left out."""

import numpy as np
import plan_cases
import pytest

from einsum_engine.explain import explain
from einsum_engine.planners import outline, roles
from einsum_engine.planners.outline import Asked, outlined

NETWORK = "abe,bcf,cdg,efgh->adh"
REAL, COMPLEX = "float64", "complex128"
# dtypes of the operands, and options
ASKED = {
    "real": ([REAL] * 4, {}),
    "complex": ([COMPLEX] * 4, {"conj": (1, 3)}),
    "mixed": ([REAL, COMPLEX, REAL, COMPLEX], {"conj": (1,)}),
    "casts": (["float32", REAL, "float16", "int32"], {}),
    "other bytes": ([">f8", REAL, REAL, ">f8"], {"byteswapped": (0, 3)}),
    "unsigned": (["uint8"] * 4, {}),
    "constants": ([REAL] * 4, {"constants": (0, 1)}),
    "scaled": ([REAL] * 4, {"scaled": True}),
    "natural": ([REAL] * 4, {"layouts": "natural"}),
    "merged": ([REAL] * 4, {"layouts": "merged"}),
    "panels": ([REAL] * 4, {"layouts": "panels"}),
    "not joined": ([REAL] * 4, {"fuse": False}),
    "wider": (["int16"] * 4, {"accumulate": "int64"}),
}
SHAPES = (
    [(4, 5, 2), (5, 3, 4), (3, 2, 6), (2, 4, 6, 3)],
    [(4, 7, 2), (7, 3, 4), (3, 2, 6), (2, 4, 6, 3)],
    [(4, 1, 2), (1, 3, 4), (3, 2, 1), (2, 4, 6, 3)],  # without an index, and with one that an operand has not
    [(14, 35, 9), (35, 9, 8), (9, 10, 16), (9, 8, 16, 11)],
)


def _operands(shapes, dtypes):
    rng = np.random.default_rng(1)
    found = []
    for shape, dtype in zip(shapes, map(np.dtype, dtypes)):
        values = rng.integers(0, 4, shape) + (1j * rng.integers(0, 4, shape) if dtype.kind == "c" else 0)
        found.append(values.astype(dtype))
    return found


def _forget():
    outlined.cache_clear()
    roles._known.clear()


def _plans(dtypes, options, forget):
    found = []
    for shapes in SHAPES:
        if forget:
            _forget()
        with plan_cases.made_anew():
            found.append(plan_cases.plan(NETWORK, _operands(shapes, dtypes), **options))
    return found


@pytest.mark.parametrize("dtypes, options", ASKED.values(), ids=ASKED)
def test_plans_of_new_shapes_are_those_of_a_fresh_process(dtypes, options):
    for again, fresh in zip(_plans(dtypes, options, False), _plans(dtypes, options, True)):
        assert explain(again) == explain(fresh)
        assert again.buffers == fresh.buffers and again.steps == fresh.steps


@pytest.mark.parametrize("name", ["real", "mixed", "casts", "other bytes", "panels"])
def test_results_of_new_shapes(name):
    dtypes, options = ASKED[name]
    options = {key: value for key, value in options.items() if key != "conj"}
    for shapes in SHAPES:
        operands = _operands(shapes, dtypes)
        found = plan_cases.run(plan_cases.plan(NETWORK, operands, **options), operands)
        wanted = np.einsum(NETWORK, *operands, optimize=True)
        assert found.dtype == wanted.dtype
        tolerance = 1e-2 if "float16" in dtypes else 1e-6
        np.testing.assert_allclose(found, wanted, rtol=tolerance)


def test_sizes_find_what_was_kept():
    _forget()
    asked = ASKED["real"]
    for shapes in SHAPES[:2]:
        plan_cases.plan(NETWORK, _operands(shapes, asked[0]))
    assert (outlined.cache_info().misses, outlined.cache_info().hits) == (1, 1)
    assert len(roles._known) == 1


def test_what_is_kept_is_bounded():
    _forget()
    asked = Asked((REAL,) * 2, REAL, REAL, (), (), (), False)
    for number in range(600):
        outlined(((f"a{number}", "b"), ("b",)), (f"a{number}",), ((0, 1),), asked)
    assert outlined.cache_info().currsize == 256
    long = ",".join(f"{chr(200 + n)}{chr(201 + n)}" for n in range(outline.REMEMBERED + 6))
    before = outlined.cache_info().currsize, len(roles._known)
    plan_cases.plan(f"{long}->{long[0]}{long[-1]}", [np.ones((2, 2))] * (outline.REMEMBERED + 6))
    assert (outlined.cache_info().currsize, len(roles._known)) == before
