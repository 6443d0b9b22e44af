"""Functions that are calls of Intel's vector library: which kernels call it, what they give, and how it is found."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fused_case
import numpy as np
import pytest
import test_mathlib as own

import einsum_engine as engine
from einsum_engine.errors import EngineError
from einsum_engine.kernels import fused_structure, isa
from einsum_engine.kernels.cpu import generators, library, svml

ROWS = [(name, bits, op) for (name, bits), ops in svml.ROWS.items() for op in sorted(ops)]
HERE = {row.name for row in isa.host_isas()}
NEEDS = pytest.mark.skipif(
    svml.library() is None, reason="Intel's vector library (intel-cmplr-lib-rt) is not installed"
)
# in ulp: of the functions that are called, which are chosen to be no less exact than those of `mathlib`
BOUND = 1.0


def each_row(function):
    marked = [
        pytest.param(*row, marks=() if row[0] in HERE else pytest.mark.skip(reason=f"there is no {row[0]} here"))
        for row in ROWS
    ]
    return pytest.mark.parametrize("name, bits, op", marked)(function)


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr(svml, "library", lambda: None)


@pytest.fixture
def present(monkeypatch):
    """For tests that call nothing."""
    monkeypatch.setattr(svml, "library", lambda: Path("/libsvml.so"))


def text(op: str, dtypes: tuple[str, ...], row: isa.ISA) -> str:
    """Of the kernel of one operation, before LLVM reads it."""
    return str(generators.build(fused_structure.name(fused_case.single(op, dtypes)), row))


def dtypes_of(op: str, bits: int) -> tuple[str, ...]:
    return (f"float{bits}",) * fused_structure.SCALARS[op].arity


# -- with the library ----------------------------------------------------------------------------------------------
@NEEDS
@each_row
@own.NEEDS_EXTENDED
def test_errors(name, bits, op):
    """Over all bit patterns, dense ranges and borders: NaN, infinities, denormals and signs of zero among them."""
    dtype, row = f"float{bits}", isa.get(name)
    if fused_structure.SCALARS[op].arity == 2:
        given, expected = own.pairs(dtype), own.exact_pairs(dtype, op)
    else:
        given, expected = (own.arguments(np.random.default_rng(11), dtype),), own.exact_values(dtype, op)
    own.check(fused_case.apply(row, op, *given), expected, BOUND, given, (name, dtype, op))


@NEEDS
@each_row
def test_elements_have_the_same_bits_wherever_they_lie(name, bits, op):
    """In whole vectors, in parts of one at the end, beside others, and in pairs of vectors."""
    row, rng = isa.get(name), np.random.default_rng(5)
    given = [rng.uniform(0, 4, 150).astype(f"float{bits}") for _ in dtypes_of(op, bits)]
    given[0][rng.integers(0, 150, 20)] = 0
    whole = fused_case.apply(row, op, *given)
    for first, last in [*((0, n) for n in range(1, 70)), (1, 2), (7, 150), (33, 64), (149, 150)]:
        part = fused_case.apply(row, op, *(x[first:last] for x in given))
        assert part.tobytes() == whole[first:last].tobytes(), (first, last)
    apart = fused_case.apply(row, op, *(x[::3] for x in given))
    assert apart.tobytes() == whole[::3].tobytes()


@NEEDS
@each_row
def test_values_beside_a_call_are_kept(name, bits, op):
    """What the rest of a kernel has in registers, where functions of ours are before and after a call."""
    row, dtype = isa.get(name), f"float{bits}"
    g = fused_structure.Graph((dtype, dtype))
    called = g.op(op, *range(fused_structure.SCALARS[op].arity))
    before, after = g.op("exp", 1), g.op("tanh", g.op("mul", 0, called))
    structure = g.structure(g.op("add", g.op("add", after, before), g.op("div", 0, called)))
    rng = np.random.default_rng(6)
    x, y = (rng.uniform(1.5, 3, 83).astype(dtype) for _ in range(2))
    out = np.empty(83, dtype)
    fused_case.run(row, structure, [out], [x, y])
    f = own.special(op, x) if op in own.OWN else np.power(x, y) if op == "pow" else getattr(np, op)(x)
    np.testing.assert_allclose(out, np.tanh(x * f) + np.exp(y) + x / f, rtol=1e-5 if bits == 32 else 1e-13)


@NEEDS
@each_row
def test_reductions_over_a_call(name, bits, op):
    row, dtype = isa.get(name), f"float{bits}"
    rng = np.random.default_rng(7)
    given = [rng.uniform(1, 2, (5, 777)).astype(dtype) for _ in dtypes_of(op, bits)]
    total = np.empty((5, 1), dtype)
    fused_case.run(row, fused_case.single(op, dtypes_of(op, bits), "sum"), [total], given)
    parts = fused_case.apply(row, op, *given).astype("float64")
    np.testing.assert_allclose(total[:, 0], parts.sum(1), rtol=1e-4 if bits == 32 else 1e-11)


@NEEDS
def test_the_switch_is_read_when_a_plan_is_made(monkeypatch):
    """Both are right, and neither finds the other's kernels."""
    x, found = np.linspace(0.1, 9, 1000), {}
    for switch in "0101":
        monkeypatch.setenv("EINSUM_ENGINE_SVML", switch)
        y = engine.jit(lambda a: np.log10(a) + np.cbrt(a))(x)
        np.testing.assert_allclose(y, np.log10(x) + np.cbrt(x), rtol=1e-14, atol=1e-15)
        assert np.array_equal(found.setdefault(switch, y), y)
    assert np.array_equal(found["0"], found["1"]) == (isa.active_isa().name != "avx512")


