from __future__ import annotations

from typing import Any

import pytest
from support.loop_script import LOST, LoopScript

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.collectives import Entry


@pytest.fixture
def seen(script: LoopScript) -> dict[str, Any]:
    """What scripts here call: `call` is a collective, `look` notes where the rank would stand."""
    engine, noted = script.engine, []

    def call(name: str) -> None:
        noted.append(engine.mode())
        engine.record(Entry(name, "0", []))

    def look() -> None:
        position = engine.standing_position()
        noted.append((position, engine.commit.boundary if engine.commit else -1, engine.gates_passed))

    return {"call": call, "look": look, "noted": noted}


BREAK = """
for batch in range(3):
    call("top")
    if batch == 2:
        break
    step()
"""
WHILE = """
batch = 0
while True:
    call("top")
    if batch == 2:
        break
    step()
    batch += 1
"""
RETURN = """
def train():
    for batch in range(3):
        call("top")
        if batch == 2:
            return
        step()
train()
"""


@pytest.mark.parametrize("loop", [BREAK, WHILE, RETURN], ids=["break", "while", "return"])
def test_what_follows_a_loop_that_was_left_at_its_head_is_the_rest_of_the_step_before(
    loop: str, script: LoopScript, seen: dict[str, Any]
) -> None:
    script.run(loop + 'look()\ncall("behind")\nlook()', **seen)
    assert seen["noted"] == ["record"] * 3 + [("left", 1, 2), "repeat", ("left", 1, 2)]
    assert [entry.name for entry in script.engine.records.after] == ["top", "behind"]
    assert script.engine.left.place.endswith("#1")


@pytest.mark.parametrize("loop", [BREAK, WHILE, RETURN], ids=["break", "while", "return"])
def test_the_first_collective_behind_it_finds_that_it_was_left(
    loop: str, script: LoopScript, seen: dict[str, Any]
) -> None:
    script.run(loop + 'call("behind")', **seen)
    assert seen["noted"][-1] == "repeat"


def test_the_next_loop_has_a_boundary_of_the_same_number(script: LoopScript, seen: dict[str, Any]) -> None:
    script.run(
        """
        for epoch in range(2):
            for batch in range(3):
                call("top")
                if batch == 2:
                    break
                step()
            call("behind")
        look()
        """,
        **seen,
    )
    assert script.numbers_by_line()[3] == [1, 2, 2, 3, 4]
    assert seen["noted"] == [*["record"] * 3, "repeat"] * 2 + [("left", 3, 4)]
    assert [entry.name for entry in script.engine.records.after] == ["top", "behind"]


def test_what_was_called_in_a_loop_that_was_left_counts_when_nothing_is_called_before_the_next(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    script.run(
        """
        for epoch in range(2):
            for batch in range(3):
                call("top")
                if batch == 2:
                    break
                if epoch == 1:
                    after.extend(records.after)
                step()
        """,
        **seen,
        records=script.engine.records,
        after=(after := []),
    )
    assert [entry.name for entry in after[:1]] == ["top"]


def test_a_loop_is_not_left_in_its_head_its_body_or_a_function_that_it_calls(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    script.run(
        """
        def inner():
            for part in range(2):
                call("inner")
        batch = 0
        while batch < 3:
            inner()
            (lambda: call("lambda"))()
            step()
            batch += 1
        """,
        **seen,
    )
    assert set(seen["noted"]) == {"record"}


def test_a_loop_that_is_left_in_the_midst_of_a_step_cannot_be_gone_past(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    """The gradients that were computed there would be lost."""
    script.run(
        """
        for batch in range(3):
            if batch == 2:
                compute()
                break
            step()
        look()
        """,
        **seen,
        compute=lambda: setattr(script.engine, "gradients_open", True),
    )
    assert seen["noted"] == [("astray", 2, 2)]


def test_a_loop_that_is_left_before_any_step_has_none_before_it(script: LoopScript, seen: dict[str, Any]) -> None:
    script.run("for batch in range(3):\n    if not batch:\n        break\n    step()\nlook()", **seen)
    assert seen["noted"] == [("astray", 0, 0)]


def test_a_forward_that_is_interrupted_behind_it_cannot_be_called_again(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    script.answer = "stay"
    with pytest.raises(UnsupportedError, match="after the optimizer step"):
        script.run(BREAK + "forward()", **seen, forward=lambda: script.engine.interrupted_for_good(RuntimeError(LOST)))
    assert script.stood == ["once"]
