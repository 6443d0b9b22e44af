"""Random functions of views, in-place updates, maps, reductions and einsums, as data; NumPy run eagerly is the oracle.

A case is a list of statements over numbered arrays, printed as JSON; `replay` is the command that runs it alone:

    python tests/random_programs.py '{"inputs": [...], "lines": [...]}'

and `--many 20000` checks as many as that, `--many 20000 50000` those from seed 50000 on.
"""

from __future__ import annotations

import json
import random
import shlex
import sys
import warnings
from dataclasses import replace
from typing import Any, Callable

import numpy as np

import einsum_engine as engine
from einsum_engine.lru import BoundedCache
from einsum_engine.program_route import NoPlan
from einsum_engine.traced import inputs_of, run, strides_of
from einsum_engine.trees import flatten


DTYPES = ("float64", "float32", "int64", "int32", "uint8", "bool", "complex128")


def real_only(x: Any) -> Any:
    """x, unless it is complex."""
    if x.dtype.kind == "c":
        raise TypeError("complex numbers are not sorted here")
    return x


def whole_only(x: Any) -> Any:
    """x, if rounding cannot change which of its elements are equal."""
    if x.dtype.kind not in "biu":
        raise TypeError("only integers are looked at so closely")
    return x


UNARY = {
    "neg": lambda x: np.negative(x) if x.dtype != bool else ~x,
    "abs": np.abs,
    "sign": lambda x: np.sign(x) if x.dtype.kind not in "bc" else x * 1,
    "square": lambda x: x * x,
    "half": lambda x: x * 0.5,
    "tanh": np.tanh,
    "exp": lambda x: np.exp(x * 0.125),
    "float": lambda x: x.astype(np.float64 if x.dtype.kind != "c" else x.dtype),
    "int": lambda x: x.astype(np.int32) if x.dtype.kind in "biu" else x.round(),
    "conj": np.conj,
    "not": np.logical_not,
    "copy": lambda x: x.copy(),
    "kcopy": np.copy,
    "weak": lambda x: 1 + x if x.dtype == bool else x + 3,
    "real": lambda x: np.real(x) + 0,
    "sort": lambda x: np.sort(real_only(x)),
    "argsort": lambda x: np.argsort(whole_only(x), axis=0, kind="stable"),
}
BINARY = {
    "add": np.add,
    "sub": lambda x, y: np.subtract(x, y) if np.result_type(x, y) != bool else x ^ y,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "eq": np.equal,
    "lt": lambda x, y: np.less(x, y) if "c" not in (x.dtype.kind, y.dtype.kind) else x != y,
    "where": lambda x, y: np.where(x != 0, y, x),
    "div": lambda x, y: x / (np.abs(y) + 1),
}
REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "any": np.any, "all": np.all, "mean": np.mean}
REDUCE |= {name: lambda x, f=getattr(np, name), **more: f(whole_only(x), **more) for name in ("argmax", "argmin")}
IN_PLACE = {"set": None, "add": np.add, "mul": np.multiply, "max": np.maximum}

Choose = Callable[[Any], Any]


# -- drawing: the choices are made while NumPy runs, so that shapes are known ------------------------------------------
def draw_case(choose: Choose) -> dict[str, Any]:
    """A case whose lines run: ``choose`` picks an element of a sequence."""
    inputs = [draw_input(choose) for _ in range(choose((1, 2)))]
    if choose((False, False, False, True)):
        inputs.append({"of": 0, "key": draw_key(choose, make_inputs(inputs)[0])})
    values = make_inputs(inputs)
    lines: list[list[Any]] = []
    for _ in range(choose(range(2, 10))):
        line = draw_line(choose, values)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                run_line(line, values)
            except (ValueError, TypeError, IndexError):
                continue  # NumPy refuses it; errors have tests of their own
        lines.append(line)
    returned = list(dict.fromkeys(choose(range(len(values))) for _ in range(choose((1, 2, 3)))))
    return {"inputs": inputs, "lines": lines, "returned": returned}


def draw_input(choose: Choose) -> dict[str, Any]:
    rank = choose((1, 2, 2, 3))
    shape = [choose((1, 2, 3, 4, 3, 0) if rank > 1 else (1, 4, 6, 5)) for _ in range(rank)]
    axes = list(range(rank))
    if choose((False, False, True)):
        axes.reverse()
    step = choose((1, 1, -1, 2))
    return {"shape": shape, "dtype": choose(DTYPES), "seed": choose(range(100)), "axes": axes, "step": step}


