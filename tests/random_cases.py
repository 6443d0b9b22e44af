"""Random contractions as data: drawn, made into arrays, computed by an independent oracle, replayed from a shell.

A `Case` holds all that a call depends on and prints as JSON; `replay` is the command that runs it alone:

    python tests/random_cases.py '{"inputs": ["ab", "bc"], ...}'
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
import oracle
from dense import check, expect, kind_of, numpy_dtype

import einsum_engine as engine

SIZES = (0, 1, 2, 3, 5, 7, 8, 16, 17)
INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
KERNEL_DTYPES = ("float32", "float64", "complex64", "complex128", "float16", "bfloat16", "bool", *INTEGERS)
DTYPES = (*KERNEL_DTYPES, "longdouble", "clongdouble")
PROMOTED = ("bfloat16", "float32", "float64", "complex64", "complex128")  # with bfloat16
# What a case with options may ask for, by kind of the result: dtypes that hold all its values.
WIDER = {
    "b": ("int8", "int64"),
    "i": ("int64",),
    "u": ("uint64",),
    "f": ("float64",),
    "c": ("complex128",),
}
FACTORS = {"i": ("2", "-1"), "u": ("2", "3"), "f": ("0.5", "-2"), "c": ("0.5", "1.5-1j")}

# Picks one element of a sequence: `random.Random(...).choice`, or a draw of hypothesis.
Choose = Callable[[Sequence[Any]], Any]


# -- cases ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Operand:
    """One array. ``order``: axes, the slowest in memory first (default: C); ``steps``: of each axis, in items (0
    broadcasts, negative runs backwards); ``gap``: bytes between items, as between fields of a structured array;
    ``shift``: bytes from an aligned address; ``swapped``: in the other byte order; ``small``: integers near 0 instead
    of their full range."""

    shape: tuple[int, ...]
    dtype: str
    seed: int
    order: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    gap: int = 0
    shift: int = 0
    swapped: bool = False
    readonly: bool = False
    small: bool = False

    @property
    def kind(self) -> np.dtype:
        """Its NumPy dtype, in its byte order."""
        native = numpy_dtype(self.dtype)
        return native.newbyteorder() if self.swapped else native

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        rank = len(self.shape)
        strides, unit = [0] * rank, self.kind.itemsize + self.gap
        for axis in reversed(self.order or range(rank)):
            step = self.steps[axis] if self.steps else 1
            strides[axis] = unit * step
            unit = unit * max(abs(step), 1) * (max(self.shape[axis], 1) if step else 1)
        return tuple(strides)

    def make(self, guard: str = "") -> np.ndarray:
        """Random elements in memory of its own; ``guard``: flush (``start``, ``end``) against a page that must not be
        touched."""
        reach = [(size - 1) * stride for size, stride in zip(self.shape, self.strides)]
        empty = 0 in self.shape
        low = 0 if empty else sum(min(r, 0) for r in reach)
        high = 0 if empty else sum(max(r, 0) for r in reach) + self.kind.itemsize
        memory = np.zeros(high - low + self.shift + 64, np.uint8)
        start = -memory.ctypes.data % 64 + self.shift
        array = np.ndarray(self.shape, self.kind, memory, 0 if empty else start - low, self.strides)
        if not empty:
            rng = np.random.default_rng(self.seed)
            values = oracle.random(rng, self.shape, numpy_dtype(self.dtype))
            array[...] = values % 5 if self.small and values.dtype.kind in "iu" else values
        array = oracle.place(array, guard) if guard else array
        array.flags.writeable = not self.readonly
        return array

    def outline(self) -> np.ndarray:
        """An array of this shape, dtype and strides that must not be read: most of it is no memory."""
        memory = np.zeros(64 + self.shift, np.uint8)
        first = np.ndarray((), self.kind, memory, -memory.ctypes.data % 16 + self.shift)
        return np.lib.stride_tricks.as_strided(first, self.shape, self.strides)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call. ``inputs`` and ``output``: terms of single letters; ``options``: keywords of the call, ``alpha`` and
    ``beta`` as text; ``out``: the array to write into; ``constants``: positions that `compile` is given once;
    ``spelling``: ``explicit``, ``implicit`` (the output is what NumPy derives) or ``interleaved``; ``guard``: of
    `Operand.make`.
    """

    inputs: tuple[str, ...]
    output: str
    operands: tuple[Operand, ...]
    options: dict[str, Any] = field(default_factory=dict)
    out: Operand | None = None
    compiled: bool = False
    constants: tuple[int, ...] = ()
    spelling: str = "explicit"
    guard: str = ""

    @property
    def expression(self) -> str:
        return ",".join(self.inputs) + "->" + self.output

    @property
    def sizes(self) -> dict[str, int]:
        """Letter to size, after broadcasting."""
        sizes: dict[str, int] = {}
        for term, operand in zip(self.inputs, self.operands):
            for letter, size in zip(term, operand.shape):
                sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
        return sizes

    @property
    def keywords(self) -> dict[str, Any]:
        """The options as the engine takes them."""
        return {k: number(v) if k in ("alpha", "beta") else v for k, v in self.options.items()}

    def to_json(self) -> str:
        fields = {key: value for key, value in asdict(self).items() if value}
        fields["operands"] = [_short(operand) for operand in self.operands]
        if self.out is not None:
            fields["out"] = _short(self.out)
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> Case:
        fields = json.loads(text)
        fields["operands"] = tuple(_operand(each) for each in fields["operands"])
        fields["out"] = _operand(fields["out"]) if fields.get("out") else None
        for name in ("inputs", "constants"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**{"output": ""} | fields)


