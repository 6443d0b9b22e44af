"""Compiled objects are stored and come back: pickles, copies, other processes, JSON."""

import copy
import functools
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import einsum_engine as engine
from einsum_engine import serialize

RNG = np.random.default_rng(0)
A, B, C = RNG.random((3, 4)), RNG.random((4, 5)), RNG.random((5, 3))


def cases():
    """Name, compiled object, arrays that it is called with."""
    z = A + 1j * A
    yield "plain", engine.compile("ij,jk->ik", A, B), (A, B)
    yield "three", engine.compile("ij,jk,kl->il", A, B, C, optimize=[(1, 2), (0, 1)]), (A, B, C)
    yield "shapes", engine.compile("ij,jk->ik", (3, 4), (4, 5), dtypes="float32"), (A.astype("f4"), B.astype("f4"))
    yield "constant", engine.compile("ij,jk,kl->il", A, B, C, constants=[1]), (A, C)
    yield "constants", engine.compile("ij,jk->ik", A, B, constants={0: A, 1: B}), ()
    yield "options", engine.compile("ij,jk->ik", z, B, conj=0, alpha=2 - 1j, order="F", threads=1), (z, B)
    yield "strides", engine.compile("ij,jk->ik", A[::-1], np.asfortranarray(B)), (A, B)
    yield "swapped", engine.compile("ij,jk->ik", A.astype(">f8"), B, dtype=">f8"), (A.astype(">f8"), B)
    yield "integers", engine.compile(A, [100, 7], B, [7, -3], [-3, 100]), (A, B)
    yield "unicode", engine.compile("äβ,β…->ä…".replace("…", "..."), A, B), (A, B)
    yield "diagonal", engine.compile("i->ii", A[0]), (A[0],)
    yield "trace", engine.compile("ii->", A[:, :3]), (A[:, :3],)
    yield "empty", engine.compile("ij,jk->ik", (0, 2), (2, 3)), (np.ones((0, 2)), np.ones((2, 3)))
    yield "long", engine.compile("ij,jk->ik", A.astype("g"), B), (A.astype("g"), B)
    yield "limited", engine.compile("ij,jk->ik", A, B, memory_limit="1GiB", accumulate="float64"), (A, B)
    yield "half", engine.compile("ij,jk->ik", A, B, dtype="float32", casting="unsafe", accumulate="float64"), (A, B)


CASES = list(cases())


def same(first, second):
    return np.array_equal(first, second) and np.asarray(first).dtype == np.asarray(second).dtype


def through_json(f, tmp_path):
    path = tmp_path / "plan.json"
    f.save(path)
    assert path.read_text() == f.to_json() and os.listdir(tmp_path) == ["plan.json"]
    return engine.load(str(path))


@pytest.mark.parametrize("name, f, arrays", CASES, ids=[name for name, _, _ in CASES])
def test_round_trips(name, f, arrays, tmp_path):
    expected = f(*arrays)
    for other in (
        *(pickle.loads(pickle.dumps(f, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
        copy.copy(f),
        copy.deepcopy(f),
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(f)))),
        through_json(f, tmp_path),
    ):
        assert type(other) is engine.Compiled and repr(other) == repr(f)
        for _ in range(3):
            assert same(other(*arrays), expected)
        assert other.plan == f.plan and other.explain() == f.explain()


def test_a_constant_is_kept_apart_from_the_callers_array():
    b = B.copy()
    f = engine.compile("ij,jk->ik", A, b, constants=[1])
    g = pickle.loads(pickle.dumps(f))
    b[...] = 0
    assert np.allclose(g(A), A @ B) and np.allclose(f(A), A @ B)


def test_the_path_is_kept_not_searched_again(tmp_path):
    calls = []

    class Search:
        def __call__(self, inputs, output, sizes, memory_limit=None):
            calls.append(1)
            return [(1, 2), (0, 1)]

        def __reduce__(self):
            raise TypeError("not to be pickled")

    f = engine.compile("ij,jk,kl->il", A, B, C, optimize=Search())
    count = len(calls)
    for g in (pickle.loads(pickle.dumps(f)), through_json(f, tmp_path), copy.deepcopy(f)):
        assert g.plan.path == f.plan.path == ((1, 2), (0, 1))
        assert np.allclose(g(A, B, C), A @ B @ C)
    assert len(calls) == count


