"""What tests of the benchmark share: an engine that is NumPy, short settings, made-up cases and results."""

from types import SimpleNamespace

import numpy as np

from einsum_engine.bench import cases, check, peers, run, timing
from einsum_engine.profile import Profile, StepTime

SOME_PATHS = {2: ((0, 1),), 3: ((0, 1), (0, 1))}


def case(expr, shapes, dtype="float32", name="case", family="family", **options):
    return cases.Case(family=family, name=name, expr=expr, shapes=tuple(map(tuple, shapes)), dtype=dtype, **options)


class Engine:
    """Stands in for the public API: contracts with NumPy, optionally wrongly."""

    def __init__(self, spoil=lambda result: result):
        self.spoil = spoil
        self.compiled = []

    def compile(self, expr, *shapes, dtypes, threads, optimize=None, profile=False):
        self.compiled.append((expr, shapes, tuple(dtypes), threads, optimize))
        path = SOME_PATHS.get(len(shapes), ((0,),)) if optimize is None else optimize
        step = SimpleNamespace(kernel="gemm", family="gemm")
        plan = SimpleNamespace(path=tuple(path), flops=1, bytes_moved=2, peak_bytes=3, steps=(step,))
        return _Compiled(expr, plan, self.spoil, profile)


class _Compiled:
    """With ``profile`` every call is said to have taken so many seconds as there were calls, half of it packing."""

    def __init__(self, expr, plan, spoil, profile):
        self.expr, self.plan, self.spoil = expr, plan, spoil
        self.profiles = ((plan, Profile(calls=0, steps=(StepTime(),))),) if profile else ()

    def __call__(self, *arrays, out=None):
        for _, profile in self.profiles:
            half = (profile.calls + 1) / 2
            self.profiles = ((self.plan, profile.with_call([StepTime(kernel=half, packing=half)])),)
        result = self.spoil(np.array(np.einsum(self.expr, *arrays), order="C"))
        if out is None:
            return result
        out[...] = result
        return out


def settings(**options):
    budget = timing.TimeBudget(seconds=0.01, least_rounds=1, most_rounds=2)
    return run.Settings(threads=1, budget=budget, settle=lambda: None, **options)


def numpy_peer():
    return next(peer for peer in peers.PEERS if peer.name == "numpy")


def result_of(family, ratio, share=None, passed=True, out=None, name="n"):
    each = run.CaseResult(case=case("i->i", [(2,)], family=family, name=name), seconds=1.0, again=1.1)
    each.peers = {"numpy": run.PeerResult(seconds=ratio, out_seconds=out)}
    each.best, each.share, each.out_seconds = "numpy", share, 1.0
    each.verdict = check.Verdict(passed=passed, reason="" if passed else "because")
    return each
