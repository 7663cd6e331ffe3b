"""The facts of a run, folded from its events."""

from __future__ import annotations

import pytest
from support import told_runs as t

from torchrelay.dashboard import record as records
from torchrelay.dashboard.progress_line import ProgressLine
from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol import events as e
from torchrelay.protocol.words.rank_words import WAITS_FOR_SPARE


def test_who_holds_a_rank_follows_the_migrations() -> None:
    record = t.record_of(t.small_run())
    assert record.holders == {0: "n0.s0", 1: "n0.w1", 2: "n0.s1", 3: "n0.w3"}
    assert record.moved == {0: "m1", 2: "m2"}
    assert record.lost == {}


def test_without_holders_in_the_event_ranks_are_spread_as_run_does() -> None:
    record = t.record_of([(t.BEGAN_S, e.JobStarted("a", 4, 0, ("n0", "n1")))])
    assert record.holders == {0: "n0.w0", 1: "n0.w1", 2: "n1.w0", 3: "n1.w1"}
    odd = t.record_of([(t.BEGAN_S, e.JobStarted("a", 3, 0, ("n0", "n1")))])
    assert odd.holders == {}


def test_a_lost_rank_is_lost_until_it_is_taken_over() -> None:
    begun = t.record_of([*t.begins(), *t.kill(60)[:5]])
    assert begun.lost == {0: "its process n0.w0 was killed by SIGKILL"}
    assert begun.under_way is not None
    assert t.record_of([*t.begins(), *t.kill(60)]).lost == {}


def test_a_worker_that_is_ended_after_it_was_replaced_loses_no_rank() -> None:
    told = [*t.begins(), *t.kill(60), (t.BEGAN_S + 70, e.WorkerEnded("n0.w0", 0, 137, 9, False))]
    assert t.record_of(told).lost == {}


def test_after_a_restart_a_name_that_comes_again_is_another_migration() -> None:
    told = [
        *t.begins(),
        *t.kill(60),
        (t.BEGAN_S + 100, e.JobFell(1, 75, "no spare", 300, False, "", -1, "")),
        (t.BEGAN_S + 101, e.JobRestarted(1, "script", "", -1, 300, "no spare", ())),
        *[(time_s + 110, what) for time_s, what in t.begins()],
        *t.kill(200),
    ]
    record = t.record_of(told)
    assert list(record.migrations) == ["m1", "m1.1"]
    assert [restart.event.steps for restart in record.restarts] == [300]
    assert record.started_s == t.BEGAN_S


def test_a_controller_that_takes_over_ends_what_was_under_way() -> None:
    told = [*t.begins(), *t.kill(60)[:5], (t.BEGAN_S + 70, e.TakenOver("anew", "its controller ended"))]
    record = t.record_of(told)
    assert record.under_way is None
    assert record.migrations["m1"].outcome == "abandoned"


def test_a_watcher_that_came_late_takes_the_end_of_a_migration_that_it_has_not_seen_begin() -> None:
    record = t.record_of([*t.begins(), t.kill(60)[-1]])
    assert record.migrations["m1"].outcome == "committed"


def test_memory_is_bounded_however_many_migrations_there_are() -> None:
    record = t.record_of(t.begins())
    for n in range(records.Bounds.migrations + 50):
        for time_s, what in t.kill(60.0 + 2 * n, f"m{n + 1}"):
            record.take(what, time_s)
    assert len(record.migrations) == records.Bounds.migrations
    assert record.totals.by_outcome == {"committed": records.Bounds.migrations + 50}
    chatty = RunRecord()
    chatty.take(e.MigrationStarted("m1", "unplanned", 0, "", 1), t.BEGAN_S)
    for _ in range(1000):
        chatty.take(e.Decision("m1", "again"), t.BEGAN_S)
    assert len(chatty.migrations["m1"].heard) == records.Bounds.heard


def test_the_quarantine_holds_what_the_policy_put_there_until_it_is_cleared() -> None:
    told = [*t.begins(), *t.bad_gpu(60, 2)]
    record = t.record_of(told)
    assert record.quarantine[t.GPU].rule == "xid-94"
    record.take(e.QuarantineCleared(t.GPU, "repaired"), t.BEGAN_S + 70)
    assert record.quarantine == {}
    observed = t.record_of([*t.begins(), *t.bad_gpu(60, 2, outcome="observed")])
    assert observed.quarantine == {}


def test_a_line_of_a_long_run_has_few_points_evenly_spread_and_keeps_its_ends() -> None:
    line = ProgressLine(most=100)
    for second in range(100_000):
        line.add(float(second), second * 2)
    assert len(line.points) <= 100
    assert line.points[0] == (0.0, 0)
    assert line.points[-1] == (99_999.0, 199_998)
    gaps = [b[0] - a[0] for a, b in zip(line.points, line.points[1:-1])]
    assert max(gaps) < 100_000 / 100 * 6


def test_a_line_falls_where_all_began_anew() -> None:
    line = ProgressLine()
    line.add(0.0, 0)
    line.add(10.0, 50)
    line.go_back(12.0, 20)
    assert line.points == [(0.0, 0), (10.0, 50), (12.0, 50), (12.0, 20)]


@pytest.mark.parametrize(
    ("since", "left"),
    [
        (e.QuarantineCleared("n0", "it may stay"), ["another"]),
        (t.finished("m1", "planned", "committed", 0, "n0.s0"), ["waits on 1", "another"]),
        (e.Log("info", "it rains"), ["waits on 0", "waits on 1", "another"]),
    ],
)
def test_a_move_that_waited_is_forgotten_once_it_is_made_or_not_wanted_any_more(
    since: e.Occurrence, left: list[str]
) -> None:
    record = t.record_of(t.begins())
    for rank in (0, 1):
        record.take(e.MoveNotMade("", rank, f"waits on {rank}", f"no spare; {WAITS_FOR_SPARE}"), t.BEGAN_S + 40)
    record.take(e.MoveNotMade("", 2, "another", "the job was over"), t.BEGAN_S + 41)
    record.take(since, t.BEGAN_S + 42)
    assert [move.asked for move in record.not_made] == left
