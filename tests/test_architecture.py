"""The structure of the project, read from its source: who may import whom, one definition of each, file sizes.

To add a module: give it a row in `GROUPS` where no row's prefix fits it yet. To allow an import: add the group to
the row in `ALLOWED`, which must stay free of cycles.
"""

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "einsum_engine": ROOT / "einsum_engine",
    "einsum_engine.kernels": ROOT / "kernels",
    "einsum_engine.planners": ROOT / "planners",
    "einsum_engine.bench": ROOT / "bench",
}

# Modules beside the code generator that hold numbers only.
CPU_TABLES = ("abi", "nest_abi", "dot_abi", "batched_abi", "small_abi", "fused_abi", "storage")
CPU_TABLES += ("indexed_abi", "random_abi", "sort_abi", "guard_abi", "unpack_abi", "cores")
CPU_TABLES += ("entry_abi", "pool_abi", "result_abi", "units")

TRACE_PARTS = (
    *("lines", "memory", "store", "ufuncs", "index", "masked", "shapes", "functions", "elements", "products", "grids", "sums"),
    *("methods", "contract"),
)

# Module, or prefix of modules where it ends with a dot -> group. The longest match counts.
GROUPS = {
    "einsum_engine": "public",
    "einsum_engine.cli": "cli",
    "einsum_engine.bench": "bench",
    "einsum_engine.bench.": "bench",
    "einsum_engine.api": "api",
    "einsum_engine.compiled": "api",
    "einsum_engine.callkeys": "api",
    "einsum_engine.contractor": "api",
    "einsum_engine.contract_traced": "api",
    "einsum_engine.measured": "api",
    "einsum_engine.routes": "api",
    "einsum_engine.serialize": "api",
    "einsum_engine.options": "api",
    "einsum_engine.memory": "api",
    "einsum_engine.files": "base",
    "einsum_engine.locks": "base",
    "einsum_engine.lru": "base",
    "einsum_engine.machine_memory": "base",
    "einsum_engine.records": "base",
    "einsum_engine.explain": "plan",
    "einsum_engine.arrays": "arrays",
    "einsum_engine.passes": "passes",
    "einsum_engine.passes.": "passes",
    **{f"einsum_engine.{name}": "ir" for name in ("ops", "op_rules", "op_numpy", "avals", "views", "ir", "buildup", "storage")},
    "einsum_engine.trace": "trace",
    **{f"einsum_engine.trace_{part}": "trace" for part in TRACE_PARTS},
    **{f"einsum_engine.{name}": "trace" for name in ("control", "functions", "nnfunctions")},
    "einsum_engine.trees": "base",
    "einsum_engine.jitted": "api",
    **{f"einsum_engine.{name}": "api" for name in ("program_route", "traced", "overlap")},
    "einsum_engine.planners": "planners",
    "einsum_engine.planners.": "planners",
    "einsum_engine.plan": "plan",
    "einsum_engine.cost": "plan",
    "einsum_engine.profile": "plan",
    "einsum_engine.profiler": "executor",
    "einsum_engine.executor": "executor",
    "einsum_engine.fastcall": "executor",
    "einsum_engine.recycle": "executor",
    "einsum_engine.kernels": "kernels",
    # What a family takes, as data, and how that becomes a row of the step table: NumPy, no code generator.
    "einsum_engine.kernels.": "kernel tables",
    "einsum_engine.kernels.cpu": "kernels.cpu",
    "einsum_engine.kernels.cpu.": "kernels.cpu",
    "einsum_engine.kernels.isa": "kernel tables",
    "einsum_engine.kernels.calibrate": "kernels",
    "einsum_engine.kernels.launch": "kernels",
    "einsum_engine.kernels.warmup": "kernels",
    **{f"einsum_engine.kernels.cpu.{name}": "kernel tables" for name in CPU_TABLES},
    "einsum_engine.expr": "expr",
    "einsum_engine.dtypes": "expr",
    "einsum_engine.config": "base",
    "einsum_engine.errors": "base",
    "einsum_engine.devices": "base",
    "einsum_engine.version": "base",
}

