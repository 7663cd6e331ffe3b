"""Threads that save: when they may communicate, what counts of what they did, and what another process goes on with."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.host_state import journal
from support.loop_script import LOST, LoopScript

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.protocol.messages import Interrupt
from torchrelay.shim import async_saves
from torchrelay.shim.adapters import process_group
from torchrelay.shim.async_saves import AsyncSaves
from torchrelay.shim.capture.encode import decode
from torchrelay.shim.collectives import SAVE_RESULT, Entry
from torchrelay.shim.comms import Generation
from torchrelay.shim.save_agreement import Agreement, Report
from torchrelay.shim.save_future import SaveFuture, SaveId
from torchrelay.shim.save_under_way import Interrupted, Save

PATIENCE_S = 10.0
GROUP = "saving"


class Side:
    """One rank's saves, with what the ranks of later generations say in `stores`."""

    def __init__(self, script: LoopScript) -> None:
        self.script, self.engine, self.saves = script, script.engine, script.engine.saves

    def begin(self, state: Any = None, **options: Any) -> Save:
        save = self.saves.begin(state if state is not None else {"x": torch.ones(3)}, options)
        assert save is not None
        return save

    def start(self, write: Callable[[Any], Any], save: Save | None = None) -> SaveFuture:
        """On a thread that does not keep the tests from ending where one fails."""
        save = save or self.begin()
        future = save.promise(Future())
        assert isinstance(future, SaveFuture)
        threading.Thread(target=self._run, args=(save, write, future), daemon=True).start()
        return future

    @staticmethod
    def _run(save: Save, write: Callable[[Any], Any], future: SaveFuture) -> None:
        try:
            future.set_result(save.run(write))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)

    def announce(self, generation: int) -> None:
        self.engine.recovery.handle(Interrupt(generation, "a rank is lost"))

    def enter(self, generation: int, *others: Report, **how: Any) -> None:
        store = dist.HashStore()
        for rank, report in enumerate(others, 1):
            Agreement(generation, rank, 1 + len(others), store).publish(report)
        self.engine.comms.world_size = 1 + len(others)
        self.engine.comms.now = Generation(generation, stores=[store])
        self.saves.entered(generation, **how)


