"""The subscript parser: meaning and refusals against np.einsum, and the text of every error."""

import ast
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from einsum_engine import expr as expr_module
from einsum_engine.errors import EngineError, EngineTypeError, EngineValueError
from einsum_engine.expr import Expr, from_terms, letters, parse, parse_interleaved, symbols


def operands(shapes):
    return [np.ones(shape, np.float32) for shape in shapes]


def terms_of(arrays):
    """The `Expr` of an interleaved call, as `einsum` makes it."""
    found, terms, output = parse_interleaved(arrays)
    return from_terms(terms, output, [np.shape(array) for array in found])


VALID = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ba", [(2, 3)]),
    ("bA", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij->ji", [(3, 3, 2)]),
    ("ii,i->i", [(1, 1), (4,)]),
    ("ii,ij->j", [(4, 4), (1, 2)]),
    ("ij->", [(2, 3)]),
    ("ij->i", [(2, 3)]),
    ("", [()]),
    ("->", [()]),
    (",", [(), ()]),
    (",->", [(), ()]),
    (",,", [(), (), ()]),
    ("i,", [(3,), ()]),
    (",ij,->ji", [(), (2, 3), ()]),
    (" i , j -> i j ", [(3,), (2,)]),
    ("ij,jk", [(2, 1), (4, 5)]),
    ("ij,jk->ijk", [(2, 1), (0, 5)]),
    ("ij,jk->ik", [(2, 0), (0, 5)]),
    ("ii", [(0, 0)]),
    ("...", [()]),
    ("...->...", [(2, 3)]),
    ("...i->i", [(3,)]),
    ("i->...i", [(3,)]),
    ("i->i...", [(3,)]),
    ("b...a", [(2, 3, 4)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("ii...->...i", [(2, 2, 3)]),
    ("i...j->j...", [(2, 5, 3)]),
    ("...,...->...", [(3,), (1, 2, 1)]),
    ("...,...", [(3,), (2, 3)]),
    ("...i,i...->...", [(2, 3), (3, 2)]),
    ("ij...,jk...->ik...", [(2, 3), (3, 4)]),
    ("ij...,jk...->ik...", [(2, 3, 5), (3, 4)]),
    ("...ij,...jk->...ik", [(7, 1, 2, 3), (5, 3, 4)]),
    ("i,i,i,i", [(3,), (1,), (3,), (1,)]),
]


@pytest.mark.parametrize(("subscripts", "shapes"), VALID)
def test_means_what_numpy_means(subscripts, shapes):
    expr = parse(subscripts, shapes)
    assert expr.output_shape == np.einsum(subscripts, *operands(shapes)).shape
    assert expr.text == subscripts and expr.shapes == tuple(shapes)
    # The explicit form in letters is an einsum too, with the same meaning.
    again = parse(expr.eq, shapes)
    assert again.eq == expr.eq and again.output_shape == expr.output_shape
    np.testing.assert_array_equal(np.einsum(expr.eq, *operands(shapes)), np.einsum(subscripts, *operands(shapes)))


REJECTED = [
    ("...i->i", [(2, 3)], "the output of '...i->i' has no '...' for 1 of the axes of operand 0, shape (2, 3)"),
    ("...i->i", [(1, 3)], "the output of '...i->i' has no '...' for 1 of the axes of operand 0, shape (1, 3)"),
    ("i,...->", [(2,), (2, 3)], "the output of 'i,...->' has no '...' for 2 of the axes of operand 1, shape (2, 3)"),
    ("", [(3,)], "operand 0 of '' has rank 1, shape (3,), but its subscripts are for rank 0; '...' would take"),
    ("ij", [(3,)], "operand 0 of 'ij' has rank 1, shape (3,), but its subscripts are for rank 2"),
    ("i,jk", [(3,), (3, 2, 1)], "operand 1 of 'i,jk' has rank 3, shape (3, 2, 1), but its subscripts are for rank 2;"),
    ("i...", [()], "operand 0 of 'i...' has rank 0, shape (), but its subscripts are for rank 1 or more"),
    ("i...,j", [(2,), (2, 2)], "operand 1 of 'i...,j' has rank 2, shape (2, 2), but its subscripts are for rank 1;"),
    ("i - > i", [(3,)], "'- >' has a space inside, in 'i - > i'"),
    ("i->>i", [(3,)], "invalid subscript '>' in the output of 'i->>i': subscripts are letters"),
    ("i-> >i", [(3,)], "invalid subscript '>' in the output of 'i-> >i': subscripts are letters"),
    ("i-i", [(3,)], "invalid subscript '-' in operand 0 of 'i-i': subscripts are letters"),
    ("i>i", [(3,)], "invalid subscript '>' in operand 0 of 'i>i': subscripts are letters"),
    ("i->i->i", [(3,)], "invalid subscript '-' in the output of 'i->i->i': subscripts are letters"),
    ("i->i,", [(3,)], "invalid subscript ',' in the output of 'i->i,': subscripts are letters"),
    ("i,j1", [(3,), (3, 3)], "invalid subscript '1' in operand 1 of 'i,j1': subscripts are letters"),
    ("i_", [(3, 3)], "invalid subscript '_' in operand 0 of 'i_': subscripts are letters"),
    ("i\tj", [(3, 3)], r"invalid subscript '\t' in operand 0 of 'i\tj': subscripts are letters"),
    ("i->j", [(3,)], "output index 'j' is in no operand of 'i->j'"),
    (".i", [(3,)], "operand 0 of '.i' has a '.' that is not part of a single '...': '.i'"),
    ("i,..j", [(3,), (3,)], "operand 1 of 'i,..j' has a '.' that is not part of a single '...': '..j'"),
    ("....i", [(3,)], "operand 0 of '....i' has a '.' that is not part of a single '...': '....i'"),
    ("...i...", [(3,)], "operand 0 of '...i...' has a '.' that is not part of a single '...': '...i...'"),
    (". . .i", [(3,)], "'. .' has a space inside, in '. . .i'"),
    ("... ...i", [(3,)], "'. .' has a space inside, in '... ...i'"),
    ("i->..i", [(3,)], "the output of 'i->..i' has a '.' that is not part of a single '...': '..i'"),
    ("ij,jk", [(2, 3)], "wrong number of operands for 'ij,jk': 2 in the subscripts, 1 given"),
    ("ij", [(2, 3), (2, 3)], "wrong number of operands for 'ij': 1 in the subscripts, 2 given"),
    ("ij,", [(2, 3)], "wrong number of operands for 'ij,': 2 in the subscripts, 1 given"),
    ("ij,jk", [(2, 3), (4, 5)], "index 'j' is 3 in operand 0 axis 1 but 4 in operand 1 axis 0 of 'ij,jk'"),
    (
        "bix,iox->box",
        [(3, 8192, 2), (8192, 4, 5)],
        "index 'x' is 2 in operand 0 axis 2 but 5 in operand 1 axis 2 of 'bix,iox->box'",
    ),
    ("i,i,i", [(3,), (1,), (2,)], "index 'i' is 3 in operand 0 axis 0 but 2 in operand 2 axis 0 of 'i,i,i'"),
    ("i,i,i", [(1,), (0,), (2,)], "index 'i' is 0 in operand 1 axis 0 but 2 in operand 2 axis 0 of 'i,i,i'"),
    ("...,...", [(3,), (2, 2)], "an axis of '...' is 3 in operand 0 axis 0 but 2 in operand 1 axis 1 of '...,...'"),
    ("ii", [(3, 2)], "index 'i' is 3 in operand 0 axis 0 but 2 in operand 0 axis 1 of 'ii'"),
    (
        "ii",
        [(3, 1)],
        "index 'i' is 3 in operand 0 axis 0 but 1 in operand 0 axis 1 of 'ii' (axes of one operand do not broadcast)",
    ),
    ("j,iii->i", [(2,), (1, 1, 3)], "index 'i' is 1 in operand 1 axis 0 but 3 in operand 1 axis 2 of 'j,iii->i'"),
]


@pytest.mark.parametrize(("subscripts", "shapes", "message"), REJECTED)
def test_refuses_what_numpy_refuses_and_says_why(subscripts, shapes, message):
    with pytest.raises(ValueError):
        np.einsum(subscripts, *operands(shapes))
    with pytest.raises(EngineValueError) as caught:
        parse(subscripts, shapes)
    assert message in str(caught.value)


# ---- beyond NumPy ---------------------------------------------------------------------------------------------


def test_unicode_letters_sorted_by_code_point():
    expr = parse("βα,αé", [(2, 3), (3, 4)])
    assert expr.output == ("é", "β") and expr.output_shape == (4, 2)
    assert parse("日本,本語->日語", [(2, 3), (3, 4)]).output_shape == (2, 4)


def test_every_symbol_of_opt_einsum_is_an_index():
    get_symbol = pytest.importorskip("opt_einsum").get_symbol
    names = [get_symbol(i) for i in range(9001)]
    chain = ",".join(left + right for left, right in zip(names, names[1:]))
    assert parse(chain, [(2, 2)] * 9000).output == tuple(sorted((names[0], names[-1])))


@pytest.mark.parametrize(
    ("subscripts", "message"),
    [("ij→ji", "write '->' in ASCII"), ("…i", "write '...' in ASCII"), ("i\u00a0j", r"subscripts are letters")],
)
def test_look_alikes_of_tokens_are_no_indices(subscripts, message):
    with pytest.raises(EngineValueError, match=message):
        parse(subscripts, [(2, 3)])


def test_an_output_index_may_repeat():
    assert parse("i->ii", [(3,)]).output_shape == (3, 3)
    expr = parse("...ij->j...jij", [(5, 2, 3)])
    assert expr.output_shape == (3, 5, 3, 2, 3) and expr.eq == "aij->jajij"
    assert terms_of([np.ones((2, 3)), [0, 1], [0, 0]]).output_shape == (2, 2)


def test_more_than_52_indices_and_thousands_of_operands():
    names = [symbol for symbol, _ in zip(symbols(), range(3001))]
    assert len(set(names)) == 3001 and all(name.isalpha() for name in names)
    expr = parse(",".join(a + b for a, b in zip(names, names[1:])), [(2, 2)] * 3000)
    assert expr.output == tuple(sorted((names[0], names[-1]))) and len(expr.sizes) == 3001
    shown = parse_error(",".join(["ab"] * 3000), [(2, 2)] * 2999 + [(2, 3)])
    assert "operand 2999 axis 1 of 'ab,ab" in shown and len(shown) < 400


def parse_error(subscripts, shapes, **options):
    with pytest.raises(EngineError) as caught:
        parse(subscripts, shapes, **options)
    return str(caught.value)


def test_high_ranks():
    many = "".join(symbol for symbol, _ in zip(symbols(), range(64)))
    assert parse(f"{many}->{many[::-1]}", [(1,) * 63 + (2,)]).output_shape == (2,) + (1,) * 63
    assert parse("...i,...j->...ij", [(1,) * 40, (1,) * 40]).output_shape == (1,) * 41
    message = parse_error("a...,b...->ab...", [(1,) * 64, (1,) * 64])
    assert message == "the output of 'a...,b...->ab...' has 65 axes, but arrays have at most 64"


@pytest.mark.parametrize(
    ("subscripts", "shapes", "strict", "message"),
    [
        ("ij,jk", [(2, 1), (4, 5)], True, "index 'j' is 1 in operand 0 axis 1 but 4 in operand 1 axis 0 of"),
        ("ij,jk", [(2, 4), (1, 5)], True, "index 'j' is 4 in operand 0 axis 1 but 1 in operand 1 axis 0"),
        ("i,i,i", [(1,), (4,), (5,)], True, "index 'i' is 4 in operand 1 axis 0 but 5 in operand 2 axis 0"),
        ("ij,jk", [(2, 1), (4, 5)], False, None),
        ("...j,j", [(2, 4), (4,)], True, None),
        ("...j,...j", [(2, 4), (1, 4)], True, None),
    ],
)
def test_strict_refuses_to_broadcast_named_indices(subscripts, shapes, strict, message):
    if message is None:
        assert parse(subscripts, shapes, strict=strict).output_shape == parse(subscripts, shapes).output_shape
    else:
        assert message in parse_error(subscripts, shapes, strict=strict)


# ---- interleaved and terms ------------------------------------------------------------------------------------

A, B = np.ones((2, 3)), np.ones((3, 4))


@pytest.mark.parametrize(
    "call",
    [
        (A, [0, 1]),
        (A, [0, 1], [1, 0]),
        (A, (1, 0)),
        (A, [51, 0]),
        (A, range(2), []),
        (A, np.array([0, 1])),
        (A, [np.int64(7), 1]),
        (A, [..., 0]),
        (A, [0, ...], [..., 0]),
        (A, [0, 1], B, [1, 2], [0, 2]),
        (A, [0, 1], B, [1, 2]),
        (A, [2, 1], B, [1, 0]),
        (A, [..., 5], B, [5, ...]),
        ([[1, 2], [3, 4]], [0, 1]),
        (1.5, []),
        (np.ones(1), [0], [...]),
        (np.ones(3), [0], [0], [0]),
    ],
)
def test_interleaved_as_numpy(call):
    try:
        expected = np.einsum(*call).shape
    except ValueError:
        with pytest.raises(EngineValueError):
            terms_of(call)
    else:
        assert terms_of(call).output_shape == expected


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ((A,), EngineValueError, "needs subscripts and operands"),
        ((), EngineValueError, "needs subscripts and operands"),
        ((A, B), EngineTypeError, "each subscript must be an integer or an ellipsis; operand 0 has ndarray"),
        ((A, [0.0, 1]), EngineTypeError, "operand 0 has float 0.0"),
        ((A, [True, False]), EngineTypeError, "operand 0 has bool True"),
        ((A, ["a", "b"]), EngineTypeError, "operand 0 has str 'a'"),
        ((A, "ab"), EngineTypeError, "operand 0 has str 'a'"),
        ((A, [0, 1], None), EngineTypeError, "the subscripts of the output must be a list of integers, not NoneType"),
        ((A, [0, 1], 3, 4), EngineTypeError, "the subscripts of operand 1 must be a list of integers, not int"),
        ((A, [0, 1], [1, None]), EngineTypeError, "the output has NoneType None"),
        ((A, [..., ...]), EngineValueError, "the subscripts list of operand 0 has more than one ellipsis: [...,...]"),
        ((A, [0]), EngineValueError, "operand 0 of '[0]' has rank 2, shape (2, 3), but its subscripts are for rank 1"),
        ((A, [0, 1], [2]), EngineValueError, "output index 2 is in no operand of '[0,1]->[2]'"),
        ((A, [0, 1], A, [1, 2]), EngineValueError, "1 is 3 in operand 0 axis 1 but 2 in operand 1 axis 0"),
    ],
)
def test_interleaved_refusals(call, error, message):
    with pytest.raises((TypeError, ValueError)) as numpys:
        np.einsum(*call)
    with pytest.raises(error) as caught:
        terms_of(call)
    assert message in str(caught.value) and isinstance(caught.value, type(numpys.value))