# Group -> groups that it may import, besides itself. Data flows from left to right, imports never go back:
# cli, bench -> api -> passes -> planners -> plan -> executor -> kernels.
ALLOWED = {
    "cli": {"public", "api", "bench", "kernels", "kernel tables", "base"},
    "bench": {"public", "kernels", "kernel tables", "expr", "base"},
    "public": {"api", "trace", "base"},
    "api": {
        *("arrays", "trace", "passes", "ir", "planners", "plan", "executor", "kernels", "kernel tables", "expr", "base"),
    },
    "arrays": {"expr", "base"},
    "trace": {"ir", "expr", "base"},
    "passes": {"ir", "base"},
    "ir": {"expr", "base"},
    "planners": {"ir", "plan", "kernel tables", "expr", "base"},
    "executor": {"plan", "kernels.cpu", "kernel tables", "expr", "base"},
    "plan": {"expr", "base"},
    "kernels": {"kernels.cpu", "kernel tables", "expr", "base"},
    "kernels.cpu": {"kernel tables", "base"},
    "kernel tables": {"expr", "base"},
    "expr": {"base"},
    "base": set(),
}

# Group -> packages of others that it may import, at any depth.
EXTERNAL = {
    "cli": {"numpy", "tqdm", "matplotlib"},
    "bench": {
        *("numpy", "tqdm", "matplotlib", "ml_dtypes", "opt_einsum", "cotengra", "autoray", "quimb"),
        *("torch", "jax", "tblis", "pytblis", "threadpoolctl", "numexpr", "numba"),
    },
    "public": set(),
    "api": {"numpy", "autoray"},
    "arrays": {"numpy", "ml_dtypes", "torch", "jax"},
    "trace": {"numpy"},
    "passes": {"numpy"},
    "ir": {"numpy"},
    "planners": {"numpy", "opt_einsum", "cotengra", "autoray", "tqdm"},
    "executor": {"numpy"},
    "plan": {"numpy"},
    "kernels": {"numpy", "ml_dtypes", "tqdm"},
    "kernels.cpu": {"numpy", "llvmlite"},
    "kernel tables": {"numpy", "ml_dtypes"},
    "expr": {"numpy", "ml_dtypes"},
    "base": {"numpy"},
}

# Class -> the only module that may define it.
DEFINITIONS = {
    "EngineError": "einsum_engine.errors",
    "Option": "einsum_engine.config",
    "Expr": "einsum_engine.expr",
    "Aval": "einsum_engine.avals",
    "View": "einsum_engine.views",
    "Primitive": "einsum_engine.ops",
    "Eqn": "einsum_engine.ir",
    "Program": "einsum_engine.ir",
    "Tracer": "einsum_engine.trace",
    "Axis": "einsum_engine.plan",
    "Layout": "einsum_engine.plan",
    "Buffer": "einsum_engine.plan",
    "Step": "einsum_engine.plan",
    "Plan": "einsum_engine.plan",
    "ISA": "einsum_engine.kernels.isa",
    "Row": "einsum_engine.kernels.row",
    "Family": "einsum_engine.kernels.registry",
    "Structure": "einsum_engine.kernels.fused_structure",
    "PlanRequest": "einsum_engine.planners.request",
    "ProgramRequest": "einsum_engine.planners.program_request",
    "Signature": "einsum_engine.plan",
    "Order": "einsum_engine.planners.order",
    "BinaryContraction": "einsum_engine.planners.contraction",
    "NativePlan": "einsum_engine.executor",
    "Compiled": "einsum_engine.compiled",
    "Machine": "einsum_engine.cost",
}

# Classes of one name in two modules, and why.
NAMESAKES = {"Var": "a value of a program; a register of generated code, which no program sees"}

