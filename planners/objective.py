"""What a search for a contraction order minimises: flops, or the time that the engine predicts.

`TimeObjective` is also an objective for the searches of others: ``minimize=`` of cotengra's optimisers and
refinements, and of opt_einsum's ``DynamicProgramming``. opt_einsum's ``BranchBound`` and ``RandomGreedy`` look up
"flops" or "size" and ask nothing else of what they are given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import log2, prod
from typing import Any, Iterable, Sequence

from .. import config, cost, dtypes
from ..errors import EngineTypeError, EngineValueError
from ..kernels import isa as isa_table
from .operations import itemsize
from .steps import Sizes, Term, walk

MINIMIZE = ("flops", "time")
_MOST = 1e300  # of one step: sums of it are finite
_UNIT = 1e9  # costs are in nanoseconds: over 1 for every step, so that logarithms are positive


@dataclass(frozen=True, kw_only=True)
class TimeObjective:
    """Predicted time of binary steps in nanoseconds: the larger of flops over peak and bytes over bandwidth, and a
    constant per step (`cost.seconds`).

    ``dtype``: what is computed in, by NumPy name; ``threads`` and ``isa``: of the machine that will run it;
    ``machine``: its constants, None: those of a typical core.

    >>> time = TimeObjective(dtype="float64", threads=1, isa="avx2")
    >>> round(time.pair(10**6, 10**6, 10**6, 10**9, True)) > round(time.pair(10**6, 10**6, 10**6, 10**6, False))
    True
    """

    dtype: str
    threads: int
    isa: str
    machine: cost.Machine | None = field(default=None, hash=False, repr=False)

    def pair(self, left: int, right: int, out: int, points: int, summed: bool) -> float:
        """Of a product of tensors with so many elements over so many ``points`` of its index space."""
        return self._nanoseconds(cost.contraction_flops(points, self.dtype, summed), left + right + out)

    def alone(self, elements: int, out: int) -> float:
        """Of a sum over indices of one tensor."""
        return self._nanoseconds(elements, elements + out)

    def of(self, terms: Sequence[Term], output: Term, sizes: Sizes, ids: Iterable[tuple[int, ...]]) -> float:
        """Of an order in ids, with the sums of single tensors before its products."""
        total = 0.0
        for step in walk(terms, output, sizes, ids):
            keep, elements = frozenset(step.result), []
            for number, mine in enumerate(step.inputs):
                others = frozenset().union(*(term for n, term in enumerate(step.inputs) if n != number))
                stay = [index for index in mine if index in keep or index in others]
                whole = prod([sizes[index] for index in mine])
                elements.append(prod([sizes[index] for index in stay]))
                if len(stay) < len(mine):
                    total += self.alone(whole, elements[-1])
            if len(elements) == 2:
                space = frozenset().union(*step.inputs) & (keep | (frozenset(step.inputs[0]) & set(step.inputs[1])))
                points = prod([sizes[index] for index in space])
                total += self.pair(*elements, step.elements, points, not keep >= space)
        return total

    def _nanoseconds(self, flops: int, elements: int) -> float:
        moved = elements * itemsize(self.dtype)
        try:
            return min(_UNIT * cost.seconds(flops, moved, self.dtype, self._constants, self.threads), _MOST)
        except OverflowError:  # integers that are no floats
            return _MOST

    # -- for other packages ------------------------------------------------------------------------------------
    def __call__(self, trial: Any, *merge: Any) -> float | None:
        """cotengra's score of a trial, which has a tree: the logarithm (base 2) of the time of all slices.

        With the arguments of a merge in opt_einsum's dynamic programming, of which ``trial`` is the first, what that
        does: enters the merge where it is the best so far.
        """
        if merge:
            return self._merge(trial, *merge)
        tree = trial["tree"]
        seconds = sum(self.cost_local_tree_node(tree, node) for node, _, _ in tree.traverse())
        return log2(max(seconds, 1.0) * max(getattr(tree, "nslices", 1), 1))

    def cost_local_tree_node(self, tree: Any, node: Any) -> float:
        """cotengra: of the step that makes ``node``."""
        left, right = tree.children[node]
        sizes = [tree.get_size(each) for each in (left, right, node)]
        points = tree.get_flops(node)
        return self.pair(*sizes, points, points > sizes[2])

    def score_local(self, **known: Any) -> float:
        """cotengra: of steps of which the multiplications and the sizes of the results are known."""
        flops, sizes = known["flops"], known["size"]
        if not hasattr(flops, "__iter__"):
            flops, sizes = [flops], [sizes]
        steps = [self._nanoseconds(self._flops(points), size) for points, size in zip(flops, sizes)]
        return log2(max(sum(steps), 1.0))

    def score_slice_index(self, costs: Any, ix: Any) -> float:
        """cotengra: of slicing an index, by what that saves."""
        saved, written = costs._flop_reductions[ix], costs._write_reductions[ix]
        return log2(1.0 + saved + self.factor * written)

    def get_dynamic_programming_minimize(self) -> str:
        """cotengra: the nearest objective that its own exact search knows, the larger of multiplications and writes."""
        return f"limit-{self.factor:.6f}"  # no exponent: cotengra cuts at every hyphen

    def split(self, separator: str) -> list[str]:
        """cotengra: its exact search takes its objective for a text, which it cuts into a name and a factor."""
        return self.get_dynamic_programming_minimize().split(separator)

    @property
    def factor(self) -> float:
        """Multiplications in the time in which an element is written to memory."""
        machine = self._constants
        peak = machine.peak.get(self.dtype, 1e9) / self._flops(1)
        return peak * itemsize(self.dtype) / machine.memory_bandwidth

    @property
    def _constants(self) -> cost.Machine:
        return self.machine or _typical(self.isa)

    def _flops(self, points: int) -> int:
        return cost.contraction_flops(points, self.dtype, True)

    def _merge(
        self, cost1: float, cost2: float, union: Any, sizes: Any, cap: float, s1: int, s2: int, found: dict,
        everything: int, tensors: int, inputs: Any, shared: Any, limit: int | None, tree1: Any, tree2: Any,
    ) -> None:  # fmt: skip
        """One merge of opt_einsum's dynamic programming (its ``_dp_compare_flops`` with another cost)."""
        from opt_einsum.paths import _dp_calc_legs, compute_size_by_dict

        subset = s1 | s2
        legs = _dp_calc_legs(everything, tensors, subset, inputs, shared, union)
        out, points = compute_size_by_dict(legs, sizes), compute_size_by_dict(union, sizes)
        # The parts come without their indices: they are those of their tensors that the step sees.
        legs_of = [frozenset().union(*(i for n, i in enumerate(inputs) if part >> n & 1)) & union for part in (s1, s2)]
        read = [compute_size_by_dict(part, sizes) for part in legs_of]
        total = cost1 + cost2 + self.pair(*read, out, points, points > out)
        better = total <= cap and (subset not in found or total < found[subset][1])
        if better and (limit is None or out <= limit):
            found[subset] = legs, total, (tree1, tree2)


