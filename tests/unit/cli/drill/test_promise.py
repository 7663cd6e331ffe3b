from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from torchrelay.cli.display.summary import RunSummary
from torchrelay.cli.drill import promise
from torchrelay.cli.drill.promise import outcome
from torchrelay.cli.struck_runs import classify
from torchrelay.cli.struck_runs.cells import Cell
from torchrelay.cli.struck_runs.classify import CellVerdict, Ran
from torchrelay.protocol import events
from torchrelay.protocol.messages import Coverage, RankGap

KILL = Cell("script", "backward", "kill", 1, 5)
PLANNED = Cell("script", "head", "planned", 1, 5)
STRUCK = events.FaultFired(KILL.faults[0], 1, 5)
ON, OFF = events.Protection("protected", "any rank"), events.Protection("unprotected", "the process group uses nccl")
LOST = CellVerdict(classify.LOST, "exit code 137")


def covered(level: str, *gaps: RankGap) -> events.CoverageKnown:
    coverage = Coverage(level, "because", "train.py", 3, (), tuple(gaps), (), *([0.0] * 4), *([0] * 4))
    return events.CoverageKnown(json.loads(json.dumps(dataclasses.asdict(coverage))))


def ran(*occurrences: Any) -> Ran:
    return Ran(137, RunSummary(), tuple(occurrences), (), True)


def gap(effect: str, *ranks: int) -> RankGap:
    return RankGap(ranks, "iterator", effect, "what it yields next cannot be captured", "train.py", 9)


def test_a_loss_although_all_was_promised_is_a_false_promise() -> None:
    found = outcome(KILL, ran(ON, covered("protected"), STRUCK), LOST)
    assert (found.outcome, found.reason) == (promise.FALSE_PROMISE, "exit code 137")


def test_the_words_that_count_are_those_before_the_fault() -> None:
    assert outcome(KILL, ran(ON, covered("protected"), STRUCK, OFF), LOST).outcome == promise.FALSE_PROMISE
    assert outcome(KILL, ran(ON, covered("protected"), OFF, STRUCK), LOST).outcome == promise.REFUSED


def test_a_loss_before_protection_was_on_was_announced() -> None:
    assert outcome(KILL, ran(STRUCK, ON), LOST).outcome == promise.REFUSED
    assert outcome(KILL, ran(OFF, STRUCK), LOST).reason == "not protected: the process group uses nccl"


def test_a_level_without_a_report_is_a_promise() -> None:
    assert outcome(KILL, ran(ON, STRUCK), LOST).outcome == promise.FALSE_PROMISE


def test_armed_ranks_are_no_promise_yet() -> None:
    armed = events.Protection("armed", "the training loop has not come round yet")
    found = outcome(KILL, ran(armed, STRUCK), LOST)
    assert (found.outcome, found.reason) == (
        promise.REFUSED,
        "not protected yet: the training loop has not come round yet",
    )


@pytest.mark.parametrize("effect", ["bars", "bars-later", "part-of-step", "alone"])
def test_a_gap_of_the_rank_announces_its_loss(effect: str) -> None:
    found = outcome(KILL, ran(ON, covered("partly", gap(effect, 1)), STRUCK), LOST)
    assert found.outcome == promise.REFUSED
    assert found.reason == "what it yields next cannot be captured (train.py:9)"


def test_a_gap_announces_nothing_of_what_goes_wrong_once_the_rank_has_been_replaced() -> None:
    replaced = events.MigrationFinished("m1", "unplanned", "committed", 1, "s", (1,), ("s",), 0, {}, 0.0, 0, 1, "")
    partly = covered("partly", gap("part-of-step", 1))
    assert outcome(KILL, ran(ON, partly, STRUCK, replaced), LOST).outcome == promise.FALSE_PROMISE
    assert outcome(KILL, ran(ON, partly, replaced, STRUCK), LOST).outcome == promise.REFUSED
    given_up = dataclasses.replace(replaced, outcome="abandoned")
    assert outcome(KILL, ran(ON, partly, STRUCK, given_up), LOST).outcome == promise.REFUSED


def test_a_gap_behind_the_update_announces_no_loss_in_front_of_it() -> None:
    partly = covered("partly", gap("behind-update", 1))
    for phase in ("forward", "backward"):
        cell = dataclasses.replace(KILL, phase=phase)
        assert outcome(cell, ran(ON, partly, STRUCK), LOST).outcome == promise.FALSE_PROMISE
    for phase in ("gate", "optimizer", "after-step", "data"):
        cell = dataclasses.replace(KILL, phase=phase)
        assert outcome(cell, ran(ON, partly, STRUCK), LOST).outcome == promise.REFUSED


@pytest.mark.parametrize("announced", [gap("left", 1), gap("goes-back", 1), gap("bars", 0)])
def test_gaps_that_do_not_bar_this_rank_announce_nothing(announced: RankGap) -> None:
    assert outcome(KILL, ran(ON, covered("partly", announced), STRUCK), LOST).outcome == promise.FALSE_PROMISE


def test_where_only_planned_moves_are_promised_a_planned_one_has_to_work() -> None:
    occurrences = (ON, covered("partly", gap("alone", 1)), STRUCK)
    assert outcome(PLANNED, ran(*occurrences), LOST).outcome == promise.FALSE_PROMISE


def test_wrong_numbers_are_wrong_whatever_was_announced() -> None:
    wrong = CellVerdict(classify.WRONG, "rank 0, step 6: other parameters")
    assert outcome(KILL, ran(OFF, STRUCK), wrong).outcome == promise.WRONG


def test_the_same_numbers_after_more_steps_are_told_apart() -> None:
    assert outcome(KILL, ran(ON, STRUCK), CellVerdict(classify.REDONE, "", 3)).outcome == promise.OTHERWISE
    assert outcome(KILL, ran(ON, STRUCK), CellVerdict(classify.IDENTICAL, "", 1)).outcome == promise.IDENTICAL


def test_a_fault_that_never_struck_judges_nothing_unless_protection_was_refused() -> None:
    never = CellVerdict(classify.NOT_INJECTED, "the fault never struck")
    assert outcome(KILL, ran(ON), never).outcome == promise.NOT_STRUCK
    assert outcome(KILL, ran(OFF), never).outcome == promise.REFUSED
    assert outcome(KILL, ran(ON, covered("partly", gap("part-of-step", 1))), never).outcome == promise.NOT_STRUCK
