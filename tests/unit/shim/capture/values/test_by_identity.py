"""What is known of an object goes with it, and is not found by another one that is equal or has come to its address."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from torchrelay.shim.capture.values.by_identity import ByIdentity


class Equal:
    """As classes of scripts may be: equal to all, and without a hash."""

    __hash__ = None  # type: ignore[assignment]  # the point

    def __eq__(self, other: object) -> bool:
        return True


class Closed:
    __slots__ = ()


def test_another_object_that_is_equal_is_another_one() -> None:
    known: ByIdentity[int] = ByIdentity()
    first, second = Equal(), Equal()
    known.put(first, 1)
    assert (known.get(first), known.get(second)) == (1, None)
    known.put(first, 2)
    assert (known.get(first), len(known)) == (2, 1)
    known.pop(second)
    known.pop(first)
    assert (known.get(first), len(known)) == (None, 0)


def test_an_entry_goes_with_its_object() -> None:
    known: ByIdentity[int] = ByIdentity()
    for number in range(3):
        obj = Equal()
        obj.itself = obj  # type: ignore[attr-defined]  # the collector has to find it
        known.put(obj, number)
        del obj
        gc.collect()
        assert len(known) == 0
        assert [*known.objects()] == [*known.values()] == []


def test_an_object_without_weak_references_is_kept_with_its_entry() -> None:
    known: ByIdentity[int] = ByIdentity()
    known.put(Closed(), 1)
    (kept,) = known.objects()
    assert known.get(kept) == 1


@pytest.mark.parametrize("value", [0, "", None])
def test_a_value_that_counts_as_false_is_kept_and_taken_out(value: Any) -> None:
    known: ByIdentity[Any] = ByIdentity()
    obj = Equal()
    known.put(obj, value)
    assert [*known.values()] == [value]
    known.pop(obj)
    assert not known
