"""The table of dtypes, and casting against np.einsum."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from einsum_engine.avals import known_dtype
from einsum_engine.dtypes import CASTINGS, DTYPES, accumulate_type, as_numpy, name_of, result_type, row, to_dtype
from einsum_engine.errors import EngineTypeError, EngineValueError

NUMPY_NAMES = [name for name in DTYPES if name != "bfloat16"]  # np.einsum has no bfloat16


@pytest.mark.parametrize("name", DTYPES)
def test_each_row_is_complete_and_consistent(name):
    entry = DTYPES[name]
    dtype = as_numpy(name)
    assert entry.name == name and entry.itemsize == dtype.itemsize and row(name) is row(dtype) is entry
    assert entry.kind in ("f", "c", "i", "u", "b", "half", "bf16", "external")
    if entry.kind == "external":
        assert entry.compute == entry.accumulate == "external"
        return
    compute = DTYPES[entry.compute]
    assert compute.compute == compute.name, "the compute dtype is a kernel dtype itself"
    if entry.kind == "u":
        assert compute.kind == "i" and compute.itemsize == entry.itemsize
    else:
        assert np.can_cast(dtype, as_numpy(compute.name), "safe")


@pytest.mark.parametrize("spelling", ["<f8", ">f8", "=f8", "d", "float", "double", float, np.float64])
def test_byte_order_and_spelling_share_a_row(spelling):
    assert row(np.dtype(spelling)).name == "float64"


@pytest.mark.parametrize("char", "bBhHiIlLqQ")
def test_every_c_integer_has_the_row_of_its_width(char):
    dtype = np.dtype(char)
    assert row(dtype).itemsize == dtype.itemsize and np.dtype(row(dtype).name) == dtype


def test_bfloat16_is_known_by_name_and_type():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert row(np.dtype(ml_dtypes.bfloat16)).accumulate == "float32"
    assert to_dtype("bfloat16") == to_dtype(ml_dtypes.bfloat16) == np.dtype(ml_dtypes.bfloat16)
    assert result_type("bfloat16", "bfloat16") == np.dtype(ml_dtypes.bfloat16)
    assert result_type("bfloat16", "float32") == np.dtype("float32")
    assert result_type("bfloat16", "complex64") == np.dtype("complex64")


@pytest.mark.parametrize("bad", ["U4", "S3", "M8[s]", "m8[s]", "V4", [("a", "f4")]])
def test_other_dtypes_name_the_operand(bad):
    dtype = np.dtype(bad)
    with pytest.raises(EngineTypeError) as caught:
        row(dtype, 2, "i,i,i")
    assert f"operand 2 of 'i,i,i' has dtype {dtype}: not a number type; the engine knows float32," in str(caught.value)
    with pytest.raises(EngineTypeError, match="operand 1 of 'i,i' has dtype"):
        result_type(np.dtype("f4"), dtype, text="i,i")
    with pytest.raises(EngineTypeError, match="dtype="):
        to_dtype(bad)


def test_small_floats_are_refused_by_name():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for scalar in (ml_dtypes.float8_e4m3fn, ml_dtypes.int4):
        with pytest.raises(EngineTypeError, match=f"operand 0 has dtype {np.dtype(scalar).name}"):
            row(np.dtype(scalar), 0)


@pytest.mark.parametrize("bad", [None, "bogus", 3, object(), np.ones(2)])
def test_what_is_no_dtype(bad):
    with pytest.raises(EngineTypeError, match="^accumulate=.* is no dtype that the engine knows: float32, float64"):
        to_dtype(bad, "accumulate=")


def test_dtypes_of_torch_and_jax():
    torch = pytest.importorskip("torch")
    assert to_dtype(torch.bfloat16) == to_dtype("bfloat16") and to_dtype(torch.complex64) == np.dtype("c8")
    assert to_dtype(torch.bool) == np.dtype(bool)
    jnp = pytest.importorskip("jax.numpy")
    assert to_dtype(jnp.bfloat16) == to_dtype("bfloat16") and to_dtype(jnp.float32) == np.dtype("f4")


# ---- casting, against np.einsum ------------------------------------------------------------------------------


def numpys(operands, **options):
    """dtype of np.einsum, or None where it refuses."""
    arrays = [np.ones((1, 1), dtype) for dtype in operands]
    try:
        return np.einsum(",".join(["ij"] * len(arrays)) + "->i", *arrays, **options).dtype
    except TypeError:
        return None


def ours(operands, **options):
    try:
        return result_type(*operands, **options)
    except EngineTypeError:
        return None


@pytest.mark.parametrize(("left", "right"), list(product(NUMPY_NAMES, repeat=2)))
def test_promotion_of_pairs(left, right):
    result = result_type(left, right)
    assert result == numpys([left, right]) and result.isnative


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("casting", CASTINGS)
def test_dtype_and_casting(casting):
    for left, right, wanted in product(("int8", "int32", "float32", "float64", "complex64"), repeat=3):
        options = {"dtype": np.dtype(wanted), "casting": casting}
        assert ours([left, right], **options) == numpys([left, right], **options), (left, right, wanted)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("casting", CASTINGS)
def test_out_takes_part_as_in_numpy(casting):
    names = ("bool", "int16", "int64", "float32", "float64", "complex64")
    for operand, target, wanted in product(names, names, (None, "float32", "float64")):
        allowed = numpys([operand, operand], out=np.zeros(1, target), dtype=wanted, casting=casting) is not None
        found = ours([operand, operand], out=target, dtype=wanted, casting=casting)
        assert (found is not None) == allowed, (operand, target, wanted)
        if found is not None and wanted is None:
            assert found == np.result_type(operand, target)


@pytest.mark.parametrize("casting", CASTINGS)
def test_swapped_bytes(casting):
    operands = [np.dtype("<f4"), np.dtype(">f4")]
    assert ours(operands, casting=casting) == numpys(operands, casting=casting)


@pytest.mark.parametrize(
    ("operands", "options", "message"),
    [
        (
            ("float32", "float64"),
            {"dtype": "float32", "text": "i,i->"},
            "operand 1 cannot be cast from float64 to float32 according to the rule 'safe', in 'i,i->'",
        ),
        (("float32",), {"dtype": "int32", "casting": "same_kind"}, "operand 0 cannot be cast from float32 to int32"),
        (("float64",), {"out": "float32"}, "the result for out= cannot be cast from float64 to float32"),
        (("float32",), {"out": "float64", "dtype": "float32"}, "out= cannot be cast from float64 to float32"),
        (("int64",), {"dtype": "U3"}, "dtype='U3' is no dtype that the engine knows"),
        (("bfloat16", "float16"), {"text": "i,i"}, "no dtype holds all of bfloat16, float16: give dtype="),
    ],
)
def test_refusals_name_both_dtypes(operands, options, message):
    with pytest.raises(EngineTypeError) as caught:
        result_type(*operands, **options)
    assert message in str(caught.value)


def test_an_unknown_rule_lists_the_rules():
    with pytest.raises(EngineValueError, match="casting='bogus' is none of no, equiv, safe, same_kind, unsafe"):
        result_type("float32", casting="bogus")
    with pytest.raises(ValueError):
        np.einsum("i,i", np.ones(1), np.ones(1), casting="bogus")


# ---- accumulation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_accumulation_comes_from_the_table(name):
    assert accumulate_type(name) == DTYPES[name].accumulate


def test_accumulation_may_only_widen():
    assert accumulate_type("float16", "float64") == "float64"
    assert accumulate_type("int8", "int32") == "int32" and accumulate_type("uint8", "uint64") == "int64"
    with pytest.raises(EngineTypeError) as caught:
        accumulate_type("float64", "float32", "ij->i")
    assert str(caught.value) == "accumulate=float32 does not hold every value of the result float64 of 'ij->i'"


def test_ml_dtypes_is_loaded_only_on_demand():
    code = (
        "import sys, numpy as np; from einsum_engine import dtypes; "
        "dtypes.result_type('float32', 'float16'); dtypes.row(np.dtype('f8')); assert 'ml_dtypes' not in sys.modules; "
        "dtypes.as_numpy('bfloat16'); assert 'ml_dtypes' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


_NUMBERS = [np.dtype(name) for name in DTYPES if name not in ("bfloat16", "longdouble", "clongdouble", "object")]
_NUMBERS += [np.dtype(char) for char in "bBhHiIlLqQ"]


@pytest.mark.parametrize("dtype", _NUMBERS, ids=lambda dtype: dtype.char)
def test_names_and_native_dtypes_are_those_of_numpy(dtype):
    swapped = dtype.newbyteorder()
    assert name_of(dtype) == name_of(swapped) == dtype.name
    assert known_dtype(dtype, "x") == known_dtype(swapped, "x") == known_dtype(dtype.type, "x") == dtype
    assert known_dtype(swapped, "x").isnative and known_dtype(dtype, "x").char == dtype.char


@pytest.mark.parametrize("name", [name for name in NUMPY_NAMES if name != "object"])
def test_parts_of_complex_dtypes_are_what_numpy_has(name):
    entry, dtype = DTYPES[name], as_numpy(name)
    parts = np.zeros((), dtype).real.dtype
    assert (as_numpy(entry.part) if entry.part else dtype) == parts
    assert entry.real == (entry.part or entry.compute)