def test_integer_indices_of_any_size_are_sorted_by_value():
    expr = terms_of([A, [100, -7], B, [-7, 20], A, [3, 10**30]])
    assert expr.output == (3, 20, 100, 10**30) and expr.output_shape == (2, 4, 2, 3)
    assert expr.text == "[100,-7],[-7,20],[3,1000000000000000000000000000000]"
    assert expr.eq == "ab,bc,de->dcae"


def test_terms_of_names_and_letters():
    expr = from_terms([("left", "k"), ("k", 3)], None, [(2, 3), (3, 4)])
    assert expr.output == (3, "left") and expr.text == "[left,k],[k,3]" and expr.eq == "ak,kb->ba"
    assert from_terms(["ij", "jk"], "ik", [(2, 3), (3, 4)]).text == "ij,jk->ik"
    assert from_terms([(0, 1)], (1, 0), [(2, 3)], text="mine").text == "mine"
    assert letters(["b", 5, "a", "long"]) == {"b": "b", 5: "c", "a": "a", "long": "d"}


# ---- sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("i,j->ij", [(2**32,), (2**31,)], f"the output of 'i,j->ij' has shape {(2**32, 2**31)}: {2**63} elements"),
        ("ij->", [(2**40, 2**40)], f"operand 0 of 'ij->' has shape {(2**40, 2**40)}: {2**80} elements overflow int64"),
        ("ijk->", [(2**40, 2**40, 0)], f"{2**80} elements overflow int64 (at most {2**63 - 1})"),
        ("ij,k", [(2, -1), (3,)], "operand 0 of 'ij,k' has size -1 in axis 1"),
        ("i", [(2.0,)], "the shapes of 'i' must be lists of integers, not [(2.0,)]"),
        ("i", [3], "the shapes of 'i' must be lists of integers, not [3]"),
        (5, [(3,)], "subscripts must be a string, not int: 5"),
        (b"\xe9", [(3,)], "subscripts given as bytes must be ASCII"),
    ],
)
def test_sizes_and_types_are_checked(subscripts, shapes, message):
    assert message in parse_error(subscripts, shapes)


