"""Variables of `contextvars`: what they hold goes back, and comes into another process."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records import undo


def test_it_goes_back() -> None:
    phase: ContextVar[list[int]] = ContextVar("phase")
    phase.set([0])
    local = {"phase": phase}
    state = take(local)
    phase.get().append(1)
    phase.set([2])
    undo.undo(state)
    assert phase.get() == [0]


def test_another_process_has_what_it_held() -> None:
    there: dict[str, Any] = {"phase": ContextVar("phase")}
    there["phase"].set([1, 2])
    here: dict[str, Any] = {"phase": ContextVar("phase", default=())}
    carry(there, here)
    assert here["phase"].get() == [1, 2]


def test_one_that_held_nothing_cannot_be_emptied() -> None:
    phase: ContextVar[int] = ContextVar("phase")
    state = take({"phase": phase})
    phase.set(1)
    with pytest.raises(StateMismatchError, match="cannot be emptied"):
        undo.undo(state)
