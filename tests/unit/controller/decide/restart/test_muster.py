"""A job is started anew and a machine is missing: for how long it is waited for, and what then."""

from __future__ import annotations

from dataclasses import replace

from torchrelay.controller.decide.restart.muster import Muster, MusterAnswer, judge_muster

MISSING = Muster((1,), waited_s=10.0, limit_s=600.0, lacking=2, places=2)


def test_when_all_are_there_it_begins() -> None:
    assert judge_muster(replace(MISSING, missing=())).answer is MusterAnswer.BEGIN


def test_a_machine_that_is_missing_is_waited_for_up_to_the_limit() -> None:
    verdict = judge_muster(MISSING)
    assert verdict.answer is MusterAnswer.WAIT
    waits, then = "the job is started anew, and waits for machine 1, for ", "; then the job goes on without"
    assert verdict.reason == f"{waits}up to 600 s (--machine-wait){then}"
    assert verdict.now == f"{waits}590 s more (--machine-wait){then}"
    endless = judge_muster(replace(MISSING, limit_s=0.0, waited_s=1e6))
    assert (endless.answer, "without end (--machine-wait 0)" in endless.reason) == (MusterAnswer.WAIT, True)


def test_then_it_goes_on_without_it_where_the_others_have_places() -> None:
    verdict = judge_muster(replace(MISSING, waited_s=600.0))
    assert verdict.answer is MusterAnswer.BEGIN_WITHOUT
    assert "with processes for 2 of its ranks on the machines that are there" in verdict.reason


def test_where_it_cannot_it_says_why_at_once_and_ends_at_the_limit() -> None:
    why = "the machines that are there have places for 1 of 2 further ranks"
    waits = judge_muster(replace(MISSING, places=1))
    assert waits.answer is MusterAnswer.WAIT
    assert waits.now.endswith(f"for 590 s more (--machine-wait); the job cannot go on without, and ends: {why}")
    ends = judge_muster(replace(MISSING, places=1, waited_s=600.0))
    assert ends.answer is MusterAnswer.END
    assert ends.reason.startswith("machine 1 did not come back within 600 s (--machine-wait)")
    assert why in ends.reason
