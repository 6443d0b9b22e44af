"""From an IR module to callable machine code, for a row of the ISA table, through the disk cache.

A kernel is compiled at most once per machine: the object file goes to `kernels.diskcache`, linked (`image`), under a
key of kernel name, source digest, ISA and llvmlite's version. One MCJIT engine per ISA holds the objects that only LLVM can
link.
"""

from __future__ import annotations

from llvmlite import binding as llvm
from llvmlite import ir

from ..isa import ISA
from . import llvm_lock

_engines: dict[str, llvm.ExecutionEngine] = {}
_initialised = False


def _initialise() -> None:
    global _initialised
    with llvm_lock.lock:
        if not _initialised:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            _initialised = True


def target_machine(isa: ISA) -> llvm.TargetMachine:
    """LLVM target of an ISA row; position-independent so that objects can be loaded anywhere."""
    _initialise()
    target = llvm.Target.from_triple(isa.triple)
    return target.create_target_machine(
        cpu=isa.cpu, features=",".join(isa.features), opt=3, reloc="pic", codemodel="default", jit=False
    )


def optimise(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Variables to registers, tests of loops to their ends, instructions simplified once: kernels write vectors,
    unrolling and what stays the same in a loop themselves.

    LLVM's own pipelines look for more and find nothing: kernels are no quicker for the shortest of them, O1, which
    takes four times as long. Code generation moves what little is left out of loops.
    """
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def parse(module: ir.Module, isa: ISA) -> llvm.ModuleRef:
    """The module in a context of its own: threads compile side by side."""
    module.triple = isa.triple
    parsed = llvm.parse_assembly(str(module), llvm.create_context())
    parsed.verify()
    return parsed


def compile_object(module: ir.Module, isa: ISA) -> bytes:
    """Optimised object code of a module."""
    machine = target_machine(isa)
    parsed = parse(module, isa)
    optimise(parsed, machine)
    return machine.emit_object(parsed)


def assembly(module: ir.Module, isa: ISA) -> str:
    """Optimised assembly text, for inspection and for ISAs that this machine cannot run."""
    machine = target_machine(isa)
    parsed = parse(module, isa)
    optimise(parsed, machine)
    return machine.emit_assembly(parsed)


def _engine(isa: ISA) -> llvm.ExecutionEngine:
    if isa.name not in _engines:
        backing = llvm.parse_assembly(f'target triple = "{isa.triple}"')
        # The sections of an object lie together: between those of the usual manager a process may have gigabytes of
        # arrays, further apart than code can address.
        _engines[isa.name] = llvm.create_mcjit_compiler(backing, target_machine(isa), use_lmm=True)
    return _engines[isa.name]


def load(data: bytes, symbols: tuple[str, ...], isa: ISA) -> tuple[int, ...]:
    """Link an object into this process; addresses of its functions."""
    with llvm_lock.lock:
        engine = _engine(isa)
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        return tuple(engine.get_function_address(s) for s in symbols)