def _short(operand: Operand) -> dict[str, Any]:
    return {name: value for name, value in asdict(operand).items() if value or name in ("shape", "seed")}


def _operand(fields: dict[str, Any]) -> Operand:
    return Operand(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})


def replay(case: Case) -> str:
    """The command that runs a case alone."""
    return f"python tests/random_cases.py {shlex.quote(case.to_json())}"


def number(text: str) -> complex | float | int:
    for make in (int, float):
        try:
            return make(text)
        except ValueError:
            pass
    return complex(text)


# -- drawing -------------------------------------------------------------------------------------------------------
def draw_case(
    choose: Choose,
    *,
    operands: int = 6,
    sizes: Sequence[int] = SIZES,
    points: int = 1 << 15,
    elements: int = 1 << 13,
    dtypes: Sequence[str] = DTYPES,
) -> Case:
    """A case of up to ``operands`` operands over an index space of at most ``points``; no array has more than
    ``elements``."""
    letters = "abcdefgh"[: choose(range(1, 9))]
    count = choose(range(1, operands + 1))
    inputs = tuple("".join(choose(letters) for _ in range(choose((0, 1, 2, 2, 3, 3, 4)))) for _ in range(count))
    used = sorted(set("".join(inputs)))
    output = _draw_output(choose, used)
    extent = _draw_sizes(choose, sizes, used, inputs, output, points, elements)
    names = _draw_dtypes(choose, dtypes, count)
    # Full-range integers among floats would overflow.
    small = kind_of(np.result_type(*map(numpy_dtype, names))) in "fc"
    arrays = [
        replace(_draw_operand(choose, tuple(_draw_shape(choose, term, extent)), name, seed), small=small)
        for seed, (term, name) in enumerate(zip(inputs, names))
    ]
    return _draw_call(choose, Case(inputs=inputs, output=output, operands=tuple(arrays)))


def _draw_output(choose: Choose, used: list[str]) -> str:
    left = [letter for letter in used if choose((True, False))]
    output = ""
    while left:
        output += left.pop(choose(range(len(left))))
    if output and choose(range(12)) == 0:
        output += choose(output)
    return output


