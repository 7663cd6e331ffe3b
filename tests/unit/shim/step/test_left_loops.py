from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from support.forked import forked
from support.loop_script import LOST, LoopScript

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.protocol.journals.journal import read_journal
from torchrelay.protocol.messages import Plan
from torchrelay.shim.capture import rng
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.step.left_loops import HeadsToPass
from torchrelay.shim.step.step_state import StepPosition


@pytest.fixture
def seen(script: LoopScript) -> dict[str, Any]:
    """What scripts here call: `call` is a collective, `look` notes where the rank would stand."""
    engine, noted = script.engine, []

    def call(name: str) -> None:
        engine.collective_begins()
        noted.append(engine.mode())
        engine.record(FinishedCollective(name, "0", []))

    def look() -> None:
        engine.left.pass_over()
        position = engine.standing_position()
        noted.append((position, engine.commit.boundary if engine.commit else -1, engine.step.gates_passed))

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


def written(script: LoopScript) -> dict[int, bool]:
    boundaries, _, _ = read_journal(script.folder / "journal")
    return {number: bool(payload) for number, payload in boundaries.items()}


@pytest.mark.parametrize(
    ("loop", "behind"),
    [(BREAK, ""), (RETURN, ""), (WHILE, 'call("behind")'), (BREAK, 'call("behind")')],
    ids=["break", "return", "while", "break and a collective"],
)
def test_nobody_can_come_in_at_the_head_where_the_loop_was_left(
    loop: str, behind: str, script: LoopScript, seen: dict[str, Any]
) -> None:
    """A `for` tells at once; a `while` when something is communicated behind it."""
    script.run(loop + behind, **seen)
    assert written(script) == {0: True, 1: True, 2: False}


@pytest.mark.parametrize("source", [WHILE, "for batch in range(2):\n    step()"], ids=["while", "at its end"])
def test_a_boundary_whose_loop_goes_on_stays(source: str, script: LoopScript, seen: dict[str, Any]) -> None:
    script.run(source, **seen)
    assert all(written(script).values())


def test_a_forked_process_that_lets_the_iterator_go_withdraws_nothing(script: LoopScript, seen: dict[str, Any]) -> None:
    def fork() -> None:
        commit = script.engine.commit
        activation = commit.activation if commit else script.tracker.stack[0]
        assert os.waitpid(forked(lambda: script.engine.ended(activation)), 0)[1] == 0

    script.run("for batch in range(3):\n    fork()\n    step()", **seen, fork=fork)
    assert all(written(script).values())


def test_another_loop_that_ends_in_front_of_a_step_withdraws_nothing(script: LoopScript, seen: dict[str, Any]) -> None:
    def end_another() -> None:
        script.engine.ended(Activation("another.py:1", sys._getframe(), rng.capture(), 1))

    script.run("for batch in range(3):\n    end_another()\n    step()", **seen, end_another=end_another)
    assert all(written(script).values())


def test_an_iterator_that_is_let_go_on_another_thread_withdraws_nothing(
    script: LoopScript, seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.engine, "on_training_thread", lambda: False)
    script.run(BREAK, **seen)
    assert all(written(script).values())


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
        compute=lambda: script.engine.step.computed_gradients(),
    )
    assert seen["noted"] == [("astray", 2, 2)]


