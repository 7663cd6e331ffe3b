"""The story of a migration in words."""

from __future__ import annotations

import pytest
from support import told_runs as t

from torchrelay.dashboard import story
from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol import events as e


def told(record: RunRecord, key: str = "m1", now_s: float = t.BEGAN_S + 100) -> story.ToldMigration:
    return story.tell(record, record.migrations[key], now_s)


def test_a_killed_rank_is_told_from_what_was_seen_to_what_it_cost() -> None:
    s = told(t.record_of([*t.begins(), *t.kill(60)]))
    assert s.title == "Rank 0 was lost and replaced"
    assert s.tone == "well"
    assert s.summary == (
        "Rank 0 (n0.w0) was killed by SIGKILL. Rank 0 is held by n0.s0 now. Training stood still for 1.6 s; 1 step was done again."
    )
    seen = s.lines[0]
    assert (seen.kind, seen.who) == ("seen", "the agent on n0")
    assert seen.text == "Process n0.w0, which held rank 0, was killed by SIGKILL."
    assert seen.after_s < 0
    assert s.lines[1].text == "A replacement begins. Why: rank 0 (n0.w0) was killed by SIGKILL."
    assert "Spare n0.s0 takes over rank 0, on the same node; 1 left after that." in [line.text for line in s.lines]
    assert s.lines[-1].text == "It is done: every rank has done a step since."
    assert s.costs[0] == "Training stood still for 1.6 s."
    assert "Most of it was preparing the new process: 0.77 s (49%)." in s.costs
    assert "Over 4 ranks that is 6.3 s of process time." in s.costs


def test_each_phase_says_how_long_it_took() -> None:
    s = told(t.record_of([*t.begins(), *t.kill(60)]))
    took = {line.text: line.took_s for line in s.lines if line.took_s is not None}
    assert took["The new process runs the script's set-up for this rank."] == pytest.approx(0.77)
    assert took["The new process has the rank; all go on and do the next step."] == pytest.approx(0.29)


def test_the_rule_that_moved_a_rank_is_named_and_what_is_left_to_do() -> None:
    record = t.record_of(t.small_run())
    s = told(record, "m2")
    assert s.title == "Rank 2 moved"
    watch = s.lines[0]
    assert watch.who == "the health watch on n0"
    assert "The row “xid-94” of the fault policy says: move the rank while it still runs" in watch.text
    assert f"no rank is given to {t.GPU} any more" in watch.text
    assert s.to_do == (f"Look at {t.GPU}, which is in quarantine. Clear it when it is well.",)
    record.take(e.QuarantineCleared(t.GPU, "repaired"), t.BEGAN_S + 200)
    assert told(record, "m2").to_do == ()


def test_a_bar_has_what_was_prepared_beside_training_and_all_of_the_standstill() -> None:
    record = t.record_of(t.small_run())
    beside, *stood = told(record, "m2").bar
    assert (beside.row, beside.seconds, beside.stood) == ("beside", 1.4, False)
    assert all(s.stood for s in stood)
    assert [s.row for s in stood] == ["quiesce", "transfer", "rebuild", "verify", "fence", "first_step"]
    assert sum(s.seconds for s in stood) == pytest.approx(record.migrations["m2"].downtime_s)


def test_while_it_is_under_way_the_bar_grows_and_the_summary_says_what_goes_on() -> None:
    s = told(t.record_of([*t.begins(), *t.kill(60)[:6]]), now_s=t.BEGAN_S + 63)
    assert s.title == "Rank 0 is being replaced"
    assert s.tone == "working"
    assert "The new process runs the script's set-up for this rank." in s.summary
    assert "Under way for 3.0 s. Training stands still." in s.summary
    assert [(b.row, round(b.seconds, 2)) for b in s.bar] == [("fence", 0.06), ("prepare", 2.94)]


def test_a_planned_move_prepares_while_training_goes_on() -> None:
    moving = t.move(60, "m1", 2, "n0.w2", "n0.s0", "the node needs a new fan")[:3]
    s = told(t.record_of([*t.begins(), *moving]), now_s=t.BEGAN_S + 61)
    assert s.summary.endswith("Under way for 1.0 s. Training goes on meanwhile.")
    assert [b.stood for b in s.bar] == [False]


@pytest.mark.parametrize(
    ("kind", "outcome", "title", "tone"),
    [
        ("planned", "abandoned", "Rank 1 has not moved", "notice"),
        ("unplanned", "abandoned", "Rank 1 could not be replaced", "act"),
        ("unplanned", "checkpoint", "Rank 1 could not be replaced; the state is saved", "act"),
        ("unplanned", "cleared", "Rank 1 seemed to hang, and moved again", "well"),
        ("rollback", "committed", "All ranks went back to copies", "well"),
        ("resume", "committed", "All ranks entered from a checkpoint", "well"),
    ],
)
def test_every_end_has_a_title_and_says_whether_a_person_is_needed(
    kind: str, outcome: str, title: str, tone: str
) -> None:
    begun = e.MigrationStarted("m1", kind, 1, "rank 1 (n0.w1) hangs", 1)
    end = t.finished("m1", kind, outcome, 1, "", reason="no spare is left")
    s = told(t.record_of([*t.begins(), (t.BEGAN_S + 60, begun), (t.BEGAN_S + 62, end)]))
    assert (s.title, s.tone) == (title, tone)
    if outcome in ("abandoned", "checkpoint"):
        assert "no spare is left" in s.summary.lower()


def test_a_planned_move_that_becomes_a_replacement_says_so() -> None:
    told_events = [
        *t.begins(),
        *t.move(60, "m1", 2, "n0.w2", "n0.s0", "fan")[:3],
        (t.BEGAN_S + 61, e.MigrationStarted("m1", "unplanned", 3, "rank 3 (n0.w3) was killed by SIGKILL", 2)),
    ]
    s = told(t.record_of(told_events))
    assert s.title == "Ranks 2 and 3 are being replaced"
    assert "It turns into an unplanned one, rank 3 is lost too: rank 3 (n0.w3) was killed by SIGKILL." in [
        line.text for line in s.lines
    ]


def test_what_a_policy_that_only_observes_would_have_done_is_told_as_not_done() -> None:
    (_, seen), *_ = t.bad_gpu(60, 1, outcome="observed")
    assert isinstance(seen, e.HealthVerdict)
    assert story.verdict(seen).endswith("says: move the rank while it still runs. Not done: this is only observed")


def test_an_event_of_another_rank_is_not_part_of_the_story() -> None:
    other = (t.BEGAN_S + 59, e.Suspected(3, "it is silent", "", ()))
    s = told(t.record_of([*t.begins(), other, *t.kill(60)]))
    assert not any("Rank 3 seems" in line.text for line in s.lines)
    own = (t.BEGAN_S + 59, e.Suspected(0, "it is silent", "", ()))
    s = told(t.record_of([*t.begins(), own, *t.kill(60)]))
    assert any("Rank 0 seems to hang: it is silent" in line.text for line in s.lines)