def _draw_sizes(choose, sizes, used, inputs, output, points, elements) -> dict[str, int]:
    extent = {letter: choose(sizes) for letter in used}
    terms = [(used, points), *((term, elements) for term in (*inputs, output))]
    for term, limit in terms:
        while math.prod(max(extent[letter], 1) for letter in term) > limit:
            largest = max(term, key=lambda letter: extent[letter])
            extent[largest] = max(size for size in (*sizes, 1) if size < extent[largest])
    return extent


def _draw_shape(choose: Choose, term: str, extent: dict[str, int]) -> list[int]:
    """A size of 1 broadcasts; not between the axes of one operand."""
    one = {letter for letter in sorted(set(term)) if choose(range(16)) == 0}
    return [1 if letter in one else extent[letter] for letter in term]


def _draw_dtypes(choose: Choose, dtypes: Sequence[str], count: int) -> list[str]:
    first = choose(dtypes)
    if choose(range(3)):
        return [first] * count
    others = [name for name in dtypes if name != "bfloat16"]
    # NumPy has no dtype for bfloat16 and most others, and what it has depends on their order.
    return [first, *(choose(others if first != "bfloat16" else PROMOTED) for _ in range(count - 1))]


def _draw_operand(choose: Choose, shape: tuple[int, ...], dtype: str, seed: int, out: bool = False) -> Operand:
    plain = Operand(shape=shape, dtype=dtype, seed=seed)
    if choose((True, False)):
        return plain
    left, order = list(range(len(shape))), []
    while left:
        order.append(left.pop(choose(range(len(left)))))
    steps = (1, 1, 1, -1, 2, -3) if out else (1, 1, 1, -1, 2, -3, 0)
    return Operand(
        shape=shape,
        dtype=dtype,
        seed=seed,
        order=tuple(order),
        steps=tuple(choose(steps) for _ in shape),
        gap=choose((0, 0, 0, 1, 4, plain.kind.itemsize)),
        shift=choose((0, 0, 1, plain.kind.itemsize)),
        swapped=choose((False, False, True)) and dtype not in ("bfloat16", "bool", "int8", "uint8"),
        readonly=not out and choose((False, True)),
    )


def _draw_call(choose: Choose, case: Case) -> Case:
    """Options, ``out`` and the way of calling."""
    native = [numpy_dtype(operand.dtype) for operand in case.operands]
    result = np.result_type(*native)
    options: dict[str, Any] = {}
    if choose(range(3)) == 0:
        options["conj"] = [position for position in range(len(native)) if choose((True, False))]
    if choose(range(3)) == 0:
        options["order"] = choose("CFAK")
    if choose(range(3)) == 0:
        options["threads"] = choose((1, 2, 3))
    if choose(range(3)) == 0:
        options["optimize"] = choose((True, False, "greedy", "optimal", "dp"))
    wider = _wider(result)
    if wider and choose(range(6)) == 0:
        options |= {"dtype": choose(wider)} | ({"casting": choose(("safe", "same_kind", "unsafe"))})
    elif result.name in ("float64", "int64", "int32", "complex128") and choose(range(6)) == 0:
        narrow = {"float64": "float32", "int64": "int16", "int32": "int8", "complex128": "complex64"}[result.name]
        options |= {"dtype": narrow, "casting": "unsafe" if any(d.kind == "u" for d in native) else "same_kind"}
    if wider and "dtype" not in options and choose(range(6)) == 0:
        options["accumulate"] = choose(wider)
    final = numpy_dtype(options["dtype"]) if "dtype" in options else result
    out = None
    if choose(range(4)) == 0:
        if "dtype" not in options and "accumulate" not in options and wider and choose(range(4)) == 0:
            final = numpy_dtype(choose(wider))
        shape = tuple(case.sizes[letter] for letter in case.output)
        out = _draw_operand(choose, shape, final.name, 99, out=True)
    kind = kind_of(final)
    if kind in FACTORS and "accumulate" not in options and choose(range(4)) == 0:
        options["alpha"] = choose(FACTORS[kind])
        if out is not None:
            options["beta"] = choose(("0", *FACTORS[kind]))
    compiled = choose((False, True))
    constants = tuple(p for p in range(len(native)) if choose(range(4)) == 0) if compiled else ()
    spelling = choose(("explicit", "explicit", "implicit", "interleaved"))
    return replace(
        case,
        options=options,
        out=out,
        compiled=compiled,
        constants=constants,
        spelling=spelling if spelling != "implicit" or case.output == implicit(case.inputs) else "explicit",
        guard=choose(("", "", "start", "end")),
    )


