"""The table of instruction sets: every row, and the choice among them."""

import dataclasses
import platform

import pytest

from einsum_engine.errors import EngineValueError
from einsum_engine.kernels import isa as isas

ZEN4 = frozenset("sse2 avx2 fma f16c bmi1 bmi2 abm movbe avx512f avx512bw avx512dq avx512vl avx512cd".split())


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("EINSUM_ENGINE_ISA", raising=False)


@pytest.mark.parametrize("name", isas.ISAS)
def test_row_is_consistent(name):
    row = isas.get(name)
    assert row.name == name
    assert row.vector_bits in (128, 256, 512) and row.registers in (16, 32)
    assert row.triple_arch in ("x86_64", "aarch64")
    assert all(feature[0] in "+-" for feature in row.features)
    for itemsize in (1, 2, 4, 8, 16):
        assert row.lanes(itemsize) * itemsize * 8 == row.vector_bits
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.registers = 8


@pytest.mark.parametrize("name", isas.ISAS)
def test_llvm_knows_cpu_and_every_feature(name):
    llvm = pytest.importorskip("llvmlite.binding")
    row = isas.get(name)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(row.triple)
    machine = target.create_target_machine(cpu=row.cpu, features=",".join(row.features))
    lanes = row.lanes(8)
    text = (
        f"define void @f(ptr %p) {{ %x = load <{lanes} x double>, ptr %p\n"
        f"%y = fadd <{lanes} x double> %x, %x\n store <{lanes} x double> %y, ptr %p\n ret void }}"
    )
    assembly = machine.emit_assembly(llvm.parse_assembly(text))
    register = {512: "zmm", 256: "ymm", 128: "xmm"}[row.vector_bits] if row.triple_arch == "x86_64" else ".2d"
    assert register in assembly


def test_widest_first_within_an_architecture():
    for arch in ("x86_64", "aarch64"):
        widths = [row.vector_bits for row in isas.ISAS.values() if row.triple_arch == arch]
        assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize(
    "machine, flags, expected",
    [
        ("x86_64", ZEN4, ["avx512", "avx2", "sse2"]),
        ("AMD64", ZEN4 - {"avx512vl"}, ["avx2", "sse2"]),
        ("x86_64", ZEN4 - {"fma"}, ["sse2"]),
        ("x86_64", frozenset(), ["sse2"]),
        ("aarch64", frozenset(), ["neon"]),
        ("arm64", frozenset(), ["neon"]),
        ("riscv64", ZEN4, []),
    ],
)
def test_runnable(machine, flags, expected):
    assert [row.name for row in isas.runnable(machine, flags)] == expected


def test_parse_cpuinfo():
    assert isas.parse_cpuinfo("processor\t: 0\nFeatures\t: fp asimd\n") == {"fp", "asimd"}
    assert isas.parse_cpuinfo("processor\t: 0\nflags\t: a\n\nprocessor\t: 1\nflags\t: b\n") == {"a"}
    assert isas.parse_cpuinfo("") == frozenset()


def test_active_is_the_widest_here_unless_forced(monkeypatch):
    here = isas.host_isas()
    assert here and isas.active_isa() is here[0]
    for row in here:
        assert isas.active_isa(row.name) is row
        monkeypatch.setenv("EINSUM_ENGINE_ISA", row.name.upper())
        assert isas.active_isa() is row


def test_unknown_name_lists_the_known_ones(monkeypatch):
    with pytest.raises(EngineValueError, match="'avx9'.*avx512, avx2, sse2, neon"):
        isas.get("avx9")
    with pytest.raises(EngineValueError, match="isa='avx9'.*avx512, avx2, sse2, neon"):
        isas.active_isa("avx9")
    monkeypatch.setenv("EINSUM_ENGINE_ISA", "avx9")
    with pytest.raises(EngineValueError, match="EINSUM_ENGINE_ISA='avx9'.*avx512, avx2, sse2, neon"):
        isas.active_isa()


def test_an_instruction_set_that_the_host_cannot_run_is_refused(monkeypatch):
    monkeypatch.setattr(isas, "host_isas", lambda: isas.runnable("x86_64", frozenset()))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("EINSUM_ENGINE_ISA", "avx512")
    with pytest.raises(EngineValueError, match=r"EINSUM_ENGINE_ISA='avx512': this machine \(x86_64\) runs sse2"):
        isas.active_isa()
    monkeypatch.setattr(isas, "host_isas", lambda: ())
    monkeypatch.delenv("EINSUM_ENGINE_ISA")
    with pytest.raises(EngineValueError, match="no kernels for this machine: 'x86_64'"):
        isas.active_isa()
