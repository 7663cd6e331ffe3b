"""Ranks that stop making progress: found in time, named with their Python stack, replaced without a trace; slow ones left alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import Finished, assert_unharmed, relay
from support.training import steps_done

SCRIPT, RANKS = "ddp.py", 3
DETECTION_S = 5.0
"""What is added to three steps, in docs/transparency.md."""
SLACK_S = 4.0
"""For a loaded machine, on which every look comes late."""

STRAGGLERS_ARE_WATCHED = """
rules:
  slow: {signal: straggler, at_least: 1.5, clear: 1.2, for_s: 30, verdict: watch, why: slow, source: this test}
"""
"""A rank that is slow most of the time is moved otherwise, and rightly so."""


def suspicion(run: Finished, rank: int) -> tuple[str, list[str]]:
    """Reason and stack of the one suspicion that led to a migration."""
    (event,) = run.named("suspected")
    assert event["rank"] == rank, run.told()
    return event["reason"], event["stack"]


CELLS = [
    pytest.param(
        "spin:rank=0,step=15,phase=backward", "runs in circles", "backward (", id="endless loop in a backward"
    ),
    pytest.param("deadlock:rank=1,step=15,phase=data", "only it could bring about", "main (", id="deadlocked loader"),
    pytest.param("lonely:rank=2,step=15,phase=backward", "do not take part in", "backward (", id="lonely collective"),
    pytest.param("stop:rank=2,step=15,phase=forward", "stopped (state T)", "main (", id="stopped"),
    pytest.param("spin:rank=1,step=15,phase=forward", "runs in circles", "main (", id="endless loop"),
    pytest.param(
        "spin:rank=1,step=15,phase=after-step", "runs in circles", "main (", id="endless loop behind the step"
    ),
]


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(("fault", "reason", "call"), few(1, CELLS))
def test_a_rank_that_hangs_is_named_and_replaced(
    fault: str, reason: str, call: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
    rank = int(fault.partition("rank=")[2][0])
    why, stack = suspicion(run, rank)
    assert reason in why
    assert any(line.startswith(call) for line in stack), stack
    assert any(f"{SCRIPT}:" in line for line in stack), stack
    assert run.committed()[0]["downtime_s"]["detect"] < DETECTION_S + SLACK_S


HANGS_IN_A_MIGRATION = 60.0
"""Less than the 120 s that ranks have to come to a stand, with two set-ups on a loaded machine."""


@pytest.mark.slow
def test_a_rank_that_hangs_when_another_one_is_lost_does_not_keep_the_others_standing(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    faults = ["spin:rank=0,step=15,phase=data", "kill:rank=1,step=15,phase=data"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, 1)
    (moved,) = run.committed()
    assert sorted(moved["ranks"]) == [0, 1]
    assert sum(moved["downtime_s"].values()) < HANGS_IN_A_MIGRATION, moved


@pytest.mark.slow
@pytest.mark.parametrize("rank", few(1, [0, 1]))
def test_of_two_ranks_the_one_that_is_deadlocked_in_its_backward_is_replaced_and_not_its_peer(
    rank: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = f"deadlock:rank={rank},step=15,phase=backward"
    run = relay(tmp_path, SCRIPT, ranks=2, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=2), 2, [fault], 1)
    why, stack = suspicion(run, rank)
    assert f"while rank {1 - rank} waits" in why
    assert stack[0].startswith("_wait_for_nobody ("), stack
    assert run.committed()[0]["downtime_s"]["detect"] < DETECTION_S + SLACK_S


@only_in_long
@pytest.mark.parametrize("rank", few(1, [0, 1]))
def test_of_two_ranks_the_one_whose_c_code_keeps_the_interpreter_s_lock_is_replaced_and_not_its_peer(
    rank: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Its own threads cannot answer where it stands, and both ranks count as waiting, since both are in a backward."""
    locked = {"LOCKED": str(rank), "STRUCK": str(tmp_path / "struck")}
    run = relay(tmp_path, "locked_in_c.py", ranks=2, environment=locked)
    assert_unharmed(run, undisturbed("locked_in_c.py", ranks=2), 2, [], 1)
    why, _ = suspicion(run, rank)
    assert f"in C code that keeps the interpreter's lock while rank {1 - rank} waits" in why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "phase"),
    few(1, [("reentrant", "forward"), ("summed", "backward")]),
)
def test_a_stopped_rank_is_found_while_others_wait_in_a_backward_with_another_wait_inside(
    kind: str, phase: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The inner wait, in a backward of its own or in a communication, is over while the outer one goes on."""
    fault = f"stop:rank=1,step=7,phase={phase}"
    run = relay(tmp_path, "hooks.py", kind, ranks=2, inject=[fault])
    assert_unharmed(run, undisturbed("hooks.py", kind, ranks=2), 2, [fault], 1)
    why, _ = suspicion(run, 1)
    assert "stopped (state T)" in why


def test_ranks_that_keep_others_waiting_for_good_reasons_are_left_alone(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(STRAGGLERS_ARE_WATCHED)
    run = relay(tmp_path, "slow_phases.py", ranks=2, options=["--health-policy", str(policy)])
    assert run.status == 0, run.told()
    assert run.named("suspected") == [], run.told()
    assert run.named("migration_started") == []
    assert steps_done(run.out) == 30
    longest_s = max(later["time_s"] - earlier["time_s"] for earlier, later in itertools.pairwise(run.named("progress")))
    assert longest_s > DETECTION_S, "nothing was slow"