def test_a_loop_that_is_left_between_two_updates_of_a_step_cannot_be_gone_past(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    source = BREAK.replace("        break", "        first_update()\n        break") + "look()"
    script.run(source, **seen, first_update=lambda: setattr(script.engine.updates, "_done", 1))
    assert seen["noted"][-1] == ("astray", 2, 2)


def test_behind_its_own_gate_and_in_a_joiner_s_step_no_loop_counts_as_left(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    engine = script.engine

    def look_as(position: str, shadow: Any) -> None:
        before = engine.step.position, engine.shadow
        engine.step.position, engine.shadow = StepPosition[position], shadow
        seen["noted"].append(engine.left.is_left())
        engine.step.position, engine.shadow = before

    script.run(BREAK + "look_as('GATE', None)\nlook_as('BODY', True)\nlook_as('BODY', None)", **seen, look_as=look_as)
    assert seen["noted"][3:] == [False, False, True]


def test_in_a_for_loop_a_collective_costs_no_look_at_the_frames(
    script: LoopScript, seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call_blind() -> None:
        with monkeypatch.context() as blind:
            blind.setattr(script.tracker, "around", None)
            seen["call"]("inside")

    script.run("for batch in range(3):\n    call_blind()\n    step()", **seen, call_blind=call_blind)
    assert seen["noted"] == ["record"] * 3


def test_asking_how_a_collective_is_done_or_where_the_rank_stands_changes_nothing(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    engine, asked = script.engine, list[Any]()

    def ask() -> None:
        commit, after = engine.commit, len(engine.records.after)
        asked.extend([engine.mode(), engine.standing_position()])
        assert engine.commit is commit
        assert len(engine.records.after) == after
        assert (engine.left.place, engine.step.position) == ("", StepPosition.BODY)
        assert written(script)[2]

    script.run(WHILE + "ask()\nlook()", **seen, ask=ask)
    assert asked == ["repeat", "left"]
    assert seen["noted"][-1] == ("left", 1, 2)


@pytest.mark.parametrize("begins", ["communication_begins", "collective_begins"])
def test_a_head_is_passed_over_where_something_is_communicated_behind_its_loop(
    begins: str, script: LoopScript, seen: dict[str, Any]
) -> None:
    script.run(WHILE + "begin()", **seen, begin=getattr(script.engine, begins))
    assert script.engine.commit is not None
    assert (script.engine.commit.boundary, script.engine.step.position) == (1, StepPosition.AFTER)


def test_a_loop_that_is_left_before_any_step_has_none_before_it(script: LoopScript, seen: dict[str, Any]) -> None:
    script.run("for batch in range(3):\n    if not batch:\n        break\n    step()\nlook()", **seen)
    assert seen["noted"] == [("astray", 0, 0)]


def test_a_forward_that_is_interrupted_behind_it_cannot_be_called_again(
    script: LoopScript, seen: dict[str, Any]
) -> None:
    script.goes_back = False
    with pytest.raises(UnsupportedError, match="after the optimizer step"):
        script.run(BREAK + "forward()", **seen, forward=lambda: script.engine.interrupted_for_good(RuntimeError(LOST)))
    assert script.stood == ["once"]


def test_what_a_step_that_is_done_again_has_written_past_torch_is_found_when_its_loop_is_left(
    script: LoopScript, seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        raise StateMismatchError("written to")

    source = BREAK.replace("        break", "        redone()\n        break") + 'call("behind")'
    with pytest.raises(StateMismatchError, match="written to"):
        script.run(source, **seen, redone=lambda: monkeypatch.setattr(script.engine.again, "leave", leave))
    assert seen["noted"] == ["record"] * 3


def test_a_joiner_goes_past_the_heads_at_which_others_have_left_loops_up_to_the_last() -> None:
    plan, heads = Plan(1, 6, "shadow", donor_collectives=2, left="eval#1"), HeadsToPass()
    assert heads.is_one(plan, "train#1")
    assert heads.is_one(plan, "eval#1")
    for further in ("train#2", "eval#1"):
        with pytest.raises(StateMismatchError, match="goes on here"):
            heads.is_one(plan, further)


def test_a_joiner_does_not_go_past_a_head_twice() -> None:
    plan, heads = Plan(1, 6, "shadow", place="train#2"), HeadsToPass()
    assert heads.is_one(plan, "train#1")
    with pytest.raises(StateMismatchError, match="goes on here"):
        heads.is_one(plan, "train#1")
    assert not heads.is_one(plan, "train#2")


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan(1, 6, "shadow", donor_collectives=2), id="the donor stands in the step itself"),
        pytest.param(Plan(1, 6, "shadow", place="train#1"), id="the others meet here"),
        pytest.param(Plan(1, 6, "shadow"), id="nobody is there yet"),
    ],
)
def test_a_joiner_stops_at_the_next_head_where_the_others_have_not_left_the_loop(plan: Plan) -> None:
    assert not HeadsToPass().is_one(plan, "train#1")


OPENED_ANEW = """
import torch
from torch.utils.data import Dataset

class Exclusive(Dataset):
    is_open = False
    def __init__(self):
        assert not Exclusive.is_open, "it is open"
        Exclusive.is_open = True
        self.items = [1, 2, 3]
    def __getitem__(self, place):
        return self.items[place]
    def __del__(self):
        Exclusive.is_open = False

class Holder:
    def __init__(self):
        self.data = Exclusive()

def read():
    data = Exclusive()
    seen = 0
    for item in range(3):
        seen += len(data.items)
        step()

def held():
    holder = Holder()
    for item in range(3):
        holder.item = item
        step()

def loop_in_a_loop():
    data = Exclusive()
    for again in range(2):
        for item in range(2):
            again += len(data.items)
            step()

for epoch in range(3):
    train()
look()
"""


@pytest.mark.parametrize("train", ["read", "held", "loop_in_a_loop"])
def test_what_a_function_held_that_has_returned_is_let_go_of_at_the_head_of_the_loop_around_it(
    train: str, script: LoopScript, seen: dict[str, Any]
) -> None:
    script.run(OPENED_ANEW.replace("train()", f"{train}()"), **seen)
    assert script.engine.step.gates_passed == (12 if train == "loop_in_a_loop" else 9)
    assert script.engine.tracker.boundary_sites


def test_what_a_function_holds_that_runs_is_kept(script: LoopScript, seen: dict[str, Any]) -> None:
    text = OPENED_ANEW.replace("for epoch in range(3):\n    train()\n", "loop_in_a_loop()\n")
    kept: list[int] = []

    def count() -> None:
        kept.append(sum(type(node.obj).__name__ == "Exclusive" for node in script.engine.commit.state.nodes))

    script.run(
        text.replace("    for again in range(2):\n", "    for again in range(2):\n        count()\n"),
        count=count,
        **seen,
    )
    assert kept[-1] == 1