@pytest.fixture
def side(script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> Side:
    script.tracker.live = True
    ranks = [0, 1]
    monkeypatch.setattr(process_group, "named_or_default", lambda group: (group or GROUP, ranks))
    monkeypatch.setattr(process_group, "named", lambda name: (name, ranks))
    monkeypatch.setattr(script.engine.comms, "break_all", lambda: 0)
    return Side(script)


class Step:
    """A save's `write` that stands at its communication until the test lets it go on. `went`: what was written."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.reached, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.fails: list[Exception] = []
        self.went: list[Any] = []

    def __call__(self, staged: Any) -> str:
        self._side.engine.beside(self._communicate)
        self.went.append(staged)
        return f"result {len(self.went)}"

    def _communicate(self) -> None:
        self._side.saves.dispatched()
        self.reached.release()
        assert self.go_on.acquire(timeout=PATIENCE_S)
        if self.fails:
            raise self.fails.pop()

    def wait(self) -> None:
        assert self.reached.acquire(timeout=PATIENCE_S)

    def let(self, error: Exception | None = None) -> None:
        self.fails += [error] if error is not None else []
        self.go_on.release()


UNDER_WAY, THROUGH = Report({GROUP: 1}, {SaveId(GROUP, 1): True}), Report({GROUP: 1}, {})


def test_a_save_that_nothing_comes_between_gives_its_result(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    step.let()
    assert future.result(PATIENCE_S) == "result 1"
    assert not side.saves.are_under_way()


def test_it_is_no_gap_of_the_protection(side: Side) -> None:
    step = Step(side)
    step.let()
    side.start(step).result(PATIENCE_S)
    side.script.run("for batch in range(2):\n    step()")
    assert not [gap.kind for report in side.script.sent for gap in getattr(report, "gaps", ())]


def test_a_save_that_a_loss_breaks_is_begun_again_in_the_new_communicators(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    step.wait()
    side.announce(1)
    step.let(RuntimeError(LOST))
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
    ended, went = threading.Event(), []

    def write(staged: Any) -> str:
        went.append(staged)
        assert ended.wait(PATIENCE_S)
        return "result"

    future = side.start(write)
    side.announce(1)
    ended.set()
    side.enter(1, UNDER_WAY)
    assert future.result(PATIENCE_S) == "result"
    assert len(went) == 2


def test_a_save_that_another_rank_was_through_with_is_not_done_again(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    step.wait()
    side.announce(1)
    step.let(RuntimeError(LOST))
    side.enter(1, THROUGH)
    assert future.result(PATIENCE_S) is None
    assert not step.went


def test_a_save_that_the_lost_rank_s_part_of_is_gone_fails_and_says_why(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    step.wait()
    side.announce(1)
    step.let(RuntimeError(LOST))
    side.enter(1, Report({GROUP: 1}, {SaveId(GROUP, 1): False}))
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
    side.enter(1, Report({"kept": 1}, {begun[0]: True}), back_to=at_boundary)
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
    side.enter(1, Report({}, {}))
    assert future.result(PATIENCE_S) == "result 1"
    assert len(step.went) == 1


def test_who_saves_alone_and_begins_anew_waits_for_the_one_before(side: Side) -> None:
    """It may still write to the same place: nothing has interrupted it."""
    before, anew = Step(side), Step(side)
    future = side.start(before, side.begin(no_dist=True))
    before.wait()
    side.announce(1)
    side.enter(1, Report({}, {}), back_to={})
    again = side.start(anew, side.begin(no_dist=True))
    assert not anew.reached.acquire(timeout=0.05)
    before.let()
    with pytest.raises(Interrupted, match="it is begun anew"):
        future.result(PATIENCE_S)
    anew.wait()
    anew.let()
    assert again.result(PATIENCE_S) == "result 1"


def test_a_new_process_saves_what_the_lost_one_was_about_to_save(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(
        async_saves.save_under_way.async_checkpoint,
        "save",
        lambda state, **options: written.append((state, options)) or "result",
    )
    large = torch.arange(9000.0)
    side.begin({"large": large, "small": torch.ones(2)}, checkpoint_id="there")
    journaled, given = side.saves.journal(), side.saves.tensors()
    joiner = joined(side)
    future = joiner.future(SaveId(GROUP, 1))
    joiner.carry(journaled)
    for path, tensor in joiner.tensors().items():
        tensor.copy_(given[path])
    assert not future.done()
    enter(side, joiner, UNDER_WAY)
    assert future.result(PATIENCE_S) == "result"
    ((state, options),) = written
    assert torch.equal(state["large"], large)
    assert options == {"checkpoint_id": "there", "process_group": GROUP}
    assert joiner.begun() == {GROUP: 1}


def test_a_new_process_that_did_not_get_it_all_says_so(side: Side) -> None:
    side.begin({"large": torch.arange(9000.0)})
    joiner = joined(side)
    joiner.carry(side.saves.journal())
    store = enter(side, joiner, UNDER_WAY)
    with pytest.raises(UnsupportedError, match="rank 0 was lost, and what it was about to save is gone"):
        joiner.future(SaveId(GROUP, 1)).result(PATIENCE_S)
    assert Report.of(store.get("torchrelay/saves/1/0").decode()).under_way == {SaveId(GROUP, 1): False}


def test_a_save_that_was_over_is_over_in_the_new_process(side: Side) -> None:
    joiner = joined(side)
    early = joiner.future(SaveId(GROUP, 1))
    joiner.carry(({GROUP: 2}, (), ((GROUP, 2),)))
    assert early.result(0) is None
    with pytest.raises(UnsupportedError, match="failed before its rank was lost"):
        joiner.future(SaveId(GROUP, 2)).result(0)


def test_what_a_joiner_begins_before_its_tensors_are_the_lost_rank_s_is_not_carried(side: Side) -> None:
    side.engine.records.answers = []
    save = side.begin()
    assert (save.complete, side.saves.journal()[1]) == (False, ((GROUP, 1, b""),))


def test_what_a_joiner_begins_on_its_way_in_is_numbered_as_the_lost_rank_s_was_and_not_done(side: Side) -> None:
    side.engine.way_in, written = object(), []
    side.engine.records.answers = [Entry(SAVE_RESULT, f"{GROUP}#8", [])]
    side.saves.pass_to({GROUP: 7})
    assert side.start(written.append).result() is None  # as the lost rank's journal says
    assert (written, side.saves.begun()) == ([], {GROUP: 8})


def test_a_future_is_written_down_by_the_save_that_it_stands_for(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    (node,) = decode_globals({"pending": future})
    assert node["pending"][1] == SaveId(GROUP, 1)
    step.let()
    future.result(PATIENCE_S)


def test_waiting_for_a_save_is_interrupted_by_a_migration(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    step, stood = Step(side), []
    future = side.start(step)
    step.wait()

    def interrupted(error: RuntimeError) -> None:
        stood.append(str(error))
        side.enter(1, THROUGH)

    monkeypatch.setattr(side.engine, "interrupted", interrupted)
    side.announce(1)
    step.let(RuntimeError(LOST))
    assert future.result() is None
    assert stood == ["a migration came while a checkpoint was waited for"]


def test_waiting_is_recorded_and_its_end_known_to_who_comes_later(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Entry] = []
    monkeypatch.setattr(side.engine, "mode", lambda: "record")
    monkeypatch.setattr(side.engine, "record", recorded.append)
    step = Step(side)
    step.let()
    side.start(step).result()
    assert recorded == [Entry(SAVE_RESULT, f"{GROUP}#1", [])]
    second = Step(side)
    future = side.start(second)
    second.wait()
    monkeypatch.setattr(side.engine, "mode", lambda: "answer")
    monkeypatch.setattr(side.engine, "answer", lambda name, group: Entry(name, group, []))
    second.let(RuntimeError(LOST))
    side.announce(1)
    assert future.result() is None


def test_who_waits_no_longer_than_told_is_told_that_it_is_not_over(side: Side) -> None:
    step = Step(side)
    future = side.start(step)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        future.exception(0.01)
    step.let()
    assert future.exception() is None


def joined(side: Side) -> AsyncSaves:
    joiner = AsyncSaves(side.engine)
    joiner.live = False
    side.engine.saves = joiner
    return joiner


def enter(side: Side, joiner: AsyncSaves, *others: Report) -> dist.Store:
    side.saves = joiner
    side.enter(1, *others)
    store: dist.Store = side.engine.comms.now.stores[0]
    return store


def decode_globals(names: dict[str, Any]) -> list[dict[str, Any]]:
    return [node.content for node in decode(pickle.loads(journal(names)))]


def test_a_group_that_is_not_here_leaves_the_save_incomplete(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise StateMismatchError("there is no process group")

    side.begin()
    journaled, joiner = side.saves.journal(), joined(side)
    monkeypatch.setattr(process_group, "named", missing)
    joiner.carry(journaled)
    enter(side, joiner, UNDER_WAY)
    with pytest.raises(UnsupportedError, match="cannot be finished"):
        joiner.future(SaveId(GROUP, 1)).result(PATIENCE_S)