OTHER_PROCESSES = """
import multiprocessing, os, pickle, sys
from concurrent.futures import ProcessPoolExecutor

def contract(f, arrays):
    return os.getpid(), f(*arrays)

if __name__ == "__main__":
    with open(sys.argv[2], "rb") as file:
        cases = pickle.load(file)
    # Plans and the thread pool exist before the fork.
    here = [f(*arrays) for f, arrays in cases]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(sys.argv[1])) as pool:
        there = list(pool.map(contract, *zip(*cases)))
    assert os.getpid() not in [process for process, _ in there]
    assert all((result == expected).all() for (_, result), expected in zip(there, here))
    print("equal", len(there))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(method, tmp_path):
    # In an interpreter of its own: other libraries that tests have loaded may not survive a fork.
    big = RNG.random((300, 300))
    chosen = [(f, arrays) for name, f, arrays in CASES if name in ("plain", "constant", "options", "diagonal")]
    chosen.append((engine.compile("ij,jk->ik", big, big, threads=2), (big, big)))
    (tmp_path / "cases.pickle").write_bytes(pickle.dumps(chosen))
    (tmp_path / "script.py").write_text(OTHER_PROCESSES)
    command = [sys.executable, str(tmp_path / "script.py"), method, str(tmp_path / "cases.pickle")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, f"equal {len(chosen)}\n"), result.stderr


# ---- JSON --------------------------------------------------------------------------------------------------------


def document(f=CASES[0][1]):
    return json.loads(f.to_json())


def test_json_shows_the_plan():
    saved = document(CASES[1][1])
    plan = CASES[1][1].plan
    assert saved["expr"]["text"] == "ij,jk,kl->il" and saved["plan"]["flops"] == plan.flops
    assert saved["plan"]["peak_bytes"] == plan.peak_bytes and saved["isa"] == plan.isa
    assert [step["kernel"] for step in saved["plan"]["steps"]] == [step.kernel for step in plan.steps]
    assert saved["order"]["path"] == [[1, 2], [0, 1]]


def signed(saved):
    """As an engine would have saved it."""
    return saved | {"digest": serialize.digest(saved)}


def write(tmp_path, saved):
    path = tmp_path / "changed.json"
    path.write_text(saved if isinstance(saved, str) else json.dumps(saved))
    return path


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hash": "0" * 32}, "hash '0000"),
        ({"format": "other"}, "no format 'einsum_engine plan'"),
        ({"version": 99}, "version 99"),
        ({"order": {"path": [[0, 1]]}}, "damaged"),
        ({"operands": 3}, "damaged"),
        ({"expr": {"text": "i->z", "inputs": [["i"]], "output": ["z"], "shapes": [[3]]}}, "output index 'z'"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_changed_files_are_refused(change, message, tmp_path):
    with pytest.raises(engine.EngineValueError, match=message):
        engine.load(write(tmp_path, signed(document() | change)))


def _places(value, path=()):
    """Every key and position within a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*path, key)
        yield from _places(each, (*path, key))


def _put(saved, path, *value):
    """A copy of a document with another value at a place, or without it."""
    changed = json.loads(json.dumps(saved))
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value:
        inner[path[-1]] = value[0]
    else:
        del inner[path[-1]]
    return changed


@pytest.mark.parametrize("value", [(), (None,), (3,), ("x",), ([],), ({},)], ids=str)
def test_any_change_by_hand_is_refused(value, tmp_path):
    """Also of what makes no other plan: constants, factors, strides."""
    saved = document(engine.compile("ij,jk,kl->il", A, B, B.T, constants=[1], alpha=2.5))
    for path in _places(saved):
        changed = _put(saved, path, *value)
        if changed != saved:
            with pytest.raises(engine.EngineValueError, match="saved plan"):
                engine.load(write(tmp_path, changed))


def test_the_layout_of_the_text_is_free(tmp_path):
    saved = document()
    text = json.dumps(dict(reversed(saved.items())), separators=(",", ":"))
    assert np.array_equal(engine.load(write(tmp_path, text))(A, B), CASES[0][1](A, B))


