"""A device that computes wrongly once: the number is seen before the update, and another device does the step again."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import only_in_long
from support.relay_run import Finished, relay
from support.training import differences

SCRIPT, RANKS, STEP = "faulty.py", 3, 13
EXIT_SUSPECT_NUMBER = 77


def run_with(tmp_path: Path, where: str, *watches: str, once: bool = True, steps: int = 20) -> Finished:
    wrong = {"WRONG": f"{where}:1:{STEP}"} | ({"WRONG_ONCE": str(tmp_path / "once")} if once else {})
    options = [f"--watch={watch}" for watch in watches]
    return relay(tmp_path, SCRIPT, str(steps), ranks=RANKS, options=options, environment=wrong)


def verdicts(run: Finished) -> list[tuple[str, list[int], str]]:
    return [(v["action"], v["ranks"], v["reason"]) for v in run.named("health_verdict") if v["rule"] == "number"]


@pytest.mark.core
@pytest.mark.parametrize(
    ("where", "watch", "said"),
    [
        ("loss", "loss:action=retry", f"loss of step {STEP} is nan"),
        ("gradient", "grad-norm:action=retry,over=10", f"grad-norm of step {STEP} is"),
    ],
)
def test_a_wrong_number_of_one_rank_is_computed_again_by_another_device(
    where: str, watch: str, said: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = run_with(tmp_path, where, watch)
    assert run.status == 0, run.told()
    ((action, ranks, reason),) = verdicts(run)
    assert (action, ranks) == ("replace", [1]), run.told()
    assert said in reason
    (migration,) = run.committed()
    assert (migration["ranks"], migration["steps_redone"]) == ([1], 1), run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()


def test_a_number_that_another_device_computes_too_is_the_program_s_own(tmp_path: Path) -> None:
    run = run_with(tmp_path, "loss", "loss:action=retry", once=False)
    assert run.status == 0, run.told()
    first, second, *_ = verdicts(run)
    assert (first[0], second[0]) == ("replace", "watch"), run.told()
    assert "the same on another device" in second[2], run.told()
    assert len(run.committed()) == 1, run.told()


@only_in_long
def test_a_job_that_is_to_stop_stops_before_the_update(tmp_path: Path) -> None:
    run = run_with(tmp_path, "loss", "loss:action=stop")
    assert run.status == EXIT_SUSPECT_NUMBER, run.told()
    ((action, ranks, reason),) = verdicts(run)
    assert (action, ranks) == ("stop", [1]), run.told()
    assert reason == f"loss of step {STEP} is nan; stopped before the update"
    assert [int((run.out / f"updates-{rank}").read_text()) for rank in range(RANKS)] == [STEP - 1] * RANKS, run.told()


@only_in_long
def test_an_alert_changes_nothing(tmp_path: Path) -> None:
    # At boundary 16 replicas are compared anyway, and the policy would do something about it.
    run = run_with(tmp_path, "gradient", "grad-norm:over=10", "loss", steps=STEP + 2)
    assert run.status == 0, run.told()
    assert verdicts(run)[0][:2] == ("watch", [1]), run.told()
    assert run.committed() == [], run.told()


def test_replicas_that_differ_name_the_rank_that_disagrees(tmp_path: Path) -> None:
    run = run_with(tmp_path, "parameter", "replicas:action=stop,every=1")
    assert run.status == EXIT_SUSPECT_NUMBER, run.told()
    (verdict,) = run.named("health_verdict")
    assert (verdict["rule"], verdict["action"], verdict["ranks"]) == ("replicas", "stop", [1]), run.told()
    assert f"differ after step {STEP}" in verdict["reason"], run.told()
