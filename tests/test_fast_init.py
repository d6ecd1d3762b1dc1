"""`fast_init` makes the same instances as the `__init__` of `dataclasses`."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from functools import cached_property
from inspect import signature

import pytest

from loopnest.base.fast_init import fast_init


@fast_init
@dataclass(frozen=True, slots=True)
class Slots:
    first: int
    second: str = "two"
    third: dict[str, int] = field(default_factory=dict)
    fourth: bool = field(default=False, kw_only=True)


@fast_init
@dataclass(frozen=True)
class Dictionary:
    first: int
    second: int = 2

    @cached_property
    def total(self) -> int:
        return self.first + self.second


def test_fields_and_defaults_are_set():
    made = Slots(1)
    assert made == Slots(1, "two", {}, fourth=False)
    assert (made.first, made.second, made.third, made.fourth) == (1, "two", {}, False)
    assert Slots(1).third is not Slots(1).third
    assert Slots(first=3, fourth=True).fourth
    assert repr(Slots(1)) == "Slots(first=1, second='two', third={}, fourth=False)"


def test_instances_stay_frozen():
    with pytest.raises(FrozenInstanceError):
        Slots(1).first = 2


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        Slots()
    with pytest.raises(TypeError, match="takes from 2 to 4 positional arguments"):
        Slots(1, "", {}, True)


def test_the_parameters_are_those_of_the_class():
    assert list(signature(Slots).parameters) == ["first", "second", "third", "fourth"]
    assert signature(Slots).parameters["first"].annotation in (int, "int")


def test_a_class_without_slots_keeps_its_cached_properties():
    made = Dictionary(1)
    assert made.total == 3
    assert replace(made, first=5).total == 7
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_field_that_takes_more_than_setting_is_refused():
    @dataclass(frozen=True, slots=True)
    class Derived:
        first: int
        second: int = field(init=False)

    with pytest.raises(TypeError, match="Derived: second takes more than setting a field"):
        fast_init(Derived)
