"""Single entries that another thread has changed are put back; what is more than a value is not touched."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.shim.capture.records.compare import Comparison
from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.records.encode import decode, encode_whole
from torchrelay.shim.capture.records.put_entries import CannotPutError, put_entries


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def names() -> dict[str, Any]:
    drawn = Holder(text="1 of 4")
    return {
        "bar": Holder(drawn_s=1.0, cache={0: (1.0, drawn), 1: (0.5, None)}, best=drawn),
        "lines": ["a", "b"],
        "last": collections.deque([1.0, 2.0], maxlen=3),
        "weights": Holder(large=torch.zeros(1 << 16)),
        "model": torch.nn.Linear(2, 2),
    }


def put_back(then: dict[str, Any], now: dict[str, Any]) -> list[Difference]:
    """Put what differs back once; return what differs still."""
    before = decode(encode_whole(take(then)))
    there = take(now)
    comparison = Comparison(before, decode(encode_whole(there)))
    found = comparison.run()
    assert found
    put_entries(before, there, comparison.partner, found)
    return Comparison(before, decode(encode_whole(take(now)))).run()


@pytest.mark.parametrize(
    "change",
    [
        lambda n: setattr(n["bar"], "drawn_s", 7.0),
        lambda n: n["bar"].cache.update({0: (7.0, n["bar"].best)}),
        lambda n: setattr(n["bar"].best, "text", "2 of 4"),
        lambda n: n["bar"].cache.update({2: 5}),
        lambda n: n["bar"].cache.clear(),
        lambda n: n["lines"].append("c"),
        lambda n: n["lines"].__setitem__(1, "c"),
        lambda n: n["last"].append(3.0),
    ],
)
def test_what_another_thread_has_written_is_put_back(change: Callable[[dict[str, Any]], object]) -> None:
    then, now = names(), names()
    change(now)
    assert put_back(then, now) == []


def test_an_object_in_anothers_place_is_filled_in_a_second_round() -> None:
    """As where a bar is drawn: a new text in a new tuple."""
    then, now = names(), names()
    now["bar"].cache[0] = (7.0, Holder(text="2 of 4"))
    now["bar"].best = now["bar"].cache[0][1]
    assert put_back(then, now) == []
    assert now["bar"].cache[0][1].text == "1 of 4"


@pytest.mark.parametrize(
    "change",
    [
        lambda n: setattr(n["weights"], "large", None),
        lambda n: setattr(n["model"], "training", False),
    ],
)
def test_what_is_no_plain_entry_is_not_put(change: Callable[[dict[str, Any]], object]) -> None:
    then, now = names(), names()
    change(now)
    with pytest.raises(CannotPutError):
        put_back(then, now)


def test_what_differs_though_nobody_has_written_to_it_is_not_told_as_put() -> None:
    then, now = names(), names()
    now["bar"].drawn_s = 7.0
    before = decode(encode_whole(take(then)))
    there = take(now)
    comparison = Comparison(before, decode(encode_whole(there)))
    found = comparison.run()
    assert put_entries(before, there, comparison.partner, found) == {"script.bar.drawn_s"}
    assert put_entries(before, there, comparison.partner, found) == set(), "it holds what is put there already"
