"""Values are compared bit by bit, and neither is asked."""

from __future__ import annotations

import array
import datetime
import enum
import math
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from torchrelay.shim.capture.values.alike import alike


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


class Silent:
    """As arrays and proxies: what it says when it is compared has no truth."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        raise AssertionError("asked")

    def __bool__(self) -> bool:
        raise AssertionError("asked")

    def __len__(self) -> int:
        raise AssertionError("asked")

    __ne__, __hash__ = __eq__, object.__hash__


class Quiet(str):
    """Says that it is like everything."""

    beside = ""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def named(name: str, beside: str) -> Quiet:
    made = Quiet(name)
    made.beside = beside
    return made


class Loud(tuple[Any, ...]):
    def __eq__(self, other: object) -> bool:
        raise AssertionError("asked")

    __hash__ = tuple.__hash__


def legacy(drawn: int) -> Any:
    made = numpy.random.RandomState(3)
    made.random_sample(drawn)
    return made.get_state()


def mt19937(drawn: int) -> Any:
    made = numpy.random.Generator(numpy.random.MT19937(3))
    made.random(drawn)
    return made.bit_generator.state


MAKERS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "numbers": (lambda: 3, lambda: 4),
    "a number and a truth": (lambda: 1, lambda: True),
    "numbers in a list": (lambda: [1, 0], lambda: [True, 0]),
    "zeros": (lambda: 0.0, lambda: -0.0),
    "no numbers": (lambda: float("nan"), lambda: 1.0),
    "complex": (lambda: complex(math.nan, 0.0), lambda: complex(math.nan, -0.0)),
    "bytes": (lambda: b"a", lambda: bytearray(b"a")),
    "arrays": (lambda: numpy.array([1.0, math.nan]), lambda: numpy.array([1.0, 2.0])),
    "arrays of other types": (lambda: numpy.zeros(2, "f4"), lambda: numpy.zeros(2, "i4")),
    "arrays of other forms": (lambda: numpy.zeros((2, 1)), lambda: numpy.zeros((1, 2))),
    "arrays of objects": (lambda: numpy.array([{"a": numpy.zeros(2)}]), lambda: numpy.array([{"a": numpy.ones(2)}])),
    "numbers of numpy": (lambda: numpy.float32(1.5), lambda: numpy.float32(2.5)),
    "arrays in a tuple": (lambda: ("a", numpy.zeros(3), 1), lambda: ("a", numpy.ones(3), 1)),
    "arrays in a dict": (lambda: {"a": numpy.zeros(3)}, lambda: {"a": numpy.ones(3)}),
    "tensors": (lambda: torch.tensor([math.nan, 0.0]), lambda: torch.tensor([math.nan, -0.0])),
    "tensors of other types": (lambda: torch.zeros(2), lambda: torch.zeros(2, dtype=torch.int32)),
    "parts of tensors": (lambda: torch.arange(6).reshape(2, 3).t(), lambda: torch.arange(6).reshape(3, 2)),
    "tensors in a list": (lambda: [torch.zeros(2)], lambda: [torch.ones(2)]),
    "named tuples": (lambda: Pair(1, numpy.zeros(2)), lambda: Pair(1, numpy.ones(2))),
    "slices": (lambda: slice(numpy.zeros(2), None), lambda: slice(numpy.ones(2), None)),
    "ranges": (lambda: range(3), lambda: range(4)),
    "members": (lambda: Color.RED, lambda: Color.BLUE),
    "sets": (lambda: {"a", 2}, lambda: {"a", 3}),
    "sets of tuples": (lambda: frozenset({("a", math.nan)}), lambda: frozenset({("b", math.nan)})),
    "lengths": (lambda: [1, 2], lambda: [1]),
    "keys": (lambda: {"a": 1}, lambda: {"b": 1}),
    "keys that are objects": (lambda: {Pair(1, "a"): 1}, lambda: {Pair(2, "a"): 1}),
    "paths": (lambda: pathlib.Path("a"), lambda: pathlib.Path("b")),
    "days": (lambda: datetime.date(2020, 1, 1), lambda: datetime.date(2020, 1, 2)),
    "patterns": (lambda: re.compile("a"), lambda: re.compile("b")),
    "what only pickles": (lambda: array.array("d", [1.0]), lambda: array.array("d", [2.0])),
    "objects": (lambda: Silent(numpy.zeros(2)), lambda: Silent(numpy.ones(2))),
    "objects in a list": (lambda: [Silent(1), 2], lambda: [Silent(2), 2]),
    "what says that it is equal": (lambda: Quiet("a"), lambda: Quiet("b")),
    "what a string keeps beside": (lambda: named("a", "b"), lambda: named("a", "c")),
    "tuples that must not be asked": (lambda: Loud((1, 2)), lambda: Loud((1, 3))),
    "generators of old": (lambda: legacy(1), lambda: legacy(2)),
    "generators": (lambda: mt19937(1), lambda: mt19937(2)),
    "types": (lambda: int, lambda: str),
}


@pytest.mark.parametrize("what", MAKERS)
def test_values_of_the_same_content_are_alike_and_others_are_not(what: str) -> None:
    one, other = MAKERS[what]
    assert alike(one(), one())
    assert alike(other(), other())
    assert not alike(one(), other())
    assert not alike(other(), one())
    assert not alike(one(), None)


def test_the_order_of_a_dict_does_not_count_and_which_parts_are_one_object_does_not_either() -> None:
    assert alike({"a": 1, "b": 2}, {"b": 2, "a": 1})
    text = "".join(["a", "b"])
    assert alike(Silent([text, text]), Silent([text, "".join(["a", "b"])]))


def test_what_cannot_be_told_counts_as_different() -> None:
    assert not alike(memoryview(b"a"), memoryview(b"a"))
    assert not alike(lambda: 1, lambda: 1)
    assert not alike(torch.eye(2).to_sparse(), torch.eye(2).to_sparse())
    circle: list[Any] = []
    circle.append(Silent(circle))
    other: list[Any] = []
    other.append(Silent(other))
    assert not alike(Silent(circle), Silent(other))