def test_a_changed_size_is_noticed(tmp_path):
    saved = document()
    saved["expr"]["shapes"] = [[3, 4], [4, 6]]
    saved["operands"][1]["strides"] = [48, 8]
    with pytest.raises(engine.EngineValueError, match="the file was changed"):
        engine.load(write(tmp_path, signed(saved)))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\x00", "[" * 10**5], ids=lambda text: text[:9])
def test_other_files_are_refused(text, tmp_path):
    with pytest.raises(engine.EngineValueError, match="not a saved plan"):
        engine.load(write(tmp_path, text))


@pytest.mark.parametrize("start", [b"\xff\xfe\x00", b"\x89PNG\r\n", b"PK\x03\x04", b"\x1f\x8b\x08"])
def test_files_that_are_no_text_are_refused(start, tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(start + bytes(range(256)))
    with pytest.raises(engine.EngineValueError, match="not a saved plan"):
        engine.load(path)


def test_another_engine_may_plan_otherwise(tmp_path):
    f = engine.load(write(tmp_path, signed(document() | {"engine": "0.0.1", "hash": "?"})))
    assert np.allclose(f(A, B), A @ B)


def test_what_json_cannot_hold(tmp_path):
    f = engine.compile("i,i->", np.array([1, 2], object), np.array([3, 4], object), constants=[1])
    with pytest.raises(engine.EngineTypeError, match="holds Python objects"):
        f.save(tmp_path / "plan.json")
    assert os.listdir(tmp_path) == []
    assert pickle.loads(pickle.dumps(f))(np.array([1, 2], object)) == 11


def test_hash_tells_plans_apart():
    plain = engine.compile("ij,jk->ik", A, B).plan
    assert serialize.plan_hash(plain) == serialize.plan_hash(engine.compile("ij,jk->ik", A, B).plan)
    others = [
        engine.compile("ij,jk->ki", A, B).plan,
        engine.compile("ij,jk->ik", A.astype("f4"), B.astype("f4")).plan,
        engine.compile("ij,jk->ik", A, RNG.random((4, 6))).plan,
    ]
    assert len({serialize.plan_hash(plan) for plan in (plain, *others)}) == 4


# --- functions of NumPy ------------------------------------------------------------------------------------------
@engine.jit(cache=3)
def decorated(x):
    return np.tanh(x) + 1


def plain(x):
    return np.tanh(x) + 1


class Model:
    @engine.jit
    def method(self, x):
        return x * 2


def test_a_decorated_function_pickles_by_name():
    decorated(A)  # what was traced has native code
    for other in (decorated, Model.method):
        assert pickle.loads(pickle.dumps(other)) is other is copy.copy(other) is copy.deepcopy(other)


def test_a_bound_method_pickles_with_its_object():
    assert np.array_equal(pickle.loads(pickle.dumps(Model().method))(A), A * 2)


SCRIPT = """
import io, marshal, pickle, sys, types
import numpy as np
import einsum_engine as engine

def made(code, name, qualname, defaults, keywords):
    function = types.FunctionType(marshal.loads(code), globals(), name, defaults)
    function.__qualname__, function.__kwdefaults__ = qualname, keywords
    return function

class ByValue(pickle.Pickler):
    def reducer_override(self, f):
        if type(f) is not types.FunctionType or f is made or f.__module__ != "__main__":
            return NotImplemented
        return made, (marshal.dumps(f.__code__), f.__name__, f.__qualname__, f.__defaults__, f.__kwdefaults__)

if len(sys.argv) == 3:
    @engine.jit(cache=3)
    def add(x, y=2.0, *, scale=1.0):
        return (x + y) * scale

    class Model:
        @engine.jit
        def call(self, x):
            return add(x)

    for f in (add, Model.call):
        assert all(pickle.loads(pickle.dumps(f, protocol)) is f for protocol in range(6))
    with open(sys.argv[1], "wb") as file:
        ByValue(file).dump(add)
else:
    found = pickle.load(open(sys.argv[1], "rb"))
    assert np.array_equal(found(np.ones(3), scale=2.0), np.full(3, 6.0)), found
    assert (found.__qualname__, found.function.__qualname__, found._size) == ("add", "add", 3)
"""


def test_functions_of_main_are_sent_by_value(tmp_path):
    """As cloudpickle does, to processes that run another script."""
    (tmp_path / "script.py").write_text(SCRIPT)
    for more in (["write"], []):
        subprocess.run([sys.executable, tmp_path / "script.py", tmp_path / "add.pickle", *more], check=True)


@pytest.mark.parametrize("called", [False, True])
def test_a_jitted_function_pickles_with_its_options(called):
    jitted = engine.jit(plain, cache=3, passes=("views",), threads=1, profile=True)
    if called:
        jitted(A)
    for other in (pickle.loads(pickle.dumps(jitted)), copy.deepcopy(jitted)):
        assert np.array_equal(other(A), jitted(A)) and other is not jitted
        assert (other.passes, other.options, other._size) == (jitted.passes, jitted.options, 3)


def test_what_has_no_name_does_not_pickle():
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(engine.jit(lambda x: x + 1))


def test_functions_without_a_name_are_jitted():
    jitted = engine.jit(functools.partial(np.add, 1), cache=1)
    with pytest.warns(UserWarning, match="functools.partial.* was traced for more than 1 combinations"):
        assert [jitted(np.ones(n)).sum() for n in (1, 2)] == [2, 4]
    again = pickle.loads(pickle.dumps(jitted))
    assert np.array_equal(again(A), A + 1)