# Files over this many lines, and why they are better whole.
LINES = 500
LONG: dict[str, str] = {}

# Importing the package must not cost the seconds that these take.
SLOW = {
    *("numba", "llvmlite", "opt_einsum", "cotengra", "autoray", "quimb", "tqdm", "matplotlib", "scipy"),
    *("torch", "jax", "tblis", "pytblis", "cupy", "ml_dtypes", "numexpr"),
}


@dataclass(frozen=True)
class Import:
    """``module`` imports ``target`` in line ``line``; a project target is a full module name."""

    module: str
    line: int
    target: str
    relative: bool

    def __str__(self):
        return f"{self.module}:{self.line} imports {self.target}"


@cache
def modules() -> dict[str, Path]:
    """All modules of the installed packages, by full name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def resolve(module: str, is_package: bool, node: ast.ImportFrom) -> list[str]:
    """Full names of the modules that a relative ``from ... import`` names."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    base = ".".join(package[: len(package) - node.level + 1] + ([node.module] if node.module else []))
    targets = [f"{base}.{alias.name}" for alias in node.names]
    return [target if target in modules() else base for target in targets]


def imports_of(module: str, text: str, is_package: bool = False) -> list[Import]:
    """All imports in the source of one module, those inside functions too."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [Import(module, node.lineno, alias.name, False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = resolve(module, is_package, node) if node.level else [node.module]
            found += [Import(module, node.lineno, name, bool(node.level)) for name in dict.fromkeys(names)]
    return found


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(
        found
        for module, path in modules().items()
        for found in imports_of(module, path.read_text(), path.name == "__init__.py")
    )


def group_of(module: str) -> str | None:
    """The group of a module: its own row, else that of the longest prefix."""
    if module in GROUPS:
        return GROUPS[module]
    prefixes = [prefix for prefix in GROUPS if prefix.endswith(".") and module.startswith(prefix)]
    return GROUPS[max(prefixes, key=len)] if prefixes else None


def complaint(found: Import) -> str | None:
    """Why an import is not allowed; None where it is."""
    group = group_of(found.module)
    if found.relative:
        target = group_of(found.target)
        if target != group and target not in ALLOWED[group]:
            return f"{found}: {group!r} may not import {target!r}"
        return None
    package = found.target.split(".")[0]
    if package in ("einsum_engine", "kernels", "planners", "bench"):
        return f"{found}: inside the project imports are relative"
    if package not in sys.stdlib_module_names and package not in EXTERNAL[group]:
        return f"{found}: {group!r} may not import {package!r}"
    return None


def find_cycle(edges: dict[str, set[str]]) -> list[str]:
    """A cycle in a graph, its first node repeated at the end; empty where there is none."""
    done: set[str] = set()

    def walk(node: str, trail: list[str]) -> list[str]:
        if node in trail:
            return [*trail[trail.index(node) :], node]
        if node in done:
            return []
        for target in sorted(edges.get(node, ())):
            if cycle := walk(target, [*trail, node]):
                return cycle
        done.add(node)
        return []

    return next((cycle for node in sorted(edges) if (cycle := walk(node, []))), [])


def test_every_module_belongs_to_a_group():
    assert "einsum_engine.config" in modules() and "einsum_engine.kernels.isa" in modules()
    assert [module for module in modules() if group_of(module) is None] == []
    assert set(GROUPS.values()) == set(ALLOWED) == set(EXTERNAL)


def test_the_table_of_allowed_imports_goes_one_way():
    assert find_cycle(ALLOWED) == []


def test_imports_are_allowed():
    assert all_imports()
    assert [text for found in all_imports() if (text := complaint(found))] == []


def test_no_import_is_allowed_that_nobody_needs():
    needed: dict[str, set[str]] = {group: set() for group in ALLOWED}
    for found in all_imports():
        if found.relative:
            needed[group_of(found.module)].add(group_of(found.target))
    assert {group: ALLOWED[group] - needed[group] for group in ALLOWED if ALLOWED[group] - needed[group]} == {}


def test_no_import_cycles():
    edges: dict[str, set[str]] = {}
    for found in all_imports():
        # A package that imports its own modules is how names are published: the module does not import it back.
        if found.relative and found.target != found.module:
            edges.setdefault(found.module, set()).add(found.target)
    assert find_cycle(edges) == []


def test_only_api_knows_passes_planners_and_executor():
    knows = {
        group: {found for found in ("passes", "planners", "executor") if found in ALLOWED[group]} for group in ALLOWED
    }
    assert [group for group, known in knows.items() if known] == ["api"]


@pytest.mark.parametrize(
    "module, text, expected",
    [
        ("einsum_engine.planners.order", "from ..executor import bind", "'planners' may not import 'executor'"),
        ("einsum_engine.planners.order", "def f():\n    import numba", "'planners' may not import 'numba'"),
        ("einsum_engine.planners.order", "from ..kernels.launch import run", "'planners' may not import 'kernels'"),
        ("einsum_engine.planners.order", "from ..kernels.isa import get", None),
        ("einsum_engine.kernels.cpu.x", "from ...plan import Plan", "'kernels.cpu' may not import 'plan'"),
        ("einsum_engine.expr", "from einsum_engine.errors import EngineError", "imports are relative"),
        ("einsum_engine.bench.x", "import kernels.isa", "imports are relative"),
        ("einsum_engine.api", "import torch", "'api' may not import 'torch'"),
        ("einsum_engine.api", "import os, json\nfrom .plan import Plan", None),
    ],
)
def test_the_checker_can_fail(module, text, expected):
    complaints = [complaint(found) for found in imports_of(module, text)]
    if expected is None:
        assert complaints == [None] * len(complaints) and complaints
    else:
        assert expected in str(complaints[0])


def test_find_cycle_finds_one():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}}) == []


@cache
def public_classes() -> dict[str, list[str]]:
    """Public class name -> modules that define it at the top level."""
    found: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    return found


def test_one_definition_of_each_class():
    assert {name for name, where in public_classes().items() if len(where) > 1} == set(NAMESAKES)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_central_class_is_where_it_belongs(name):
    assert public_classes().get(name) == [DEFINITIONS[name]]


def test_a_child_waits_for_no_lock_of_its_parent():
    """`locks` makes those of modules anew in the child of a fork; `functools.cached_property` has one that nobody can."""
    for name, path in modules().items():
        text = path.read_text()
        if name.startswith("einsum_engine.bench"):
            continue
        assert "cached_property" not in text.replace("`functools.cached_property`", ""), name
        if name != "einsum_engine.locks":
            assert "Lock()" not in text, f"{name}: `locks.anew` makes a lock that a child has anew"


def test_files_stay_readable():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in (*modules().values(), *(ROOT / "tests").rglob("*.py"))
    }
    long = {name: length for name, length in lengths.items() if length > LINES}
    assert {name: length for name, length in long.items() if name not in LONG} == {}
    assert [name for name in LONG if name not in long] == [], "no longer too long: take the row out"
    assert all(LONG.values())


def loaded_after(code: str) -> set[str]:
    """Top-level packages loaded in a fresh interpreter that ran ``code``."""
    script = f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_import_loads_nothing_slow():
    loaded = loaded_after("import einsum_engine")
    assert "einsum_engine" in loaded and loaded & SLOW == set()


def test_planners_load_no_code_generator():
    names = [module for module in modules() if group_of(module) == "planners"]
    loaded = loaded_after("import " + ", ".join(names))
    assert loaded & {"numba", "llvmlite", "cupy", "torch", "jax"} == set()


@pytest.mark.parametrize("folder", ["kernels", "planners", "bench"])
def test_folder_refuses_to_load_under_its_own_name(folder):
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {folder}"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode != 0
    assert f"this folder is the package einsum_engine.{folder}, not {folder}" in result.stderr
