"""A binary contraction with its dimension types: what the planners of kernel families are asked to run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Hashable, Mapping, NamedTuple, Sequence

from ..plan import Axis, Index
from ..records import changed, lazy, quick
from .sides import LEFT, NO_TABLES, OUT, RIGHT, Dim, fused_dims, fused_places, made_dim

Axes = Mapping[Index, Axis]
Fused = tuple[list[tuple[Index, ...]], tuple[tuple[int, int, int], ...]]  # as `fused_places` makes them


def dimension_types(
    left: tuple[Index, ...], right: tuple[Index, ...], out: tuple[Index, ...]
) -> tuple[tuple[Index, ...], ...]:
    """Indices of the types B, M, N, K of a contraction."""
    return (
        tuple([i for i in out if i in left and i in right]),
        tuple([i for i in out if i in left and i not in right]),
        tuple([i for i in out if i in right and i not in left]),
        tuple([i for i in left if i in right and i not in out]),
    )


@quick
@dataclass(frozen=True, kw_only=True)
class BinaryContraction:
    """A binary contraction: dimension types and the axes of its tensors (``None``: free to choose).

    ``dtype`` is computed in and stored; ``left_dtype`` and ``right_dtype``: what an operand holds where that is another
    one, which packing widens (`kernels.packs`).
    """

    dtype: str
    sizes: Mapping[Index, int]
    batch: tuple[Index, ...]
    m: tuple[Index, ...]  # in left and output
    n: tuple[Index, ...]  # in right and output
    k: tuple[Index, ...]
    left: Axes | None
    right: Axes | None
    out: Axes
    conj_left: bool = False
    conj_right: bool = False
    panels_left: bool = True  # a free left operand may be laid out in panels
    panels_right: bool = True
    only_panels: bool = False  # wherever it may be, also where rows would do
    nested: bool = False  # panels lie in blocks of K
    constant_left: bool = False  # never changes: packed once, whatever that costs
    constant_right: bool = False
    accumulate: bool = False
    again: bool = False  # the output is read by other steps
    anywhere: bool = False  # the output is memory of the caller's, which begins anywhere in a line
    flip: bool = False  # the lanes side is the other one than the output suggests
    across: bool = False  # lanes run along the left operand, not along the output
    near_left: frozenset[Index] = frozenset()  # indices that a free operand keeps fastest
    near_right: frozenset[Index] = frozenset()
    left_dtype: str = ""
    right_dtype: str = ""
    # Index of pieces of a sum, index within a piece, and entries of that behind the last piece, which are added as well.
    tail: tuple[Index, Index, int] | None = None

    @lazy
    def names(self) -> tuple[Index, ...]:
        """All indices, by type."""
        return (*self.batch, *self.m, *self.n, *self.k)

    @lazy
    def terms(self) -> tuple[tuple[Index, ...], tuple[Index, ...], tuple[Index, ...]]:
        """The indices of left, right and output, by type."""
        return (*self.batch, *self.m, *self.k), (*self.batch, *self.n, *self.k), (*self.batch, *self.m, *self.n)

    @lazy
    def question(self) -> Hashable:
        """What is asked for, whatever the indices are called, but for sizes, layouts and what is decided with them."""
        return (
            self.dtype,
            self.left_dtype,
            self.right_dtype,
            self.conj_left,
            self.conj_right,
            self.panels_left,
            self.panels_right,
            self.constant_left,
            self.constant_right,
            self.only_panels,
            self.nested,
            self.accumulate,
            self.again,
            self.anywhere,
            self.tail,
        )

    @lazy
    def ranks(self) -> tuple[int, int, int]:
        """How many indices are of types B, M and N."""
        return len(self.batch), len(self.m), len(self.n)

    @lazy
    def places(self) -> tuple[Fused, Fused, Fused] | None:
        """`dims` of types M, N and K by indices and by numbers, where there is no batch and both operands are known and
        linear."""
        return None if self.batch else _places(self.m, self.n, self.k, self.sizes, self.left, self.right, self.out)

    @lazy
    def swapped_places(self) -> tuple[Fused, Fused, Fused] | None:
        """`places` of the product with left and right exchanged, which is looked up by them before it is made."""
        return None if self.batch else _places(self.n, self.m, self.k, self.sizes, self.right, self.left, self.out)

    @lazy
    def dims(self) -> tuple[list[Dim], list[Dim], list[Dim], list[Dim]]:
        """Dimensions of types B, M, N and K of a product whose layouts are all known: as they lie in the output, slow to
        fast, K as in left; neighbours that are one linear dimension in all tensors are one."""
        if self.places is not None:
            m, n, k = self.places
            return [], _dims(m, LEFT, OUT), _dims(n, RIGHT, OUT), _dims(k, LEFT, RIGHT)
        left, right, out = (LEFT, self.left), (RIGHT, self.right), (OUT, self.out)
        sizes, by_out = self.sizes, self.out
        return (
            fused_dims(slow_to_fast(self.batch, by_out), sizes, (left, right, out)),
            fused_dims(slow_to_fast(self.m, by_out), sizes, (left, out)),
            fused_dims(slow_to_fast(self.n, by_out), sizes, (right, out)),
            fused_dims(slow_to_fast(self.k, self.left), sizes, (left, right)),
        )

    @lazy
    def lengths(self) -> tuple[int, ...]:
        """Sizes of all indices, by type."""
        return tuple(map(self.sizes.__getitem__, self.names))

    @lazy
    def lanes_on_right(self) -> bool:
        """The store side gets the lanes: the side that holds the fastest dimension of the output; with ``flip`` the other."""
        if not self.n or not self.m:
            return not self.m
        return (_least(self.out, self.n) < _least(self.out, self.m)) != self.flip

    @lazy
    def swapped(self) -> "BinaryContraction":
        """The same with left and right exchanged."""
        found = BinaryContraction(
            dtype=self.dtype,
            sizes=self.sizes,
            batch=self.batch,
            m=self.n,
            n=self.m,
            k=self.k,
            left=self.right,
            right=self.left,
            out=self.out,
            conj_left=self.conj_right,
            conj_right=self.conj_left,
            panels_left=self.panels_right,
            panels_right=self.panels_left,
            only_panels=self.only_panels,
            nested=self.nested,
            constant_left=self.constant_right,
            constant_right=self.constant_left,
            accumulate=self.accumulate,
            again=self.again,
            anywhere=self.anywhere,
            flip=self.flip,
            across=self.across,
            near_left=self.near_right,
            near_right=self.near_left,
            left_dtype=self.right_dtype,
            right_dtype=self.left_dtype,
            tail=self.tail,
        )
        found.__dict__["places"] = self.swapped_places
        return found


def _places(
    m: tuple[Index, ...],
    n: tuple[Index, ...],
    k: tuple[Index, ...],
    sizes: Mapping[Index, int],
    left: Axes | None,
    right: Axes | None,
    out: Axes,
) -> tuple[Fused, Fused, Fused] | None:
    if left is None or right is None:
        return None
    of_m = fused_places(slow_to_fast(m, out), sizes, left, out)
    of_n = fused_places(slow_to_fast(n, out), sizes, right, out)
    of_k = fused_places(slow_to_fast(k, left), sizes, left, right)
    return None if of_m is None or of_n is None or of_k is None else (of_m, of_n, of_k)


def slow_to_fast(indices: tuple[Index, ...], axes: Axes) -> Sequence[Index]:
    """Indices by their strides; those with equal ones stay in order."""
    if len(indices) < 2:
        return indices
    before = abs(axes[indices[0]].stride)
    for index in indices:  # few, and mostly in order: to see that takes a fifth of the time of sorting them
        distance = abs(axes[index].stride)
        if distance > before:
            return sorted(indices, key=lambda i: -abs(axes[i].stride))
        before = distance
    return indices


def _dims(fused: Fused, first: int, second: int) -> list[Dim]:
    return [made_dim((indices, size, {first: x, second: y}, NO_TABLES)) for indices, (size, x, y) in zip(*fused)]


def _least(axes: Axes, indices: tuple[Index, ...]) -> int:
    """The shortest stride."""
    least = abs(axes[indices[0]].stride)
    for index in indices:  # few: a loop takes half the time of `min` and `map`
        distance = abs(axes[index].stride)
        if distance < least:
            least = distance
    return least


class Laid(NamedTuple):
    """A contraction as `asked`, with sizes, layouts and what was decided with them. Most were planned before: they are
    found by this, and nothing else is made of them."""

    asked: BinaryContraction
    sizes: Mapping[Index, int]
    left: Axes | None
    right: Axes | None
    out: Axes
    flip: bool = False
    across: bool = False
    near_left: frozenset[Index] = frozenset()
    near_right: frozenset[Index] = frozenset()

    @property
    def objects(self) -> Hashable:
        """It by the objects that it consists of. Axes that lie alike are mostly one object."""
        asked, sizes, left, right, out, *decided = self
        lengths = tuple(map(sizes.__getitem__, asked.names))
        return id(asked.question), lengths, id(left), id(right), id(out), *decided

    @property
    def contraction(self) -> BinaryContraction:
        asked, sizes, left, right, out, flip, across, near_left, near_right = self
        return changed(
            asked,
            sizes=sizes,
            left=left,
            right=right,
            out=out,
            flip=flip,
            across=across,
            near_left=near_left,
            near_right=near_right,
        )


@lru_cache(maxsize=2048)
def asked(
    terms: tuple[tuple[Index, ...], tuple[Index, ...], tuple[Index, ...]],
    dtypes: tuple[str, str, str],
    conj: tuple[bool, bool],
    constant: tuple[bool, bool],
    panels: tuple[bool, bool, bool, bool],
    again: bool = False,
    anywhere: bool = False,
    tail: tuple[Index, Index, int] | None = None,
) -> BinaryContraction:
    """The contraction of terms (left, right, output) without sizes and layouts: an expression comes again with others.

    ``dtypes``: what is computed in, what left and right hold; ``panels``: of left and right, whether only these,
    and nested in blocks of K.
    """
    batch, m, n, k = dimension_types(*terms)
    found = BinaryContraction(
        dtype=dtypes[0],
        left_dtype=dtypes[1],
        right_dtype=dtypes[2],
        sizes={},
        batch=batch,
        m=m,
        n=n,
        k=k,
        left=None,
        right=None,
        out={},
        conj_left=conj[0],
        conj_right=conj[1],
        constant_left=constant[0],
        constant_right=constant[1],
        panels_left=panels[0],
        panels_right=panels[1],
        only_panels=panels[2],
        nested=panels[3],
        again=again,
        anywhere=anywhere,
        tail=tail,
    )
    found.question, found.ranks, found.terms, found.names  # before those with sizes
    return found
