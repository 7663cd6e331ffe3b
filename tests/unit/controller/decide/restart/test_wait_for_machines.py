"""A job is started anew and a machine is missing: for how long it is waited for, and what then."""

from __future__ import annotations

from dataclasses import replace

from torchrelay.controller.decide.restart.wait_for_machines import MissingMachines, WaitAnswer, judge_wait

MISSING = MissingMachines((1,), waited_s=10.0, limit_s=600.0, lacking=2, places=2)


def test_when_all_are_there_it_begins() -> None:
    assert judge_wait(replace(MISSING, missing=())).answer is WaitAnswer.BEGIN


def test_a_machine_that_is_missing_is_waited_for_up_to_the_limit() -> None:
    verdict = judge_wait(MISSING)
    assert verdict.answer is WaitAnswer.WAIT
    waits, then = "the job is started anew, and waits for machine 1, for ", "; then the job goes on without"
    assert verdict.reason == f"{waits}up to 600 s (--machine-wait){then}"
    assert verdict.now == f"{waits}590 s more (--machine-wait){then}"
    endless = judge_wait(replace(MISSING, limit_s=0.0, waited_s=1e6))
    assert (endless.answer, "without end (--machine-wait 0)" in endless.reason) == (WaitAnswer.WAIT, True)


def test_then_it_goes_on_without_it_where_the_others_have_places() -> None:
    verdict = judge_wait(replace(MISSING, waited_s=600.0))
    assert verdict.answer is WaitAnswer.BEGIN_WITHOUT
    assert "with processes for 2 of its ranks on the machines that are there" in verdict.reason


def test_where_it_cannot_it_says_why_at_once_and_ends_at_the_limit() -> None:
    why = "the machines that are there have places for 1 of 2 further ranks"
    waits = judge_wait(replace(MISSING, places=1))
    assert waits.answer is WaitAnswer.WAIT
    assert waits.now.endswith(f"for 590 s more (--machine-wait); the job cannot go on without, and ends: {why}")
    ends = judge_wait(replace(MISSING, places=1, waited_s=600.0))
    assert ends.answer is WaitAnswer.END
    assert ends.reason.startswith("machine 1 did not come back within 600 s (--machine-wait)")
    assert why in ends.reason