def make_input(given: dict[str, Any]) -> np.ndarray:
    """Small integers as any dtype, its axes in memory in the order ``axes``, the last of them with a step."""
    rng = np.random.default_rng(given["seed"])
    shape = [given["shape"][axis] for axis in given["axes"]]
    stretched = [*shape[:-1], shape[-1] * abs(given["step"])]
    found = rng.integers(0 if given["dtype"] in ("bool", "uint8") else -4, 5, stretched).astype(given["dtype"])
    if given["dtype"].startswith("complex"):
        found = found + 1j * rng.integers(-3, 4, stretched)
    found = found[..., :: given["step"]]
    return found.transpose(np.argsort(given["axes"]))


def make_inputs(given: list[dict[str, Any]]) -> list[Any]:
    """The arguments of a call; some are views of others."""
    found: list[Any] = []
    for item in given:
        found.append(found[item["of"]][to_key(item["key"])] if "of" in item else make_input(item))
    return found


def draw_line(choose: Choose, values: list[Any]) -> list[Any]:
    kind = choose(
        (*("view", "write") * 4, "back", *"unary binary reduce einsum take put index join cond loop".split())
    )
    at, other = choose(range(len(values))), choose(range(len(values)))
    if kind == "view":
        return [kind, at, draw_view(choose, values[at])]
    if kind == "write":
        value = choose((["array", other], ["array", other], ["number", choose((2, 1.5, True))]))
        return [kind, at, draw_key(choose, values[at]), choose(tuple(IN_PLACE)), value]
    if kind == "back":  # a value of the same shape replaces all of one of the first arrays
        at = choose(range(min(3, len(values))))
        alike = [n for n, value in enumerate(values) if n != at and np.shape(value) == np.shape(values[at])]
        return ["write", at, ["dots"], "set", ["array", choose(alike or [at])]]
    if kind in ("take", "put"):
        axis = choose(range(np.ndim(values[at]) or 1))
        size = np.shape(values[at])[axis] if np.ndim(values[at]) else 0
        places = [choose(range(-size, size)) for _ in range(choose((1, 2, 3)))] if size else []
        return [kind, at, axis, places, choose((False, True))]
    if kind == "index":
        # NumPy's add.at writes through broadcast views that cannot be written; here they are refused.
        writeable = getattr(values[at], "flags", None) is None or values[at].flags.writeable
        return [kind, at, other, choose(("get", "set", "add") if writeable else ("get", "set"))]
    if kind in ("join", "cond", "loop"):
        return [kind if can_write(values[at], values[other]) else "join", at, other]
    if kind == "unary":
        return [kind, at, choose(tuple(UNARY))]
    if kind == "binary":
        return [kind, at, other, choose(tuple(BINARY))]
    if kind == "reduce":
        axes = [None, *range(np.ndim(values[at]))]
        return [kind, at, choose(tuple(REDUCE)), choose(axes), choose((False, True))]
    return [kind, at, other, choose(("ab,cb->ac", "a,a->", "ab,ab->b", "aa->a", "abc,cd->dab", "ab,b->a"))]


def draw_key(choose: Choose, array: Any) -> list[Any]:
    """An index as JSON: integers, ["slice", start, stop, step], "new", "dots"."""
    key: list[Any] = []
    for size in np.shape(array):
        kind = choose(("all", "slice", "slice", "int", "stop"))
        if kind == "stop":
            break
        if kind == "int" and size:
            key.append(choose(range(-size, size)))
        elif kind in ("all", "int"):
            key.append(["slice", None, None, None])
        else:
            ends = (None, *range(-size - 1, size + 2))
            key.append(["slice", choose(ends), choose(ends), choose((None, 1, 2, -1, -2))])
    if choose((False, False, False, True)):
        key.insert(choose(range(len(key) + 1)), "new")
    if choose((False, False, True)):
        key.append("dots")
    return key