@NEEDS
def test_threads_and_forks():
    x = np.random.default_rng(8).uniform(0.1, 9, 50_000)
    f = engine.jit(lambda a: np.log2(a) * np.sin(a) + np.cbrt(a))
    expected = f(x)
    with ThreadPoolExecutor(4) as executor:
        assert all(np.array_equal(found, expected) for found in executor.map(f, [x] * 16))
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(f(x), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


AGAIN = """
import sys
import numpy as np
import einsum_engine as engine
from einsum_engine.kernels.cpu import library
x = np.linspace(0.1, 9, 1000)
assert np.allclose(engine.jit(lambda a: np.log2(a) + np.cos(a))(x), np.log2(x) + np.cos(x))
maps = open("/proc/self/maps").read()
print(library.compilations > 0, "llvmlite.binding" in sys.modules, "libsvml" in maps)
"""


@NEEDS
@pytest.mark.skipif(isa.active_isa().name != "avx512", reason="these functions are called by avx512 alone")
def test_kernels_on_disk(tmp_path):
    """One that calls the library is loaded without LLVM, and not where the switch is off."""
    environment = os.environ | {"EINSUM_ENGINE_CACHE_DIR": str(tmp_path)}
    answers = {"1": ["True True True", "False False True"], "0": ["True True False", "False False False"]}
    for switch, expected in answers.items():
        environment["EINSUM_ENGINE_SVML"] = switch
        for answer in expected:
            command = [sys.executable, "-c", AGAIN]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
            assert done.stdout.strip() == answer, (switch, done.stderr)


# -- without it ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, bits, op", ROWS)
def test_kernels_call_the_function_of_their_instruction_set(present, name, bits, op):
    """No wider vectors than those that kernels have themselves."""
    row = isa.ISAS[name]
    lanes, kind = row.vector_bits // bits, "f" if bits == 32 else ""
    found = text(op, dtypes_of(op, bits), row)
    assert f"@__svml_{op}{kind}{lanes}_ha(" in found.replace('"', "")
    assert all("__svml" not in line or f"{lanes}_ha" in line for line in found.splitlines())


@pytest.mark.parametrize("name, bits, op", ROWS)
def test_kernels_where_it_is_absent_or_off(monkeypatch, absent, name, bits, op):
    row = isa.ISAS[name]
    assert "__svml" not in text(op, dtypes_of(op, bits), row)
    monkeypatch.setattr(svml, "library", lambda: Path("/libsvml.so"))
    monkeypatch.setenv("EINSUM_ENGINE_SVML", "0")
    assert "__svml" not in text(op, dtypes_of(op, bits), row)


@pytest.mark.parametrize(
    "row", [isa.ISAS[name] for name in ("avx512", "avx2", "sse2", "neon")], ids=lambda row: row.name
)
def test_what_has_no_row_is_computed_here(present, row):
    assert "__svml" not in text("exp", ("float32",), row)
    assert "__svml" not in text("log10", ("complex128",), row)
    if row.name in ("sse2", "neon"):
        assert "__svml" not in text("log2", ("float32",), row)


def test_files_of_kernels_that_may_call_it_have_other_names(monkeypatch, present):
    row, kernel = isa.active_isa(), "fused_" + 32 * "0"
    calling = library.path(kernel, row)
    monkeypatch.setenv("EINSUM_ENGINE_SVML", "0")
    off = library.path(kernel, row)
    monkeypatch.delenv("EINSUM_ENGINE_SVML")
    monkeypatch.setattr(svml, "library", lambda: None)
    assert library.path(kernel, row) == off != calling
    plain = library.path("walk", row)  # which calls nothing
    monkeypatch.setattr(svml, "library", lambda: Path("/libsvml.so"))
    assert library.path("walk", row) == plain


# -- to find it ----------------------------------------------------------------------------------------------------
@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """An installation whose package has these files."""
    modules = tmp_path / "lib" / "python3.11" / "site-packages"
    modules.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(modules)])
    svml.library.cache_clear()
    svml._loaded.cache_clear()
    yield tmp_path / "lib"
    monkeypatch.undo()
    svml.library.cache_clear()
    svml._loaded.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="the package is looked for on Linux")
def test_where_it_is_looked_for(prefix):
    assert svml.library() is None and not svml.used()
    (prefix / "libsvml.so").write_bytes(b"")
    svml.library.cache_clear()
    assert svml.library() is None  # what it needs is not there
    (prefix / "libintlc.so.5").write_bytes(b"")
    svml.library.cache_clear()
    assert svml.library() == prefix / "libsvml.so" and svml.used()


@pytest.mark.skipif(sys.platform != "linux", reason="the package is looked for on Linux")
def test_a_library_that_cannot_be_loaded(prefix):
    with pytest.raises(EngineError, match="intel-cmplr-lib-rt"):
        svml.address("__svml_log28_ha")
    for name in ("libsvml.so", "libintlc.so.5"):
        (prefix / name).write_bytes(b"no library")
    svml.library.cache_clear()
    with pytest.raises(EngineError, match="EINSUM_ENGINE_SVML=0"):
        svml.address("__svml_log28_ha")


def test_it_is_not_looked_for_before_a_kernel_is():
    program = "import sys, einsum_engine; print('einsum_engine.kernels.cpu.svml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
