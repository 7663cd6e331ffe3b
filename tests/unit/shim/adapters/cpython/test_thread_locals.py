"""What a `threading.local` was made with is read from the interpreter, whatever its class keeps beside it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython import thread_locals


class Slots(threading.local):
    __slots__ = ("first", "kind")

    def __init__(self, *args: Any, **named: Any) -> None:
        self.first, self.kind, self.rest = args, type(self), named


class Dataclass(threading.local):
    def __init__(self, *args: Any, **named: Any) -> None:
        vars(self).update(named, args=args)


@pytest.mark.parametrize("cls", [Slots, Dataclass])
@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), ((1,), {}), ((), {"a": [1]}), (((), {"b": 1}), {"c": None}), ((Slots,), {}), (({"a": 1},), {})],
)
def test_positional_and_named_ones_are_told_apart_from_what_threads_keep(
    cls: type[threading.local], args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert thread_locals.WORKS
    assert thread_locals.arguments(cls(*args, **named)) == (args, named)


def test_nothing_is_told_where_samples_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_locals, "WORKS", False)
    assert thread_locals.arguments(Dataclass(1)) is None
