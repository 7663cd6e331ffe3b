"""A joiner whose way ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.protocol.messages import OrderFailed
from torchrelay.shim.join.joiner import Joiner
from torchrelay.shim.join.joiner_dialogue import Dialogue


class Way:
    """A joiner with its dialogue and what it tells, without a rank to take over."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        dialogue: Any = object.__new__(Dialogue)
        dialogue._engine = SimpleNamespace(link=SimpleNamespace(send=self.told.append))
        dialogue.generation, dialogue.is_over, dialogue._is_receiving = 3, False, False
        joiner: Any = object.__new__(Joiner)
        joiner._dialogue, joiner._staging = dialogue, SimpleNamespace(show=lambda: self.told.append("its output"))
        self.dialogue, self.joiner = dialogue, joiner


@pytest.mark.parametrize(
    ("error", "receiving", "lasting"),
    [
        (StateMismatchError("another state"), False, True),
        (ImportError("no such module"), False, True),
        (ConnectionError("a peer is gone"), False, False),
        (StateMismatchError("another tensor"), True, False),
    ],
)
def test_what_ends_it_comes_again_in_another_process_if_it_is_of_the_script_or_the_journal(
    error: Exception, receiving: bool, lasting: bool
) -> None:
    way = Way()
    way.dialogue._is_receiving = receiving
    way.joiner.failed(error)
    output, report = way.told
    assert output == "its output"
    assert isinstance(report, OrderFailed)
    assert (report.generation, report.order, report.lasting) == (3, "join", lasting)


def test_a_script_that_fails_in_a_process_that_is_the_rank_is_no_failed_takeover() -> None:
    way = Way()
    way.dialogue.is_over = True
    way.joiner.failed(ValueError("of the script"))
    assert way.told == []
