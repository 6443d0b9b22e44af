"""Quick records: what `dataclass` promises of a frozen class, whoever writes its ``__init__``."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import ClassVar

import pytest

from einsum_engine.records import Later, changed, forget, hashed_once, lazy, partly, quick


@dataclass(frozen=True, kw_only=True)
class Plain:
    a: int
    b: tuple = ()
    c: list = field(default_factory=list)


@quick
@dataclass(frozen=True, kw_only=True)
class Quick:
    a: int
    b: tuple = ()
    c: list = field(default_factory=list)

    @lazy
    def twice(self) -> list:
        """A list of its own."""
        return [self.a, self.a]


@pytest.mark.parametrize("given", [dict(a=1), dict(a=1, b=(2,)), dict(b=(3,), a=2, c=[4])])
def test_fields_and_defaults(given):
    made, plain = Quick(**given), Plain(**given)
    assert vars(made) == vars(plain)
    assert repr(made) == repr(plain).replace("Plain", "Quick")
    assert made == Quick(**given) and made != Quick(**given | {"a": 7})
    assert replace(made, b=(9,)) == Quick(**given | {"b": (9,)})


def test_each_has_a_default_of_its_own():
    assert Quick(a=1).c is not Quick(a=1).c


@pytest.mark.parametrize("given", [{}, dict(b=()), dict(a=1, d=2)])
def test_wrong_arguments(given):
    for cls in (Plain, Quick):
        with pytest.raises(TypeError, match="__init__.. (missing|got)"):
            cls(**given)
    with pytest.raises(TypeError):
        Quick(1)


def test_it_is_frozen_and_copies():
    made = Quick(a=1, c=[2])
    with pytest.raises(FrozenInstanceError):
        made.a = 2
    assert pickle.loads(pickle.dumps(made)) == made == copy.deepcopy(made)
    assert hash(replace(made, c=())) == hash(Quick(a=1, c=()))


def test_lazy_is_computed_once():
    made = Quick(a=3)
    assert made.twice is made.twice and made.twice == [3, 3]
    assert Quick.twice.__doc__ == "A list of its own."


def test_what_has_more_to_do_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Checked:
        a: int

        def __post_init__(self):
            assert self.a

    with pytest.raises(AssertionError, match="Checked"):
        quick(Checked)


@quick
@dataclass(frozen=True, kw_only=True)
class Late:
    LATER: ClassVar[tuple[str, ...]] = ("a",)

    a: list
    b: int = 0


@quick
@dataclass(frozen=True, kw_only=True)
class Lazy:
    LATER: ClassVar[tuple[str, ...]] = ("a",)

    a: list

    @lazy
    def address(self) -> int:
        return id(self)


class Asked(Later):
    def __init__(self):
        self.times = 0

    @property
    def a(self):
        self.times += 1
        return [self.times]

    @property
    def c(self):
        return "c"

    def __reduce__(self):
        raise TypeError("copied before it was asked")


def test_what_was_computed_lazily_may_be_forgotten():
    made = Lazy(a=[1])
    assert made.address == id(made) and "address" in vars(made)
    forget(made)
    assert vars(made) == {"a": [1]} and made.address == id(made)


def test_a_field_that_comes_later():
    later = Asked()
    made = Late(a=later, b=1)
    other = changed(made, b=2)
    assert not later.times
    assert made.a == [1] and made.a is made.a and later.times == 1
    assert repr(made) == "Late(a=[1], b=1)" and made == Late(a=[1], b=1) != other
    assert other.a == [2] and changed(other, a=[6]).a == [6] and replace(other, a=[1], b=1) == made


def test_fields_may_come_from_one():
    @quick
    @dataclass(frozen=True, kw_only=True)
    class Two:
        LATER: ClassVar[tuple[str, ...]] = ("a", "c")

        a: list
        c: str

    assert Two(a=Asked(), c="given") == Two(a=[1], c="given")
    later = Asked()
    assert Two(a=later, c=later) == Two(a=[1], c="c") and later.times == 1


def test_a_record_may_be_made_of_some_fields():
    @quick
    @dataclass(frozen=True, kw_only=True)
    class Mostly:
        LATER: ClassVar[tuple[str, ...]] = ("a", "c")

        a: list
        b: int
        c: str
        d: tuple = ()

    later = Asked()
    made = partly(Mostly, later, b=3)
    other = changed(made, b=4)
    assert made.b == 3 and made.d == () and not later.times
    assert made.a == [1] and made.a is made.a and other.a == [2]
    assert made == Mostly(a=[1], b=3, c="c") == copy.deepcopy(made) != other
    assert repr(made) == repr(Mostly(a=[1], b=3, c="c")) and replace(made, b=4, a=[2]) == other
    with pytest.raises(AttributeError):
        partly(Mostly, later, a=[1]).b


def test_what_comes_later_is_there_in_copies():
    for copied in (lambda made: pickle.loads(pickle.dumps(made)), copy.copy, copy.deepcopy):
        assert copied(Late(a=Asked())) == Late(a=[1])


def test_what_is_lazy_is_not_copied():
    made = Lazy(a=[1])
    assert made.address == id(made)
    for copied in (lambda made: pickle.loads(pickle.dumps(made)), copy.copy, copy.deepcopy):
        other = copied(made)
        assert other == made and other.address == id(other)


def test_a_class_has_no_value_of_what_comes_later():
    assert not hasattr(Late, "a")
    with pytest.raises(TypeError):
        Late()


_hashes: list[int] = []


class Counted:
    """Equal to all of its kind; says when it is hashed."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted)

    def __hash__(self) -> int:
        _hashes.append(1)
        return 7


@hashed_once
@dataclass(frozen=True)
class Hashed:
    a: Counted
    b: str = ""


def test_a_hash_is_found_once():
    _hashes.clear()
    made = Hashed(Counted(), "x")
    assert {made: 1}[made] == 1 and hash(made) == hash(made) == hash(Hashed(Counted(), "x"))
    assert len(_hashes) == 2  # of each object one
    assert made == Hashed(Counted(), "x") and hash(replace(made, b="y")) != hash(made)


def test_a_hash_is_not_copied():
    made = Hashed(Counted(), "x")
    hash(made)
    for twin in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert twin == made and vars(twin).keys() == {"a", "b"}
