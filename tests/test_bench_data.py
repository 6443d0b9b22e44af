"""What the benchmark runs: its cases, the steps of a path."""

import json
import math

import numpy as np
import pytest
from bench_cases import case

from einsum_engine.bench import cases, families, steps
from einsum_engine.errors import EngineTypeError, EngineValueError

ALL_CASES = cases.select(["thesis", "tccg", "permutations", "gemm", "moments", "batches", "sums", "gates"])


# --- cases -----------------------------------------------------------------------------------------------------


def test_families_hold_what_they_should():
    counts = {}
    for each in ALL_CASES:
        counts[each.family] = counts.get(each.family, 0) + 1
    assert counts == {
        "thesis_ordinary_small": 9,
        "thesis_ordinary_small_f64": 9,
        "thesis_networks_small": 6,
        "thesis_general_small": 9,
        "thesis_ordinary_large": 9,
        "thesis_networks_large": 6,
        "thesis_general_large": 9,
        "tccg_f32": 24,
        "tccg_f64": 24,
        "permutations_f32": 57,
        "permutations_f64": 57,
        **{f"gemm_{short}": 3 for short in ("f32", "f64", "c64", "c128")},
        "gemm_i64": 2,
        "batches_f32": 19,
        "batches_f64": 19,
        "moments_f32": 27,
        "moments_f64": 27,
        "moments_c64": 27,
        "sums_f32": 28,
        "sums_f64": 28,
        "gates": 8,
    }
    assert len({(each.family, each.name) for each in ALL_CASES}) == len(ALL_CASES)
    assert len({each.key for each in ALL_CASES}) == len(ALL_CASES)


def test_a_key_tells_cases_apart_and_shows_nothing():
    one = case("secret,xy->", [(2,) * 6, (3, 3)], external=True)
    assert one.key == case("secret,xy->", [(2,) * 6, (3, 3)]).key and "secret" not in one.key
    others = [case("secret,yx->", [(2,) * 6, (3, 3)]), case("secret,xy->", [(2,) * 6, (3, 3)], "float64")]
    assert len({one.key, *(each.key for each in others)}) == 3


def test_permutations_are_fixed_of_one_size_and_of_full_rank():
    drawn = families.permutation_cases()
    assert drawn == families.permutation_cases()
    assert [each.shapes[0] for each in drawn[:2]] == [(8150, 1029), (18021, 465)]
    assert {len(each.shapes[0]) for each in drawn} == {2, 3, 4, 5, 6}
    for each in drawn:
        nbytes = math.prod(each.shapes[0]) * np.dtype(each.dtype).itemsize
        assert abs(nbytes / 2**25 - 1) < 0.01
        term, output = each.expr.split("->")
        assert sorted(term) == sorted(output)
        assert not any(pair in term for pair in map("".join, zip(output, output[1:]))), "two dimensions are one"


@pytest.mark.parametrize("each", ALL_CASES, ids=lambda each: f"{each.family}-{each.name}")
def test_expression_of_a_case_parses_and_fits_its_shapes(each):
    expression = steps.parse(each.expr, each.shapes)
    assert expression.eq == each.expr
    assert set(expression.sizes) == {letter for letter in each.expr if letter.isalpha()}
    assert math.prod(expression.output_shape) < 2**29


def test_batches_are_as_many_products_as_fill_their_bytes():
    for each in families.batch_cases():
        sizes = {index: size for term, shape in zip(each.expr.split("->")[0].split(","), each.shapes) for index, size in zip(term, shape)}
        m, n, k, b = (sizes[index] for index in "mnkb")
        elements = b * (m * k + k * n + m * n)
        assert each.name.startswith(f"batch {b} of {m}x{n}x{k}") and 0.98 * 12 * 2**20 < elements <= 12 * 2**20


