"""Optimizer steps behind the loop that trains: what is left of an accumulation, or the other network's turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.loop_script import LoopScript

from torchrelay.protocol.journals.journal import read_journal
from torchrelay.shim.journal import payload

WEIGHT = torch.zeros(1, requires_grad=True)

LEFT_OVER = """
def train():
    for epoch in range(3):
        for batch in range(5):
            backward()
            if batch % 2:
                step()
        backward_again(epoch)
        step()
        note()
train()
"""
CRITIC = """
def train():
    for iteration in range(4):
        for turn in range(3):
            backward()
            step()
        backward()
        step()
        note()
train()
"""


@pytest.fixture
def seen(script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    waited: list[str] = []
    places: list[tuple[str, int]] = []
    monkeypatch.setattr(script.engine.updates.gate, "_wait", waited.append)

    def backward() -> None:
        script.tracker.computing()
        script.engine.step.computed_gradients()
        WEIGHT.sum().backward()

    def note() -> None:
        places.append((script.engine.standing_position(), script.engine.step.gates_passed))

    names = {"backward": backward, "backward_again": lambda epoch: None, "note": note}
    return {"names": names, "waited": waited, "places": places}


def test_what_is_left_of_an_accumulation_is_a_step_of_the_loop_that_is_over(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    script.run(LEFT_OVER, **seen["names"])
    assert script.numbers_by_line() == {3: [0], 4: [1, 2, 3, 4, 5, 6, 7, 8]}
    assert seen["places"] == [("after", 3), ("after", 6), ("after", 9)]
    assert seen["waited"] == ["gate", "gate", "behind"] * 3


def test_its_gate_is_told_from_one_within_the_loop(script: LoopScript, seen: dict[str, Any]) -> None:
    script.run(LEFT_OVER, **seen["names"])
    _, gates, _ = read_journal(script.folder / "journal")
    heads = {number: payload.load(gate, payload.GateJournal).heads for number, gate in gates.items()}
    assert heads == {7: 4, 8: -5}


def test_the_report_names_the_step_behind_the_loop(script: LoopScript, seen: dict[str, Any]) -> None:
    script.run(LEFT_OVER, **seen["names"])
    gaps = [gap for message in script.sent for gap in getattr(message, "gaps", ()) if gap.kind == "step-behind-loop"]
    assert {(gap.file.rpartition("/")[2], gap.line) for gap in gaps} == {("script.py", 9)}


def test_a_few_steps_in_a_loop_of_their_own_and_one_behind_it_are_one_step(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    script.run(CRITIC, **seen["names"])
    assert script.numbers_by_line() == {3: [0, 4, 5, 6], 4: [1, 2]}
    site = next(iter(script.tracker.boundary_sites))
    assert script.engine.updates.early.turns[site] == (3, 3)
    assert seen["places"][1:] == [("after", 5), ("after", 6), ("after", 7)]


def test_many_steps_in_a_loop_of_their_own_stay_steps(script: LoopScript, seen: dict[str, Any]) -> None:
    script.run(CRITIC.replace("range(3)", "range(17)"), **seen["names"])
    lines = script.numbers_by_line()
    assert lines[3] == [0]
    assert len(lines[4]) > 60
    assert seen["places"] == [("astray", 18), ("astray", 36), ("astray", 54), ("astray", 72)]


def test_a_step_behind_a_loop_of_another_function_that_has_returned_is_astray(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    source = """
def one_epoch():
    for batch in range(20):
        backward()
        if batch < 19: step()
def train():
    for epoch in range(2):
        one_epoch()
        step()
        note()
train()
"""
    script.run(source, **seen["names"])
    assert [place for place, _ in seen["places"]] == ["astray", "astray"]