def test_a_diagonal_of_sizes_0_and_1_is_refused():
    # NumPy lets "ii->i" of shape (0, 1) pass and reads beyond the array.
    for shape in ((0, 1), (1, 0)):
        assert "(axes of one operand do not broadcast)" in parse_error("ii->i", [shape])


def test_sums_over_more_than_int64_are_no_error():
    assert parse("i,j,k->", [(2**31,)] * 3).output_shape == ()


def test_values_are_plain_and_frozen():
    expr = parse(b"ij->ji", [np.array([2, 3])])
    assert expr == parse("ij->ji", [[2, 3]]) and hash(expr) == hash(parse("ij->ji", [(2, 3)]))
    assert all(type(size) is int for size in expr.shapes[0])
    assert pickle.loads(pickle.dumps(expr)) == expr
    with pytest.raises(AttributeError):
        expr.text = "other"
    assert isinstance(expr, Expr) and expr.sizes == {"i": 2, "j": 3}


def test_needs_no_numpy_and_no_other_package():
    imported = set()
    for node in ast.walk(ast.parse(Path(expr_module.__file__).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(node.module)
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)


# ---- random expressions ---------------------------------------------------------------------------------------


@st.composite
def scrambled(draw):
    """Subscripts of random tokens, most of them malformed, and random shapes."""
    tokens = st.sampled_from(["a", "b", "B", "...", ",", "->", " ", ".", "-", ">", "1"])
    text = "".join(draw(st.lists(tokens, max_size=7)))
    shape = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    count = text.partition("->")[0].count(",") + 1
    return text, draw(st.lists(shape, min_size=max(1, count - 1), max_size=count + 1 if count == 1 else count))


@st.composite
def plausible(draw):
    """Well-formed subscripts whose shapes fit but for broadcast and some wrong sizes."""
    sizes = dict(zip("abcdeA", draw(st.lists(st.integers(1, 3), min_size=6, max_size=6))))
    wide = draw(st.lists(st.integers(1, 3), max_size=2))
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 4))):
        term = draw(st.lists(st.sampled_from("abcdeA"), max_size=4))
        at = draw(st.none() | st.integers(0, len(term)))
        shape = [1 if draw(st.integers(0, 9)) == 0 else sizes[index] for index in term]
        if draw(st.integers(0, 19)) == 0 and shape:
            shape[0] = 4
        if at is not None:
            shape[at:at] = wide[draw(st.integers(0, len(wide))) :]
            term.insert(at, "...")
        terms.append("".join(term))
        shapes.append(tuple(shape))
    text = draw(st.sampled_from([",", " , "])).join(terms)
    if draw(st.booleans()):
        output = draw(st.lists(st.sampled_from(sorted(set("".join(terms)) - {"."}) or [""]), max_size=4, unique=True))
        dots = draw(st.sampled_from(["...", "...", "...", ""]))
        text += "->" + dots + "".join(output)
    return text, shapes