def test_gates_leave_the_qubits_in_their_order():
    for each in families.gate_cases():
        state, gate = each.shapes
        assert math.prod(state) == 2**22 and set(gate) == {2} and len(gate) in (2, 4)
        term, output = each.expr.split(",")[0], each.expr.split("->")[1]
        assert output.translate(str.maketrans("xy", "BD")) == term
        qubits = [int(word) for word in each.name.split() if word.isdigit()]
        assert [math.prod(state[: term.index(i)]) for i in "BD"[: len(qubits)]] == [2**qubit for qubit in qubits]


def test_permuted_networks_are_the_same_networks():
    """As the thesis says: network 3 is 0 and network 4 (mended) is 1, with other orders of dimensions."""
    by_name = {each.name: each.expr for each in ALL_CASES if each.family == "thesis_networks_small"}
    for one, other in (("0", "3 (0 permuted)"), ("1", "4 (1 permuted, mended)")):
        pairs = zip(*(by_name[f"network {name}"].replace("->", ",").split(",") for name in (one, other)), strict=True)
        assert all(sorted(left) == sorted(right) for left, right in pairs)


def test_tccg_reverses_indices_for_c_order():
    each = next(each for each in ALL_CASES if each.name == "tccg 03 abcd-dbea-ec" and each.dtype == "float32")
    assert each.expr == "aebd,ce->dcba"
    assert each.shapes == ((48, 48, 44, 48), (24, 48))


def test_large_batched_products_on_request():
    def sizes(large):
        return {each.shapes[0][0] for each in cases.thesis_cases(large) if each.family == "thesis_ordinary_large"}

    assert sizes(False) == {256, 2048} and sizes(True) == {512, 2048}


def test_select_takes_families_parts_and_patterns():
    assert {each.family for each in cases.select(["tccg_f64"])} == {"tccg_f64"}
    assert {each.dtype for each in cases.select(["tccg_*"])} == {"float32", "float64"}
    assert cases.select([cases.KERNELS]) == []
    assert len(cases.select(["tccg", "tccg_f32"])) == 48
    known = "families: thesis, tccg, permutations, gemm, moments, batches, sums, gates, kernels, calls, "
    known += "scaling, views, whole, chains, reductions"
    with pytest.raises(EngineValueError, match=f"unknown family 'nothing'; {known}"):
        cases.select(["nothing"])


def test_a_family_is_registered_once(monkeypatch):
    monkeypatch.setattr(cases, "_FAMILIES", dict(cases._FAMILIES))
    cases.register_family("mine", lambda large: [case("i->i", [(2,)], family="mine")])
    assert [each.family for each in cases.select(["mine"])] == ["mine"]
    for name in ("mine", "thesis", "kernels", "calls", "views"):
        with pytest.raises(EngineValueError, match=f"family '{name}' is registered already"):
            cases.register_family(name, lambda large: [])


def test_operands_are_seeded_and_of_the_range_asked_for():
    floats = case("ij->i", [(40, 30)])
    assert np.array_equal(cases.operands(floats)[0], cases.operands(floats)[0])
    assert not np.array_equal(cases.operands(floats)[0], cases.operands(floats, seed=1)[0])
    small = cases.operands(case("ij->i", [(100, 100)], "int16"))[0]
    assert (small.min(), small.max(), small.dtype) == (-9, 9, np.dtype("int16"))
    full = cases.operands(case("ij->i", [(100, 100)], "int16").full_range())[0]
    assert full.min() < -30000 and full.max() > 30000
    assert cases.operands(case("ij->i", [(100, 100)], "uint8"))[0].max() == 9
    assert set(cases.operands(case("i->", [(50,)], "bool"))[0]) == {True, False}
    complex_ = cases.operands(case("i->", [(50,)], "complex64"))[0]
    assert complex_.dtype == np.complex64 and complex_.imag.any() and complex_.real.any()
    assert cases.operands(case("i->", [(50,)], "bfloat16"))[0].dtype.name == "bfloat16"
    assert cases.operands(case("->", [()], "float64"))[0].shape == ()


