"""Since which boundary a rank's checks tell of the loop that it trains in."""

from __future__ import annotations

from typing import Any

from support.loop_script import LoopScript

from torchrelay.protocol.messages import ReplicaCheck


def checks(script: LoopScript) -> list[tuple[int, int]]:
    sent: list[Any] = script.sent
    return [(c.boundary, c.since) for c in sent if isinstance(c, ReplicaCheck)]


def test_the_first_step_is_one_of_the_loop_that_it_shows_to_be_the_training_loop(script: LoopScript) -> None:
    script.run("""
        for epoch in range(2):
            for batch in range(3):
                step()
    """)
    assert checks(script) == [(0, 0), (1, 0), (2, 0), (4, 0)]


def test_a_further_loop_begins_anew(script: LoopScript) -> None:
    script.run("""
        for batch in range(3):
            step()
        for batch in range(3):
            step()
    """)
    assert [since for boundary, since in checks(script) if boundary in (1, 2)] == [0, 0]
    assert {since for boundary, since in checks(script) if boundary > 3} == {3}