Objective = TimeObjective | None  # None: flops


def time_objective(dtype: Any, threads: int | None = None, machine: cost.Machine | None = None) -> TimeObjective:
    """The time of a contraction of operands in ``dtype``, with the active instruction set; ``threads`` as in `einsum`.

    >>> time_objective("complex64", threads=1).dtype
    'complex64'
    """
    row = dtypes.row(dtypes.to_dtype(dtype, "dtype="))
    compute = "float64" if row.kind == "external" else row.compute
    isa = isa_table.active_isa().name
    return TimeObjective(dtype=compute, threads=config.threads(threads), isa=isa, machine=machine)


def checked(minimize: Any) -> Any:
    """``minimize=``: one of `MINIMIZE` or a `TimeObjective`; None means flops."""
    if minimize is None:
        return "flops"
    if isinstance(minimize, TimeObjective) or (isinstance(minimize, str) and minimize in MINIMIZE):
        return minimize
    expected = f"expected {' or '.join(map(repr, MINIMIZE))}, or what time_objective() returns"
    if isinstance(minimize, str):
        raise EngineValueError(f"minimize={minimize!r}: {expected}")
    raise EngineTypeError(f"minimize={minimize!r}: {expected}, not {type(minimize).__name__}")


def objective(minimize: Any, dtype: Any = "float64", threads: int | None = None) -> Objective:
    """What ``minimize=`` means for a contraction in ``dtype``: `api` knows this machine, a bare name means a typical core."""
    minimize = checked(minimize)
    if isinstance(minimize, TimeObjective):
        return minimize
    return time_objective(dtype, threads) if minimize == "time" else None


@lru_cache(maxsize=8)
def _typical(isa: str) -> cost.Machine:
    row = isa_table.get(isa)
    return cost.typical_machine(row.name, row.vector_bits, row.fma)
