"""Ways that a run has taken after losses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchrelay.cli.display.run_json import as_json
from torchrelay.cli.display.rungs import in_words, restart_in_words, rung_of, rungs_taken
from torchrelay.cli.display.summary import MigrationSummary, RestartSummary, RunSummary
from torchrelay.cli.display.told_json import status_of
from torchrelay.cli.folders.folder import KnownRun, RungTaken
from torchrelay.protocol.messages import JobStatus

LOST = MigrationSummary(
    "m1",
    "unplanned",
    (1,),
    "killed",
    outcome="committed",
    spares=("n0.s0",),
    steps_redone=1,
    downtime_s={"detect": 0.5},
)
RESTART = RestartSummary(1, "jit-checkpoint", "jit/ab-step30", 30, 0, "rank 1 was killed", down_s=2.5)


@pytest.mark.parametrize(
    ("kind", "outcome", "spares", "rung"),
    [
        ("unplanned", "committed", ("n0.s0",), "next-spare"),
        ("unplanned", "committed", ("n0.r0",), "respawn"),
        ("unplanned", "committed", ("n0.s0", "n1.r12"), "respawn"),
        ("rollback", "committed", ("n0.r0", "n0.r1"), "copies"),
        ("unplanned", "checkpoint", (), ""),
        ("unplanned", "under way", (), ""),
        ("planned", "committed", ("n0.s0",), ""),
        ("resume", "committed", ("n0.w0",), ""),
        ("save", "saved", (), ""),
    ],
)
def test_a_migration_that_made_a_loss_good_took_one_way(
    kind: str, outcome: str, spares: tuple[str, ...], rung: str
) -> None:
    assert rung_of(replace(LOST, kind=kind, outcome=outcome, spares=spares)) == rung


def test_ways_are_counted_with_their_cost_in_the_order_in_which_they_are_tried() -> None:
    summary = RunSummary(
        migrations=(
            replace(LOST, kind="rollback", steps_redone=8),
            replace(LOST, spares=("n0.r0",)),
            LOST,
            replace(LOST, spares=("n0.r1",), downtime_s={"detect": 0.25, "prepare": 1.0}),
        ),
        restarts=(RESTART, replace(RESTART, rung="script", steps=12, down_s=None), RESTART),
    )
    assert rungs_taken(summary) == (
        RungTaken("next-spare", 1, 1, 0.5),
        RungTaken("respawn", 2, 2, 1.75),
        RungTaken("copies", 1, 8, 0.5),
        RungTaken("jit-checkpoint", 2, 0, 5.0),
        RungTaken("script", 1, 12, 0.0),
    )
    assert in_words(rungs_taken(summary)[:2]) == [
        "next-spare: 1 time, 1 step done again, 0.5 s",
        "respawn: 2 times, 2 steps done again, 1.8 s",
    ]


def test_a_restart_is_told_with_its_way_its_place_its_cost_and_its_reason() -> None:
    assert restart_in_words(RESTART) == "1 (jit-checkpoint): at step 30, 0 steps lost, 2.5 s: rank 1 was killed"
    anew = RestartSummary(2, "script", "", -1, 1, "all ranks were killed")
    assert restart_in_words(anew) == "2 (script): from the script's beginning, 1 step lost: all ranks were killed"


def test_the_summary_for_programs_counts_them_too() -> None:
    told = as_json(RunSummary(migrations=(LOST,), restarts=(RESTART,)), 0, ())
    assert told["rungs"] == (
        {"rung": "next-spare", "times": 1, "steps": 1, "seconds": 0.5},
        {"rung": "jit-checkpoint", "times": 1, "steps": 0, "seconds": 2.5},
    )


def test_status_for_programs_has_what_is_written_down_of_them() -> None:
    taken = (RungTaken("respawn", 2, 2, 3.5),)
    run = KnownRun("ab", "ab", "127.0.0.1", 1, (), (), ("1 (script): lost",), taken)
    told = status_of(JobStatus("ab", 1, 0, 1, 1, "protected", "", 1.5, 0, "", ()), run)
    assert (told.rungs, told.restarts) == (taken, ("1 (script): lost",))
