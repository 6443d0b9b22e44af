"""What the generator makes of the GEMM tiles, read from the assembly: also for instruction sets not runnable here."""

import re

import pytest

from einsum_engine.kernels import fused_structure, isa, tiles
from einsum_engine.kernels.cpu import codegen, cores, generators
from einsum_engine.kernels.cpu.tile import TileSpec, several_terms

# The instruction of one multiply-add on a whole vector, per ISA, and vector registers that are saved to the stack.
FMA = {
    "avx512": r"vfm(add|sub)\w+p[sd]\s.*%zmm",
    "avx2": r"vfm(add|sub)\w+p[sd]\s.*%ymm",
    "sse2": r"\bmulp[sd]\s.*%xmm",
    "neon": r"\bfml[as]\s+v\d+\.(4s|2d)",
}
SPILL = r"%[xyz]mm\d+.*\(%r[sb]p|\(%r[sb]p.*%[xyz]mm|\bq\d+.*\[(sp|x29)"
CALL = r"^\s*(?:callq?|blr?)\s+(\S+)"


def _kernels():
    """The widest tiles, where registers are short."""
    for row in isa.ISAS.values():
        for dtype in ("float32", "float64", "complex64"):
            for tile in tiles.tiles(row, dtype)[:3]:
                yield pytest.param(row, dtype, tile, id=f"{row.name}-{dtype}-{tile[0]}x{tile[1]}")


def _assembly(row, name: str) -> str:
    return codegen.assembly(generators.build(name, row), row)


def _loops(text: str) -> list[list[str]]:
    """Innermost loops: blocks of instructions that end in a jump to their own label."""
    loops, label, body = [], "", []
    for line in text.splitlines():
        code = re.split(r"//|\s# |\s#*=", line)[0].strip()
        start = re.match(r"(\.L\w+):", code)
        if start:
            label, body = start[1], []
        elif code and not code.startswith("."):
            body.append(code)
            if label and code.endswith(label):
                loops.append(body)
                label, body = "", []
    return loops


def _foreign_calls(text: str) -> list[str]:
    """Calls of names that the kernel does not define: memset and the like would not be found when it is loaded."""
    own = set(re.findall(r"^(\w+):", text, re.MULTILINE))
    return [name for name in re.findall(CALL, text, re.MULTILINE) if name not in own and not re.fullmatch(r"x\d+", name)]


@pytest.mark.parametrize("row, dtype, tile", list(_kernels()))
def test_k_loop_is_multiply_adds_without_spills(row, dtype, tile):
    spec = TileSpec.from_name(f"gemm_{dtype}_{tile[0]}x{tile[1]}_pp")
    text = _assembly(row, spec.name)
    term = tile[0] * tile[1] * (2 if dtype in tiles.COMPLEX else 1)
    counts = [(sum(bool(re.search(FMA[row.name], line)) for line in loop), loop) for loop in _loops(text)]
    turn = several_terms(spec, row) * term
    assert [count for count, _ in counts if count >= turn] == [turn] * 2  # all of K at once, and a piece of it
    if tiles.halves(row, dtype, tile):
        assert turn // 2 in [count for count, _ in counts]  # of half of the columns
    assert not [line for count, loop in counts if count >= term for line in loop if re.search(SPILL, line)]


def _reads_in_place():
    """The tiles with most sums, where B is read in place, and lanes are or lie in panels."""
    for name, dtypes in (("avx512", ("float64", "complex128")), ("neon", ("float64",))):
        row = isa.get(name)
        for dtype in dtypes:
            tight = [tile for tile in tiles.tiles(row, dtype) if tiles.registers_needed(row, dtype, tile) > 26]
            for tile in tight:
                for modes in ("pd", "dd"):
                    yield pytest.param(row, dtype, tile, modes, id=f"{name}-{dtype}-{tile[0]}x{tile[1]}-{modes}")


