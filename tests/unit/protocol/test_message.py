"""What a message does, a frozen dataclass does."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class Told:
    rank: int
    names: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    secret: bytes = field(default=b"", repr=False)
    seen_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Expected:
    rank: int
    names: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    secret: bytes = field(default=b"", repr=False)
    seen_s: float = field(default=0.0, compare=False)


@message(frozen=True)
class Empty:
    pass


@message(frozen=True)
class Other:
    rank: int


GIVEN: tuple[dict[str, Any], ...] = (
    {"rank": 1},
    {"rank": 1, "names": ("a",), "secret": b"s"},
    {"rank": 2, "seen_s": 3.0},
)


@pytest.mark.parametrize("given", GIVEN)
def test_a_message_is_shown_and_taken_apart_as_a_dataclass_is(given: dict[str, Any]) -> None:
    told, expected = Told(**given), Expected(**given)
    assert is_dataclass(told)
    assert [f.name for f in fields(told)] == [f.name for f in fields(expected)]
    assert repr(told) == repr(expected).replace("Expected", "Told")
    assert asdict(told) == asdict(expected)
    assert asdict(replace(told, rank=9)) == asdict(replace(expected, rank=9))
    assert Told.__match_args__ == Expected.__match_args__


@pytest.mark.parametrize("one", GIVEN)
@pytest.mark.parametrize("other", GIVEN)
def test_two_are_equal_where_two_dataclasses_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (Told(**one) == Told(**other)) == (Expected(**one) == Expected(**other))


def test_a_message_equals_none_of_another_class() -> None:
    assert Other(1) != Told(1)
    assert Other(1).__eq__(1) is NotImplemented
    assert Empty() == Empty()
    assert Empty() != Other(0)


def test_equal_ones_have_one_hash_and_a_field_without_a_hash_has_none() -> None:
    assert hash(Other(1)) == hash(Other(1))
    assert hash(Other(1)) != hash(Other(2))
    assert hash(Empty()) == hash(Empty())
    with pytest.raises(TypeError, match="unhashable"):
        hash(Told(1))


def test_a_message_cannot_be_changed_whatever_the_name_is() -> None:
    told: Any = Told(1)
    for name in ("rank", "seen_s", "of_no_field"):
        with pytest.raises(FrozenInstanceError):
            setattr(told, name, 2)
    with pytest.raises(FrozenInstanceError):
        del told.rank
    assert told == Told(1)


def test_a_copy_and_a_pickled_one_are_equal_and_cannot_be_changed_either() -> None:
    told = Told(1, ("a",), {"b": "c"}, b"d")
    for copied in (copy.copy(told), copy.deepcopy(told), pickle.loads(pickle.dumps(told))):
        assert copied == told
        with pytest.raises(FrozenInstanceError):
            copied.rank = 2


def test_one_that_can_be_changed_is_refused() -> None:
    with pytest.raises(ValueError, match="frozen=True"):
        message(frozen=False)
