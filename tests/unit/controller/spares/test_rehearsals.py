from __future__ import annotations

import pytest

from torchrelay.controller.spares.rehearsals import (
    READING_S,
    RUNNING_S,
    STARTING_S,
    Began,
    Disturbed,
    End,
    JournalCame,
    Judged,
    NoProcess,
    ProcessReady,
    ReadForRehearsal,
    Rehearsals,
    RehearsalTimePassed,
    ResultCame,
    StartProcess,
    StartRehearsal,
)
from torchrelay.protocol.messages import JournalContent, Rehearsed
from torchrelay.protocol.names import REHEARSAL_BROKEN_OFF, REHEARSAL_OPEN, REHEARSAL_SAME

JOURNAL = JournalContent("n0.w1", boundaries={39: b"old", 40: b"new", 41: b""}, set_up=b"set-up")
DONE = Rehearsed(1, 1, 40, REHEARSAL_SAME, "")


def running() -> Rehearsals:
    rehearsals = Rehearsals()
    assert rehearsals.handle(Began(1, "n0.w1", "n0.s0", "all ranks train"), 0.0) == [ReadForRehearsal("n0.w1")]
    return rehearsals


def test_a_rehearsal_reads_the_journal_of_the_latest_whole_boundary_and_ends_with_the_result() -> None:
    rehearsals = running()
    assert rehearsals.awaits_journal_of("n0.w1")
    assert rehearsals.handle(JournalCame(JOURNAL), 1.0) == [StartRehearsal(1, "n0.s0", 1, 40, JOURNAL)]
    assert not rehearsals.awaits_journal_of("n0.w1")
    assert rehearsals.handle(ResultCame("n0.s0", DONE), 2.0) == [Judged(DONE, "n0.s0")]
    assert rehearsals.rank is None


def test_a_loss_breaks_it_off_and_the_spare_is_free_at_once() -> None:
    rehearsals = running()
    rehearsals.handle(JournalCame(JOURNAL), 1.0)
    end, judged = rehearsals.handle(Disturbed("a migration is under way"), 1.5)
    assert end == End(1, "n0.s0")
    assert isinstance(judged, Judged)
    assert judged.result.outcome == REHEARSAL_BROKEN_OFF
    assert rehearsals.handle(ResultCame("n0.s0", DONE), 2.0) == []


def test_before_the_journal_is_there_no_child_has_to_be_ended() -> None:
    (judged,) = running().handle(Disturbed("a migration is under way"), 0.5)
    assert isinstance(judged, Judged)
    assert judged.result.boundary == -1


def test_results_of_other_requests_and_spares_are_of_no_interest() -> None:
    rehearsals = running()
    rehearsals.handle(JournalCame(JOURNAL), 1.0)
    assert rehearsals.handle(ResultCame("n0.s1", DONE), 2.0) == []
    assert rehearsals.handle(ResultCame("n0.s0", Rehearsed(7, 1, 40, REHEARSAL_SAME, "")), 2.0) == []
    assert rehearsals.rank == 1


@pytest.mark.parametrize(
    "content",
    [JournalContent("n0.w1"), JournalContent("n0.w1", {40: b"new"}), JournalContent("n0.w1", {0: b"x"}, set_up=b"s")],
)
def test_without_a_whole_journal_nothing_is_started(content: JournalContent) -> None:
    (judged,) = running().handle(JournalCame(content), 1.0)
    assert isinstance(judged, Judged)
    assert judged.result.reason == "no whole journal of it was there"


def test_neither_the_journal_nor_the_result_is_waited_for_for_ever() -> None:
    rehearsals = running()
    assert rehearsals.handle(RehearsalTimePassed(), READING_S - 0.1) == []
    (judged,) = rehearsals.handle(RehearsalTimePassed(), READING_S)
    assert isinstance(judged, Judged)
    assert judged.result.reason == "its journal did not come"
    rehearsals = running()
    rehearsals.handle(JournalCame(JOURNAL), 1.0)
    assert rehearsals.handle(RehearsalTimePassed(), RUNNING_S) == []
    end, judged = rehearsals.handle(RehearsalTimePassed(), RUNNING_S + 1.0)
    assert end == End(1, "n0.s0")


def test_one_at_a_time() -> None:
    with pytest.raises(ValueError, match="rank 1 is under way"):
        running().handle(Began(0, "n0.w0", "n0.s0", ""), 1.0)


def starting() -> Rehearsals:
    rehearsals = Rehearsals()
    assert rehearsals.handle(Began(1, "n0.w1", "", "all ranks train"), 0.0) == [StartProcess("n0.w1")]
    return rehearsals


def test_without_a_spare_a_process_is_started_and_the_journal_is_read_once_it_is_ready() -> None:
    rehearsals = starting()
    assert not rehearsals.awaits_journal_of("n0.w1")
    assert rehearsals.handle(RehearsalTimePassed(), READING_S + 1.0) == []
    assert rehearsals.handle(ProcessReady("n0.t0"), 20.0) == [ReadForRehearsal("n0.w1")]
    assert rehearsals.awaits_journal_of("n0.w1")
    assert rehearsals.handle(RehearsalTimePassed(), 20.0 + READING_S - 0.1) == []
    assert rehearsals.handle(JournalCame(JOURNAL), 21.0) == [StartRehearsal(1, "n0.t0", 1, 40, JOURNAL)]
    assert rehearsals.handle(ResultCame("n0.t0", DONE), 22.0) == [Judged(DONE, "n0.t0")]


def test_where_none_can_be_started_nothing_is_known_of_the_rank_and_the_reason_is_told() -> None:
    (judged,) = starting().handle(NoProcess("0.1 GiB of memory are left"), 1.0)
    assert isinstance(judged, Judged)
    assert (judged.result.outcome, judged.result.reason) == (REHEARSAL_OPEN, "0.1 GiB of memory are left")


def test_a_process_that_is_not_ready_in_time_is_waited_for_no_longer() -> None:
    (judged,) = starting().handle(RehearsalTimePassed(), STARTING_S)
    assert isinstance(judged, Judged)
    assert judged.result.reason == "its process was not ready in time"