@pytest.mark.parametrize("core", [cores.PLAIN, *cores.MAKERS.values()], ids=["plain", *cores.MAKERS])
@pytest.mark.parametrize("row, dtype, tile, modes", list(_reads_in_place()))
def test_sums_stay_in_registers_where_columns_are_read_in_place(monkeypatch, core, row, dtype, tile, modes):
    """In every K loop: by tables and at equal distances, asking for rows and not, in pieces and half as wide."""
    monkeypatch.setattr(cores, "here", lambda: core)
    term = tile[0] * tile[1] * (2 if dtype in tiles.COMPLEX else 1)
    text = _assembly(row, f"gemm_{dtype}_{tile[0]}x{tile[1]}_{modes}")
    counts = [(sum(bool(re.search(FMA[row.name], line)) for line in loop), loop) for loop in _loops(text)]
    whole = [loop for count, loop in counts if count >= term]
    assert len(whole) >= 2
    assert not [line for loop in whole for line in loop if re.search(SPILL, line)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_many_products_stay_in_registers(dtype):
    """24 sums, four columns and a row; what is not masked and what is."""
    text = _assembly(isa.get("avx512"), f"batched_{dtype}_6x4")
    loops = [loop for loop in _loops(text) if sum(bool(re.search(FMA["avx512"], line)) for line in loop) == 24]
    assert len(loops) >= 3
    assert not [line for loop in loops for line in loop if re.search(r"%zmm\d+.*\(%rsp|\(%rsp.*%zmm", line)]


@pytest.mark.parametrize(
    "name, tile, terms",
    [("avx2", (2, 6), 4), ("avx2", (3, 4), 4), ("avx512", (4, 6), 2), ("avx512", (3, 8), 2), ("avx512", (2, 8), 4)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_several_terms_a_turn_take_little_but_multiply_adds(name, dtype, tile, terms):
    """Per term: the multiply-adds, a load of each vector of A, a broadcast of each column of B; per turn less than eight for
    the loop."""
    loops = _loops(_assembly(isa.get(name), f"gemm_{dtype}_{tile[0]}x{tile[1]}_pp"))
    count = terms * tile[0] * tile[1]
    turn = [loop for loop in loops if sum(bool(re.search(FMA[name], line)) for line in loop) == count]
    assert len(turn) == 2
    for loop in turn:
        assert len(loop) < terms * (tile[0] * tile[1] + sum(tile)) + 8


@pytest.mark.parametrize(
    "dtype, tile", [("float32", (1, 12)), ("float64", (2, 6)), ("float64", (4, 2)), ("complex64", (1, 6))]
)
def test_turned_tiles_shuffle_as_seldom_as_their_cost_says(dtype, tile):
    """SSE2 repeats no element by loading it; a shuffle takes a unit that multiplies or adds."""
    row = isa.get("sse2")
    assert tiles.turns(row, dtype, tile[1]) and tile in tiles.tiles(row, dtype)
    expected = tiles.shuffles(row, dtype, tile, False)
    assert expected < tiles.shuffles(row, dtype, tile, True)
    count = tile[0] * tile[1] * (2 if dtype in tiles.COMPLEX else 1)
    loops = _loops(_assembly(row, f"gemm_{dtype}_{tile[0]}x{tile[1]}_pp"))
    found = [loop for loop in loops if sum(bool(re.search(FMA["sse2"], line)) for line in loop) == count]
    assert [sum(bool(re.match(r"(p?shuf|unpck|mov[lh])", line)) for line in loop) for loop in found] == [expected] * 2


@pytest.mark.parametrize("dtype, product", [("int64", "vpmullq"), ("int32", "vpmulld"), ("int16", "vpmullw")])
def test_integer_products_and_sums_come_two_by_two(dtype, product):
    """One by one in turn, sums of 512 bits keep units that multiply from products. They come one pair behind these."""
    row = isa.get("avx512")
    for mv, nr in tiles.tiles(row, dtype):
        loops = _loops(_assembly(row, f"gemm_{dtype}_{mv}x{nr}_pp"))
        orders = ["".join(re.findall(rf"({product}|vpadd[wdq])\s.*%zmm", "\n".join(loop))) for loop in loops]
        orders = [re.sub("vpadd[wdq]", "+", order).replace(product, "*") for order in orders]
        found = [order for order in orders if order.count("*") == mv * nr and order.count("+") == mv * nr]
        assert found
        for order in found:
            assert re.fullmatch(r"\*\*(\*\*\+\+)*\+\+|\*\+", order), (mv, nr, order)


@pytest.mark.parametrize("dtype", tiles.DTYPES)
def test_neon_kernels_use_vectors_and_call_no_library(dtype):
    """Addresses come from the step table; a name would have to be found when the object is loaded."""
    row = isa.get("neon")
    tile = tiles.tiles(row, dtype)[-1]
    text = _assembly(row, f"gemm_{dtype}_{tile[0]}x{tile[1]}_dd")
    assert not _foreign_calls(text)
    if dtype.startswith(("float", "complex")):
        assert re.search(FMA["neon"], text)
    if dtype in ("int8", "int16", "int32"):  # there is no vector product of int64
        assert re.search(r"\bml[as]\s+v\d+\.(16b|8h|4s)|\bmul\s+v\d+\.(16b|8h|4s)", text)


@pytest.mark.parametrize("name", ["walk", "worker_loop", "entry", "pack_1", "pack_2", "pack_4", "pack_8", "pack_16"])
def test_everything_around_the_kernels_compiles_for_neon(name):
    text = _assembly(isa.get("neon"), name)
    assert f"{name}:" in text
    assert not _foreign_calls(text)


@pytest.mark.parametrize("row", isa.ISAS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("name", ["pack_float16_float32", "pack_bfloat16_float64", "pack_uint64_float64"])
def test_widening_is_done_by_instructions(row, name):
    assert not _foreign_calls(_assembly(row, name))


@pytest.mark.parametrize("row", isa.ISAS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("name", ["gather_16", "scatteradd_float16", "argsort_8", "random_float64"])
def test_kernels_of_single_steps_call_no_library(row, name):
    assert not _foreign_calls(_assembly(row, name))


@pytest.mark.parametrize("row", isa.ISAS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", fused_structure.ALL)
def test_fused_kernels_call_no_library(row, dtype, monkeypatch):
    """All scalar operations on a dtype in one structure, and its casts; but for what `test_svml.py` is about."""
    monkeypatch.setenv("EINSUM_ENGINE_SVML", "0")
    g = fused_structure.Graph((dtype,) * 2)
    operations = [(name, op) for name, op in fused_structure.SCALARS.items() if dtype in op.dtypes]
    values = [g.op(name, *range(op.arity)) for name, op in operations]
    values += [g.cast(0, target) for target in (*fused_structure.ALL, *fused_structure.STORED)]
    assert len(values) > 16
    for first in range(0, len(values), 20):
        name = fused_structure.name(g.structure(*values[first : first + 20]))
        assert _foreign_calls(_assembly(row, name)) == []


@pytest.mark.parametrize("row", isa.ISAS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("points", ["", " | 1,1,0 {} | 0,1,1 {} | 1,0,1 {}"], ids=["near", "checkered"])
def test_kernels_of_neighbours_call_no_library_and_keep_rows_in_registers(row, points):
    text = "{0} {0}; add 0 1 {0}; -> 2 near 1,0 0,-1".format("float64")
    assembly = _assembly(row, fused_structure.name(fused_structure.parse(text + points.format(*[text] * 3))))
    assert _foreign_calls(assembly) == []
    spilt = [line for line in assembly.splitlines() if "zmm" in line and "rsp" in line]
    assert row.registers < 32 or spilt == []


@pytest.mark.parametrize("row", isa.ISAS.values(), ids=lambda row: row.name)
@pytest.mark.parametrize("near, streams", [("1,0 0,-1", 1), ("0,-1 -", 2)], ids=["one array", "another input"])
def test_kernels_of_neighbours_ask_for_as_many_lines_as_they_read(row, near, streams):
    """Of the array and of other inputs; and what lies beside a vector takes one instruction where vectors are wide."""
    text = f"float32 float32; add 0 1 float32; -> 2 near {near}"
    rows = 4  # as many as maps of a single sum compute at once
    found = []
    for loop in _loops(_assembly(row, fused_structure.name(fused_structure.parse(text)))):
        lines = sum(bool(re.match(r"prefetch|prfm", code)) for code in loop)
        shifts = sum(code.startswith("valignd") for code in loop)
        found.append((lines, shifts, sum("vpermt2ps" in code for code in loop)))
    lines = streams * rows * row.vector_bits // 8 // 64
    assert (lines, rows if row.name == "avx512" else 0, 0) in found
