"""Threads that save: when they may communicate, and what counts of what they did."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from support.loop_script import LOST
from support.save_side import GROUP, PATIENCE_S, THROUGH, UNDER_WAY, Side, Step

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.comm.generations.generation import Generation
from torchrelay.shim.saves import async_saves
from torchrelay.shim.saves.save_agreement import SaveReport
from torchrelay.shim.saves.save_under_way import Interrupted
from torchrelay.shim.script.save_future import SaveFuture, SaveId


def broken(side: Side) -> tuple[Step, SaveFuture]:
    """A save whose communication a loss breaks."""
    step = Step(side)
    future = side.start(step)
    step.wait()
    side.announce(1)
    step.let(RuntimeError(LOST))
    return step, future


def test_a_save_that_nothing_comes_between_gives_its_result(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    step.let()
    assert future.result(PATIENCE_S) == "result 1"
    assert not side.saves.are_under_way()


def test_an_async_save_is_no_gap_of_the_protection(side: Side) -> None:
    step = Step(side)
    step.let()
    side.start(step).result(PATIENCE_S)
    side.script.run("for batch in range(2):\n    step()")
    assert not [gap.kind for report in side.script.sent for gap in getattr(report, "gaps", ())]


def test_a_save_that_a_loss_breaks_is_begun_again_in_the_new_communicators(side: Side) -> None:
    step, future = broken(side)
    side.saves.exchange_begins()
    side.enter(1, UNDER_WAY)
    step.wait()
    step.let()
    assert future.result(PATIENCE_S) == "result 1"
    assert len(step.went) == 1


def test_what_a_broken_wait_gives_does_not_count(side: Side) -> None:
    """One that was freed may return as if all were well."""
    step = Step(side)
    future = side.start(step)
    step.wait()
    side.announce(1)
    step.let()
    side.enter(1, UNDER_WAY)
    step.wait()
    assert not step.went
    step.let()
    assert future.result(PATIENCE_S) == "result 1"


def test_what_ends_after_a_loss_without_communicating_does_not_count(side: Side) -> None:
    begun, ended, went = threading.Event(), threading.Event(), []

    def write(staged: Any) -> str:
        went.append(staged)
        begun.set()
        assert ended.wait(PATIENCE_S)
        return "result"

    future = side.start(write)
    assert begun.wait(PATIENCE_S), "what begins after the loss counts"
    side.announce(1)
    ended.set()
    side.enter(1, UNDER_WAY)
    assert future.result(PATIENCE_S) == "result"
    assert len(went) == 2


def test_a_save_that_another_rank_was_through_with_is_not_done_again(side: Side) -> None:
    step, future = broken(side)
    side.enter(1, THROUGH)
    assert future.result(PATIENCE_S) is None
    assert not step.went


def test_a_save_that_the_lost_rank_s_part_of_is_gone_fails_and_says_why(side: Side) -> None:
    _, future = broken(side)
    side.enter(1, SaveReport({GROUP: 1}, {SaveId(GROUP, 1): False}))
    with pytest.raises(UnsupportedError, match="cannot be finished: rank 1 was lost, and what it was about to save"):
        future.result(PATIENCE_S)
    assert side.saves.journal()[2] == ((GROUP, 1),)


def test_the_script_s_own_error_is_the_save_s(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    step.let(OSError("no space left"))
    with pytest.raises(OSError, match="no space left"):
        future.result(PATIENCE_S)
    other = Step(side)
    later = side.start(other)
    other.let()
    assert later.result(PATIENCE_S) == "result 1"


def test_a_state_that_cannot_be_staged_is_the_save_s_error_too(side: Side) -> None:
    staging: Future[Any] = Future()
    staging.set_exception(MemoryError("no room"))
    future = side.start(lambda staged: None, side.begin(staging))
    with pytest.raises(MemoryError, match="no room"):
        future.result(PATIENCE_S)
    assert not side.saves.are_under_way()


def test_a_state_that_cannot_be_written_down_is_saved_and_named(side: Side) -> None:
    step = Step(side)
    step.let()
    assert side.start(step, side.begin({"lock": threading.Lock()})).result(PATIENCE_S) == "result 1"
    side.script.run("for batch in range(2):\n    step()")
    (gap,) = {gap for report in side.script.sent for gap in getattr(report, "gaps", ()) if gap.kind == "async-save"}
    assert "saving fails on all ranks (what is saved cannot be written down" in gap.text


def test_nobody_communicates_while_communicators_are_exchanged_and_goes_on_when_that_is_given_up(side: Side) -> None:
    step = Step(side)
    side.saves.exchange_begins()
    future = side.start(step)
    begun = side.begin(process_group="another")
    assert not step.reached.acquire(timeout=0.05)
    side.saves.abandoned()
    step.wait()
    step.let()
    assert future.result(PATIENCE_S) == "result 1"
    assert begun.id == SaveId("another", 1)


def test_a_save_in_whose_midst_an_exchange_is_given_up_goes_on_where_it_was(side: Side) -> None:
    """Begun again by one rank alone it would wait for the others for ever."""
    step, second = Step(side), threading.Event()

    def write(staged: Any) -> Any:
        step(staged)
        side.engine.beside(second.set)
        return "result"

    future = side.start(write)
    step.wait()
    side.saves.exchange_begins()
    step.let()
    assert not second.wait(0.05)
    side.saves.abandoned()
    assert future.result(PATIENCE_S) == "result"
    assert second.is_set()
    assert len(step.went) == 1


def test_a_rank_that_has_moved_may_end_before_this_one_knows_that_the_exchange_is_over(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    step.wait()
    side.saves.exchange_begins()
    side.engine.comms.now = Generation(1)
    step.let(RuntimeError(LOST))
    with pytest.raises(TimeoutError):
        future.result(0.05)
    side.enter(1, UNDER_WAY)
    step.wait()
    step.let()
    assert future.result(PATIENCE_S) == "result 1"


def test_an_exchange_waits_for_who_is_about_to_communicate(side: Side) -> None:
    inside, go_on, exchanged = threading.Event(), threading.Event(), threading.Event()

    def hand_over() -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)

    future = side.start(lambda staged: side.engine.beside(hand_over))
    assert inside.wait(PATIENCE_S)
    exchange = threading.Thread(target=lambda: (side.saves.exchange_begins(), exchanged.set()), daemon=True)
    exchange.start()
    assert not exchanged.wait(0.05)
    go_on.set()
    assert exchanged.wait(PATIENCE_S)
    exchange.join()
    side.saves.abandoned()
    future.result(PATIENCE_S)


def test_an_exchange_does_not_wait_for_ever(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_saves, "_DISPATCH_S", 0.01)
    inside, go_on = threading.Event(), threading.Event()
    future = side.start(lambda staged: side.engine.beside(lambda: (inside.set(), go_on.wait(PATIENCE_S))))
    assert inside.wait(PATIENCE_S)
    with pytest.raises(RuntimeError, match="does not come loose"):
        side.saves.exchange_begins()
    go_on.set()
    side.saves.abandoned()
    future.result(PATIENCE_S)


def test_saves_of_one_group_are_done_one_after_the_other_and_those_of_others_beside(side: Side) -> None:
    first, second, other = Step(side), Step(side), Step(side)
    one, two = side.start(first), side.start(second)
    beside = side.start(other, side.begin(process_group="another"))
    first.wait()
    other.wait()
    assert not second.reached.acquire(timeout=0.05)
    for step in (first, second, other):
        step.let()
    assert [future.result(PATIENCE_S) for future in (one, two, beside)] == ["result 1"] * 3


def test_a_save_that_training_goes_back_behind_is_given_up_and_its_number_is_given_again(side: Side) -> None:
    kept, dropped, anew = Step(side), Step(side), Step(side)
    begun = [side.begin(process_group="kept").id]
    at_boundary = side.saves.begun()
    future = side.start(dropped)
    dropped.wait()
    side.announce(1)
    side.enter(1, SaveReport({"kept": 1}, {begun[0]: True}), back_to=at_boundary)
    again = side.start(anew)
    assert not anew.reached.acquire(timeout=0.05)  # the first one's thread may still write to the same place
    dropped.let(RuntimeError(LOST))
    with pytest.raises(Interrupted, match="it is begun anew"):
        future.result(PATIENCE_S)
    anew.wait()
    anew.let()
    assert again.result(PATIENCE_S) == "result 1"
    assert (again.save_id, kept.went) == (SaveId(GROUP, 1), [])


def test_who_saves_alone_minds_no_migration(side: Side) -> None:
    step = Step(side)
    future = side.start(step, side.begin(no_dist=True))
    step.wait()
    side.announce(1)
    step.let()
    side.enter(1, SaveReport({}, {}))
    assert future.result(PATIENCE_S) == "result 1"
    assert len(step.went) == 1


def test_who_saves_alone_and_begins_anew_waits_for_the_one_before(side: Side) -> None:
    """It may still write to the same place: nothing has interrupted it."""
    before, anew = Step(side), Step(side)
    future = side.start(before, side.begin(no_dist=True))
    before.wait()
    side.announce(1)
    side.enter(1, SaveReport({}, {}), back_to={})
    again = side.start(anew, side.begin(no_dist=True))
    assert not anew.reached.acquire(timeout=0.05)
    before.let()
    with pytest.raises(Interrupted, match="it is begun anew"):
        future.result(PATIENCE_S)
    anew.wait()
    anew.let()
    assert again.result(PATIENCE_S) == "result 1"
