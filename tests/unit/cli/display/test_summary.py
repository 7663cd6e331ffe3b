from __future__ import annotations

import json
from functools import reduce

from jsonschema import validate
from support.repository_script import script

from torchrelay.cli.display.run_json import as_json
from torchrelay.cli.display.summary import (
    UNDER_WAY,
    RunSummary,
    faults_that_never_fired,
    fold,
    has_planned_without_migration,
)
from torchrelay.protocol import events
from torchrelay.protocol.options.faults import Fault, FaultKind
from torchrelay.protocol.words.phases import DOWNTIME_ROWS


def finished(migration: str, outcome: str = "committed", kind: str = "unplanned") -> events.MigrationFinished:
    return events.MigrationFinished(
        migration=migration,
        kind=kind,
        outcome=outcome,
        rank=1,
        spare="n0.s0",
        ranks=(1,),
        spares=("n0.s0",),
        steps_redone=1,
        downtime_s=dict.fromkeys(DOWNTIME_ROWS, 0.5) | {"checkpoint": 0.0},
        beside_s=0.0,
        transferred_bytes=4096,
        generation=1,
        reason="as decided",
    )


def folded(*happened: events.Occurrence) -> RunSummary:
    return reduce(lambda s, e: fold(s, e[1], 100.0 + e[0]), enumerate(happened), RunSummary())


def test_a_run_without_migrations_ends_with_what_it_was() -> None:
    summary = folded(
        events.JobStarted("ab", 3, 1, ("n0",)),
        events.Protection("protected", "any rank can be replaced"),
        events.ProgressMade(12, 3.5, 3, 1),
        events.JobFinished(0, "all ranks are done"),
    )
    assert (summary.world_size, summary.protection, summary.boundary, summary.exit_code) == (3, "protected", 12, 0)
    assert summary.ended_s - summary.started_s == 3.0
    assert summary.moves == ()


def test_a_migration_is_under_way_until_it_is_finished() -> None:
    started = events.MigrationStarted("m1", "unplanned", 1, "killed by SIGKILL", 1)
    during = folded(started, events.PhaseChanged("m1", "fence", 0.1))
    assert [(m.outcome, m.phase, m.ranks) for m in during.migrations] == [(UNDER_WAY, "fence", (1,))]
    after = fold(during, finished("m1"), 0.0)
    (migration,) = after.migrations
    assert (migration.outcome, migration.spares, migration.reason) == ("committed", ("n0.s0",), "killed by SIGKILL")
    assert migration.total_s == 0.5 * (len(DOWNTIME_ROWS) - 1)


def test_downtime_and_steps_count_committed_migrations_only() -> None:
    summary = folded(finished("m1"), finished("m2", "abandoned"), finished("m3"))
    assert summary.steps_redone == 2
    assert summary.downtime_s["detect"] == 1.0
    assert [m.migration for m in summary.moves] == ["m1", "m2", "m3"]


def test_entering_from_a_checkpoint_and_cleared_suspicions_are_no_migrations() -> None:
    summary = folded(finished("m1", kind="resume"), finished("m2", "cleared"))
    assert summary.moves == ()
    assert summary.migration("m2") is not None


def test_what_cannot_be_carried_over_is_kept_once() -> None:
    def report(rank: int) -> events.ReportMade:
        return events.ReportMade(rank, "train.py", 9, 1, 1, 1, ("open file x",), ())

    assert folded(report(0), report(1)).unprotected == ("open file x",)


def test_a_fault_that_was_asked_for_twice_has_to_fire_twice() -> None:
    kill, stop = Fault(FaultKind.KILL, 1, 5), Fault(FaultKind.STOP, 0, 7)
    summary = folded(events.FaultFired(str(kill), 1, 5))
    assert faults_that_never_fired([kill], summary) == []
    assert faults_that_never_fired([kill, kill, stop], summary) == [str(kill), str(stop)]


def test_a_planned_fault_without_a_migration_is_found_among_the_moves_that_were_not_made() -> None:
    planned, other = Fault(FaultKind.PLANNED, 1, 5), Fault(FaultKind.PLANNED, 2, 5)
    off = events.MoveNotMade("", 1, planned.as_asked, "the job was over")
    summary = folded(events.FaultFired(str(planned), 1, 5), off)
    assert has_planned_without_migration([planned], summary)
    assert not has_planned_without_migration([other], summary)
    assert list(as_json(summary, 76, [])["moves_not_made"]) == [
        {
            "migration": "",
            "rank": 1,
            "asked": "--inject planned:rank=1,step=5,phase=forward",
            "reason": "the job was over",
        }
    ]
    by_command = folded(events.MoveNotMade("m1", 1, "a new fan", "the job was over"))
    assert not has_planned_without_migration([planned], by_command)


def test_the_json_summary_has_totals_and_each_migration() -> None:
    kill = str(Fault(FaultKind.KILL, 1, 5))
    summary = folded(events.JobStarted("ab", 2, 1, ("n0",)), events.FaultFired(kill, 1, 5), finished("m1"))
    data = as_json(summary, 0, [])
    validate(json.loads(json.dumps(data)), script("generate_schemas").schemas()["run.schema.json"])
    assert data["run_id"] == "ab"
    assert data["steps_redone"] == 1
    assert data["downtime_total_s"] == 4.0
    assert data["faults_injected"] == (kill,)
    assert data["migrations"][0]["downtime_total_s"] == 4.0
    assert data["migrations"][0]["downtime_s"]["first_step"] == 0.5
