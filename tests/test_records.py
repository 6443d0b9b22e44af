"""Quick records: what `dataclass` promises of a frozen class, whoever writes its ``__init__``."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import ClassVar

import pytest

from einsum_engine.records import Later, changed, lazy, quick


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


def test_a_field_that_comes_later():
    asked = []
    made = Late(a=Later(lambda x: asked.append(x) or [x], (5,)), b=1)
    other = changed(made, b=2)
    assert not asked
    assert made.a == [5] and made.a is made.a and asked == [5]
    assert repr(made) == "Late(a=[5], b=1)" and made == Late(a=[5], b=1) != other
    assert replace(other, b=1) == made and changed(other, a=[6]).a == [6]
    assert Late(a=Later(list)) == Late(a=[])


def test_what_comes_later_is_there_in_copies():
    made = Late(a=Later(lambda: [7]))  # a lambda does not pickle
    assert pickle.loads(pickle.dumps(made)) == copy.copy(made) == copy.deepcopy(made) == Late(a=[7])


def test_a_class_has_no_value_of_what_comes_later():
    assert not hasattr(Late, "a")
    with pytest.raises(TypeError):
        Late()