def _wider(result: np.dtype) -> tuple[str, ...]:
    if result.char in "gG":
        return ()
    wide = [numpy_dtype(name) for name in WIDER[kind_of(result)]]
    return tuple(d.name for d in wide if d != result and np.can_cast(result, d) and np.result_type(result, d) == d)


def implicit(inputs: Sequence[str]) -> str:
    """NumPy's output where none is given."""
    text = "".join(inputs)
    return "".join(sorted(letter for letter in set(text) if text.count(letter) == 1))


# -- running -------------------------------------------------------------------------------------------------------
def function(case: Case, arrays: Sequence[np.ndarray]) -> tuple[Callable[..., Any], list[Any]]:
    """A function of ``out=`` alone's keywords and its positional arguments, for calling a case."""
    subscripts, operands = _spelled(case, arrays)
    options = case.keywords
    if not case.compiled:
        return lambda *given, **more: engine.einsum(*given, **options, **more), [*subscripts, *operands]
    f = engine.compile(*subscripts, *operands, constants=case.constants, **options)
    return f, [array for position, array in enumerate(arrays) if position not in case.constants]


def _spelled(case: Case, arrays: Sequence[np.ndarray]) -> tuple[list[Any], list[Any]]:
    if case.spelling != "interleaved":
        return [case.expression if case.spelling == "explicit" else ",".join(case.inputs)], list(arrays)
    numbers = {letter: ord(letter) - ord("a") for letter in "".join(case.inputs)}
    pairs: list[Any] = []
    for term, array in zip(case.inputs, arrays):
        pairs += [array, [numbers[letter] for letter in term]]
    return [], [*pairs, [numbers[letter] for letter in case.output]]


CALLS = 3  # the third takes the shortest way in


def run(case: Case) -> None:
    """Calls a case several times; AssertionError unless every result is right and operands are as they were."""
    try:
        _run(case)
    except BaseException as error:
        error.add_note(f"replay: {replay(case)}")
        raise


def _run(case: Case) -> None:
    arrays = [operand.make(case.guard) for operand in case.operands]
    before = [array.tobytes() for array in arrays]
    start = None if case.out is None else case.out.make(case.guard)
    expected = expect(case, arrays, start)
    f, given = function(case, arrays)
    first = None
    for _ in range(CALLS):
        if case.out is None:
            result = f(*given)
        else:
            out = case.out.make(case.guard)
            result = f(*given, out=out)
            assert result is out
        check(result, expected)
        _check_order(case, result)
        first = np.array(result) if first is None else first
        # not by bytes: extended precision has some that nobody writes
        assert np.array_equal(first, result), "the same call with the same operands has another result"
    assert [array.tobytes() for array in arrays] == before, "an operand was changed"


def _check_order(case: Case, result: Any) -> None:
    if case.out is not None or not isinstance(result, np.ndarray):
        return
    view = len(case.inputs) == 1 and not case.compiled
    order = case.options.get("order", "C")
    if order in "CF" and not view:
        assert result.flags.c_contiguous if order == "C" else result.flags.f_contiguous, f"strides {result.strides}"


if __name__ == "__main__":
    chosen = Case.from_json(sys.argv[1])
    print(f"{chosen.expression}  {chosen.sizes}  {chosen.options}", *chosen.operands, sep="\n")
    run(chosen)
    print("right")