def draw_view(choose: Choose, array: Any) -> list[Any]:
    kind = choose(
        ("index", "index", "transpose", "reshape", "squeeze", "expand", "diagonal", "broadcast", "ravel", "flip")
    )
    if kind == "index":
        return [kind, draw_key(choose, array)]
    if kind == "transpose":
        order = list(range(np.ndim(array)))
        return [kind, order[::-1] if choose((True, False)) else order[1:] + order[:1]]
    if kind == "reshape":
        size = np.size(array)
        shapes = [[-1], [size, 1], *([n, size // n] for n in (2, 3, 4) if size and size % n == 0)]
        return [kind, choose(shapes) if size else [0]]
    if kind == "expand":
        return [kind, choose(range(np.ndim(array) + 1))]
    if kind == "diagonal":
        return [kind, choose((-1, 0, 1))]
    if kind == "broadcast":
        return [kind, [2, *np.shape(array)]]
    return [kind]


# -- running -----------------------------------------------------------------------------------------------------------
def to_key(key: list[Any]) -> tuple[Any, ...]:
    words = {"new": None, "dots": Ellipsis}
    return tuple(slice(*item[1:]) if isinstance(item, list) else words.get(item, item) for item in key)


def run_view(array: Any, view: list[Any]) -> Any:
    kind, rest = view[0], view[1:]
    if kind == "index":
        return array[to_key(rest[0])]
    if kind == "broadcast":
        return np.broadcast_to(array, tuple(rest[0]))
    functions = {
        "transpose": np.transpose,
        "reshape": np.reshape,
        "squeeze": np.squeeze,
        "expand": np.expand_dims,
        "diagonal": np.diagonal,
        "ravel": np.ravel,
        "flip": np.flip,
    }
    return functions[kind](array, *rest)


def run_line(line: list[Any], values: list[Any]) -> None:
    """One statement; what it makes is appended."""
    kind, at, *rest = line
    array = values[at]
    if kind == "view":
        values.append(run_view(array, rest[0]))
    elif kind == "unary":
        values.append(UNARY[rest[0]](array))
    elif kind == "binary":
        values.append(BINARY[rest[1]](array, values[rest[0]]))
    elif kind == "reduce":
        values.append(REDUCE[rest[0]](array, axis=rest[1], keepdims=rest[2]))
    elif kind == "einsum":
        operands = (array, values[rest[0]])[: rest[1].count(",") + 1]
        if rest[1] == "aa->a" and len(set(np.shape(array))) != 1:
            raise ValueError("NumPy takes some of these: index a has two sizes")
        values.append(np.einsum(rest[1], *operands) + 0)
    elif kind in ("take", "put"):
        key = (slice(None),) * rest[0] + (np.array(rest[1], dtype=int),)
        if kind == "take":
            values.append(array[key])
        elif rest[2]:
            array[key] += 1
        else:
            array[key] = array[key][::-1] * 1
    elif kind == "index":
        run_index(array, values[rest[0]], rest[1], values)
    elif kind == "join":
        values.append(np.concatenate([array.reshape(-1), values[rest[0]].reshape(-1)]))
    elif kind in ("cond", "loop"):
        run_region(kind, array, values[rest[0]])
    else:
        run_write(array, to_key(rest[0]), rest[1], values[rest[2][1]] if rest[2][0] == "array" else rest[2][1])


def run_index(array: Any, places: Any, how: str, values: list[Any]) -> None:
    """Reads or writes the entries of the first axis that another array names, in range or refused."""
    index = np.asarray(places) if isinstance(places, np.generic) else places
    index = index if np.ndim(index) else index.reshape(-1)  # a number chooses a view, which is returned as a copy
    index = whole_only(index).astype(np.int64) % max(np.shape(array)[0], 1) - np.shape(array)[0] // 2
    if how == "get":
        values.append(array[index])
    elif how == "set":
        array[index] = np.shape(array)[-1]
    else:
        np.add.at(array, index, array.dtype.type(1))


def can_write(array: Any, other: Any) -> bool:
    """Whether a branch may write ``array`` by ``other``: it is traced even where NumPy does not run it."""
    shape = np.shape(array)[max(np.ndim(array) - np.ndim(other), 0) :]
    fits = np.ndim(other) <= np.ndim(array) and all(n in (1, m) for n, m in zip(np.shape(other), shape))
    return isinstance(array, np.ndarray) and array.ndim > 0 and array.flags.writeable and array.dtype != bool and fits


def run_region(kind: str, array: Any, other: Any) -> None:
    """A branch, or a loop of two turns, that writes ``array`` by ``other``."""

    def write(turn: Any) -> Any:
        array[...] = other
        array[..., :1] *= 2
        return turn + 1

    if kind == "cond":
        engine.cond(np.any(other), lambda: write(np.int64(0)), lambda: np.int64(0))
    else:
        engine.while_loop(lambda turn: turn < 2, write, np.int64(0))


def run_write(array: Any, key: tuple[Any, ...], how: str, value: Any) -> None:
    if how == "set":
        array[key] = value
    elif how == "add":
        array[key] += value
    elif how == "mul":
        array[key] *= value
    else:
        target = array[(*key, ...) if ... not in key else key]
        np.maximum(target, value, out=target)


def body_of(case: dict[str, Any]) -> Callable[..., Any]:
    def body(*inputs: Any) -> list[Any]:
        values = list(inputs)
        for line in case["lines"]:
            run_line(line, values)
        return [values[at] for at in case["returned"]]

    return body


def describe(array: Any) -> str:
    return f"{type(array).__name__} {np.shape(array)} {np.asarray(array).dtype} {np.asarray(array).tolist()}"


def compare(what: str, wanted: Any, found: Any, rounding: float) -> None:
    """Types, shapes and dtypes are equal; values too, or nearly where functions or long sums round: ``rounding`` is then
    the eps of the narrowest dtype that they may have had, else 0."""
    same = type(wanted) is type(found) and np.shape(wanted) == np.shape(found) and wanted.dtype == found.dtype
    if same and np.asarray(wanted).dtype.kind in "fc" and rounding:
        eps = 64 * max(np.finfo(wanted.dtype).eps, rounding)
        same = np.allclose(found, wanted, rtol=eps, atol=eps, equal_nan=True)
    else:
        same = same and np.array_equal(wanted, found, equal_nan=np.asarray(wanted).dtype.kind in "fc")
    assert same, f"{what}: NumPy has {describe(wanted)}, the program {describe(found)}"


def interpreted(jitted: Any, arrays: list[np.ndarray]) -> Any:
    """The result of a call whose program is run by `Program.eval`, as those without a plan are."""
    traced, given = jitted._traced(*flatten((tuple(arrays), {})))
    alone = replace(traced, routes=BoundedCache(1))
    alone.routes.put(strides_of(inputs_of(alone, given)), NoPlan("it is not asked for"))
    return run(alone, given, "interpreted")[0]


def check_case(case: dict[str, Any], passes: tuple[str, ...] | None = None) -> None:
    """Runs a case eagerly, by its plan and interpreted; results, written inputs, and who shares memory are compared."""
    body, jitted = body_of(case), engine.jit(body_of(case), passes=passes)
    eager, given, read = (make_inputs(case["inputs"]) for _ in range(3))
    rounded = {"tanh", "exp", "div", "mean"} | ({"abs"} if any(np.iscomplexobj(one) for one in eager) else set())
    floats = [np.finfo(one.dtype).eps for one in eager if one.dtype.kind in "fc"]
    rounds = any(rounded.intersection(map(str, line)) for line in case["lines"])
    rounding = float(max(floats, default=np.finfo(np.float64).eps)) if rounds else 0.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        wanted = body(*eager)
        program = jitted.program(*given)
        program.check()
        assert program == engine.jit(body_of(case), passes=passes).program(*given), "two traces differ"
        found, meant = jitted(*given), interpreted(jitted, read)
    for at, (one, two, three) in enumerate(zip(wanted, found, meant, strict=True)):
        compare(f"result {at}", one, two, rounding)
        compare(f"result {at}, interpreted", one, three, rounding)
    for at, (one, two, three) in enumerate(zip(eager, given, read)):
        compare(f"input {at} after the call", one, two, rounding)
        compare(f"input {at}, interpreted", one, three, rounding)
        for k, (left, right) in enumerate(zip(wanted, found)):
            if isinstance(left, np.ndarray) and left.size and left.flags.writeable == right.flags.writeable:
                shared = np.shares_memory(one, left), np.shares_memory(two, right)
                assert shared[0] == shared[1], f"result {k} and input {at} share memory: NumPy {shared[0]}"


def replay(case: dict[str, Any]) -> str:
    """The command that runs a case alone."""
    return f"python tests/random_programs.py {shlex.quote(json.dumps(case))}"


def check_many(seeds: range, passes: tuple[str, ...] | None = None) -> int:
    """Number of statements of the cases of these seeds; the first failure is raised."""
    statements = 0
    for seed in seeds:
        rng = random.Random(seed)
        case = draw_case(lambda options: rng.choice(list(options)))
        statements += len(case["lines"])
        try:
            check_case(case, passes)
        except Exception as error:
            error.add_note(f"replay with: {replay(case)}")
            raise
    return statements


def main(arguments: list[str]) -> None:
    """``--many N [FIRST]`` checks the cases of N seeds; a case as JSON is explained and checked."""
    if arguments[0] == "--many":
        count, first = int(arguments[1]), int(arguments[2]) if arguments[2:] else 0
        statements = check_many(range(first, first + count))
        print(f"{count} programs of {statements} statements are equal")
        return
    case = json.loads(arguments[0])
    print(engine.jit(body_of(case)).explain(*make_inputs(case["inputs"])))
    print(check_case(case) or "equal")


if __name__ == "__main__":
    main(sys.argv[1:])