def test_integers_are_also_run_over_their_full_range():
    both = cases.with_full_range([case("i->i", [(3,)], "int8"), case("i->i", [(3,)])])
    assert [(each.name, each.values) for each in both] == [
        ("case", "small"),
        ("case full range", "full"),
        ("case", "small"),
    ]


def test_load_cases(tmp_path):
    entry = {"family": "f", "name": "n", "expr": "ab,bc,cd->ad", "shapes": [[2, 3], [3, 4], [4, 5]], "dtype": "int64"}
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([{**entry, "path": [[0, 1], [0, 1]]}, entry]))
    first, second = cases.load_cases(path)
    assert first.path == ((0, 1), (0, 1)) and second.path is None
    assert first.shapes == ((2, 3), (3, 4), (4, 5)) and first.external


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "not JSON"),
        ("{}", "expected a list of cases, found dict"),
        ("[1]", "case 0: expected an object, found int"),
        ('[{"family": "f"}]', r"case 0: missing \['name', 'expr', 'shapes', 'dtype'\]"),
        ('[{"family":"f","name":"n","expr":"a,b->","shapes":[[2]],"dtype":"float32"}]', "has 2 terms, 1 shapes"),
        ('[{"family":"f","name":"n","expr":"a->","shapes":[["x"]],"dtype":"float32"}]', "lists of integers"),
        ('[{"family":"f","name":"n","expr":"a->","shapes":[[2]],"dtype":"float33"}]', "case 0: dtype 'float33' is no dtype"),
        ('[{"family":"f","name":"n","expr":"a->","shapes":[[2]],"dtype":"int8","x":1}]', r"unknown \['x'\]"),
    ],
)
def test_bad_case_files_say_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "cases.json"
    path.write_text(content)
    with pytest.raises((EngineValueError, EngineTypeError), match=message):
        cases.load_cases(path)


# --- steps -----------------------------------------------------------------------------------------------------


def test_walk_counts_a_matrix_product():
    (step,) = steps.walk(steps.parse("ij,jk->ik", [(2, 3), (3, 5)]), [(0, 1)])
    assert (step.multiply_adds, step.adds, step.summed, step.elements) == (30, 0, 3, (6, 15, 10))


def test_walk_sums_a_lone_index_before_the_product_and_reads_diagonals_once():
    (step,) = steps.walk(steps.parse("iij,jk->k", [(4, 4, 3), (3, 5)]), [(0, 1)])
    assert step.elements == (12, 15, 5)
    assert (step.multiply_adds, step.adds, step.summed) == (15, 12, 12)


def test_walk_follows_a_path_and_finishes_what_it_leaves():
    expression = steps.parse("ab,bc,cd->da", [(2, 3), (3, 4), (4, 5)])
    assert [step.eq for step in steps.walk(expression, [(1, 2), (0, 1)])] == ["bc,cd->bd", "ab,bd->da"]
    assert [step.eq for step in steps.walk(expression, [(0, 1)])] == ["ab,bc->ac", "cd,ac->da"]
    assert [step.eq for step in steps.walk(steps.parse("ij->ij", [(2, 3)]), [])] == ["ij->ij"]
    with pytest.raises(EngineValueError, match=r"path step \(0, 5\) does not fit 3 operands"):
        steps.walk(expression, [(0, 5)])


def test_parse_knows_ellipsis_implicit_output_and_repeated_output():
    assert steps.parse("...i,ij", [(4, 2), (2, 3)]).output_shape == (4, 3)
    assert steps.parse("i->ii", [(3,)]).output_shape == (3, 3)
    assert steps.parse("ij,jk->ik", [(1, 3), (3, 4)]).output_shape == (1, 4)
    with pytest.raises(EngineValueError, match="index 'j' is 4 in operand 1, 3 before"):
        steps.parse("ij,jk->ik", [(2, 3), (4, 5)])
    with pytest.raises(EngineValueError, match="operand 0 has rank 1"):
        steps.parse("ij->ij", [(2,)])
    with pytest.raises(EngineValueError, match="output index 'z' is in no operand"):
        steps.parse("i->z", [(2,)])