@settings(max_examples=600, deadline=None)
@given(scrambled() | plausible())
@example(("ab->aa", [(2, 3)]))
@example(("a->a...a", [(2,)]))
def test_random_expressions_against_numpy(case):
    text, shapes = case
    try:
        expected = np.einsum(text, *operands(shapes)).shape
    except ValueError as error:
        expected = str(error)
    try:
        expr = parse(text, shapes)
    except EngineValueError:
        assert isinstance(expected, str), f"NumPy accepts {text!r} of {shapes}: {expected}"
        return
    if len(set(expr.output)) != len(expr.output):
        assert "multiple times" in expected  # the one thing that the engine adds
        return
    assert expr.output_shape == expected
    np.testing.assert_array_equal(np.einsum(expr.eq, *operands(shapes)), np.einsum(text, *operands(shapes)))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 51) | st.just(...), max_size=4), min_size=1, max_size=3),
    st.none() | st.lists(st.integers(0, 51) | st.just(...), max_size=3),
)
def test_random_integers_against_numpy(terms, output):
    arrays = [np.ones((2,) * len(term)) for term in terms]
    call = [part for pair in zip(arrays, terms) for part in pair] + ([] if output is None else [output])
    try:
        expected = np.einsum(*call).shape
    except ValueError as error:
        expected = str(error)
    try:
        expr = terms_of(call)
    except EngineValueError:
        assert isinstance(expected, str), expected
        return
    assert expected == expr.output_shape or "multiple times" in expected


@pytest.mark.parametrize("shapes", [[(2, 1), (3, 4)], [[2, 1], [3, 4]], [np.array([2, 1]), (np.int64(3), 4)]], ids=str)
def test_sizes_of_all_indices(shapes):
    made = parse("ij,jk->ik", shapes)
    assert made.shapes == ((2, 1), (3, 4)) and {type(size) for shape in made.shapes for size in shape} == {int}
    assert dict(zip(made.indices, made.lengths)) == made.sizes == dict(i=2, j=3, k=4)
    again = pickle.loads(pickle.dumps(made))
    assert again == made and hash(again) == hash(made) and again.sizes == made.sizes
