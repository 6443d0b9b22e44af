"""Kernels that are linked when they are written: what is linked, what is left to LLVM, and how code lies in memory."""

from __future__ import annotations

import ctypes
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from einsum_engine.kernels import isa, registry
from einsum_engine.kernels.cpu import codegen, generators, image, library
from einsum_engine.kernels.cpu.emit import I64
from llvmlite import ir

EACH_ISA = pytest.mark.parametrize("row", isa.host_isas(), ids=lambda row: row.name)
X86 = pytest.mark.skipif(
    isa.active_isa().triple_arch != "x86_64" or sys.platform != "linux",
    reason="LLVM links kernels of other processors and systems",
)


def _object(row, name: str, writable: bool = False) -> bytes:
    """``f(x) = table[x] + x``, with a function before it and after; tables are constants that lie beside the code."""
    module = ir.Module(name)
    _constant(module, f"{name}_before", 1)
    words = ir.ArrayType(I64, 8)
    table = ir.GlobalVariable(module, words, "table")
    table.linkage, table.global_constant = "internal", not writable
    table.initializer = ir.Constant(words, [7 - 3 * n for n in range(8)])
    function = ir.Function(module, ir.FunctionType(I64, [I64]), name)
    build = ir.IRBuilder(function.append_basic_block())
    at = build.gep(table, [ir.Constant(I64, 0), function.args[0]])
    found = build.load(at)
    if writable:
        build.store(build.add(found, ir.Constant(I64, 1)), at)
    build.ret(build.add(found, function.args[0]))
    _constant(module, f"{name}_behind", 2)
    return codegen.compile_object(module, row)


def _constant(module: ir.Module, name: str, value: int) -> None:
    function = ir.Function(module, ir.FunctionType(I64, []), name)
    ir.IRBuilder(function.append_basic_block()).ret(ir.Constant(I64, value))


def _call(address: int, *words: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(words))(address)(*words)


@X86
@EACH_ISA
def test_a_linked_function_finds_its_constants(row):
    found = image.linked(_object(row, f"linked_{row.name}"), f"linked_{row.name}")
    assert image.is_image(found)
    address = image.load(found)
    assert [_call(address, n) for n in range(8)] == [7 - 2 * n for n in range(8)]


@X86
@EACH_ISA
def test_all_kernels_are_linked(row, tmp_path, monkeypatch):
    """One of each kind, as it is written to disk."""
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path))
    for family in registry.FAMILIES.values():
        for name in random.Random(1).sample(family.names(row), 1):
            assert image.is_image(library.store(name, row)), name


def test_generators_that_were_changed_since_the_process_began_leave_nothing_on_disk(tmp_path, monkeypatch):
    """They would be found under the digest of what was there before."""
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path))
    row = isa.active_isa()
    monkeypatch.setattr(library, "_as_it_began", lambda: False)
    data = library.store("pack_8", row)
    assert list(tmp_path.rglob("*.o")) == []
    monkeypatch.undo()
    monkeypatch.setenv("EINSUM_ENGINE_CACHE_DIR", str(tmp_path))
    assert library.store("pack_8", row) == data and len(list(tmp_path.rglob("*.o"))) == 1


@X86
def test_what_is_written_or_lies_elsewhere_is_left_to_llvm():
    row = isa.active_isa()
    data = _object(row, "writes_a_table", writable=True)
    assert image.linked(data, "writes_a_table") == data and not image.is_image(data)
    module = ir.Module("calls")
    other = ir.Function(module, ir.FunctionType(I64, []), "somewhere_else")
    function = ir.Function(module, ir.FunctionType(I64, []), "calls")
    build = ir.IRBuilder(function.append_basic_block())
    build.ret(build.add(build.call(other, []), ir.Constant(I64, 1)))
    data = codegen.compile_object(module, row)
    assert image.linked(data, "calls") == data


def test_objects_of_other_processors_are_left_to_llvm():
    neon = isa.ISAS["neon"]
    data = codegen.compile_object(generators.build("walk", neon), neon)
    assert image.linked(data, "walk") == data


@pytest.mark.parametrize("begin", [b"\xcf\xfa\xed\xfe", b"\x64\x86", b"\x7fELF\x01\x01", b""])
def test_objects_of_other_systems_are_left_to_llvm(begin):
    assert image.linked(begin + bytes(16), "f") == begin + bytes(16)


@X86
def test_code_can_be_run_and_read_but_not_written():
    row = isa.active_isa()
    address = image.load(image.linked(_object(row, "protected"), "protected"))
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end, rights = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
        if int(begin, 16) <= address < int(end, 16):
            assert rights == "r-xp"
            return
    raise AssertionError("the code lies nowhere")


@X86
def test_a_system_without_executable_memory(monkeypatch):
    data = image.linked(_object(isa.active_isa(), "refused"), "refused")

    class Refusing:
        mmap = image._libc().mmap

        @staticmethod
        def mprotect(*_: int) -> int:
            ctypes.set_errno(13)
            return -1

    monkeypatch.setattr(image, "_libc", Refusing)
    with pytest.raises(OSError, match="executable memory"):
        image.load(data)


CALLS = """
import sys
import numpy as np
import einsum_engine as engine
a = np.arange(90_000.0).reshape(300, 300)
assert np.allclose(engine.einsum("ij,jk->ik", a, a, threads=2), a @ a)
assert np.array_equal(engine.jit(lambda x: np.maximum(x, 3) + x.T)(a), np.maximum(a, 3) + a.T)
print(sorted({"llvmlite.binding", "llvmlite.ir"} & set(sys.modules)))
"""


@X86
def test_llvm_is_loaded_only_where_a_kernel_is_compiled(tmp_path):
    environment = os.environ | {"EINSUM_ENGINE_CACHE_DIR": str(tmp_path), "EINSUM_ENGINE_MEASURE": "0"}
    loaded = [
        subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=120, env=environment)
        for _ in range(2)
    ]
    assert [each.returncode for each in loaded] == [0, 0], loaded[0].stderr + loaded[1].stderr
    assert [each.stdout.strip() for each in loaded] == ["['llvmlite.binding', 'llvmlite.ir']", "[]"]
