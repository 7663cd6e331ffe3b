from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED, whole_copies
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.messages import Abandon, CopyReady, CopyTaken, Interrupt, KeepCopies, TakeCopy
from torchrelay.protocol.security.transfer_protection import INTEGRITY
from torchrelay.protocol.words.positions import StandingPosition
from torchrelay.shim.recovery.survivor import SurvivorRecovery
from torchrelay.shim.replicas.kept_tensors import KeptTensors, load, opened
from torchrelay.shim.replicas.peer_checkpoints import SMALL_PARTS_BYTES, PeerCheckpoints
from torchrelay.shim.replicas.peer_exchange import Taker
from torchrelay.shim.step.step_state import StepState
from torchrelay.shim.tensors import digest

EVERY = 3


class Link:
    identity = ""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.said = threading.Event()
        self.lost = False

    def send(self, report: Any) -> None:
        self.sent.append(report)
        self.said.set()

    def wait(self) -> Any:
        assert self.said.wait(20)
        self.said.clear()
        return self.sent[-1]


class Engine:
    """What a keeper asks of the engine."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.link, self.shadow, self.protection = rank, Link(), None, INTEGRITY
        self.log = LogLines(LogPart.SHIM)
        self.comms = SimpleNamespace(address="127.0.0.1", meet=self.meet)
        self.step = StepState()
        self.meetings: list[tuple[int, bool, bool]] = []
        self.others_keep: bool | None = True
        self.writer = SimpleNamespace(latest=([b"journ", b"al"], b"set-up"))
        self.layouts = SimpleNamespace(as_text=lambda boundary: f"layout of {boundary}")
        self.weight = torch.zeros(1000)
        self.saves = SimpleNamespace(tensors=dict)
        self.replaced = SimpleNamespace(tensors={})
        self.replicas = SimpleNamespace(
            tensors=self._tensors, to_give=lambda commit, target: self._tensors(commit), not_averaged=tuple
        )
        self.injected: list[str] = []
        self.signs_of_life = 0

    def _tensors(self, commit: Any) -> dict[str, torch.Tensor]:
        return {"w": self.weight, "b": self.weight[:3].clone()}

    def alive(self) -> None:
        self.signs_of_life += 1

    def inject(self, phase: str) -> None:
        self.injected.append(phase)

    def confirm(self) -> None: ...

    def waiting(self, on: bool) -> None:
        pass

    def meet(self, number: int, yes: bool, patience_s: float | None) -> bool | None:
        """Turn, whether the rank keeps copies, and whether its wait has an end."""
        self.meetings.append((number, yes, patience_s is not None))
        return None if self.others_keep is None else self.others_keep or yes


def train(keeper: PeerCheckpoints, engine: Engine, *boundaries: int) -> None:
    for boundary in boundaries:
        engine.weight.fill_(boundary)
        keeper.at_boundary(SimpleNamespace(boundary=boundary))  # type: ignore[arg-type]  # a stand-in
        keeper.at_gate(boundary)


def held(folder: Path) -> list[int]:
    return sorted(parts.boundary for _, parts in whole_copies(folder).get(0, ()))


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def keeper(engine: Engine, tmp_path: Path) -> PeerCheckpoints:
    return PeerCheckpoints(engine, EVERY, tmp_path)  # type: ignore[arg-type]  # a stand-in


def test_the_two_latest_copies_are_whole_before_the_next_one_begins(
    keeper: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    train(keeper, engine, *range(9))
    assert held(tmp_path) == [3, 6]
    newest = next(folder for folder, parts in whole_copies(tmp_path)[0] if parts.boundary == 6)
    found = {"w": torch.zeros(1000), "b": torch.zeros(3)}
    load(newest, lambda infos: found)
    assert torch.equal(found["w"], torch.full((1000,), 6.0))
    assert [parts.ddp_layout for _, parts in whole_copies(tmp_path)[0]] == ["layout of 6", "layout of 3"]


def test_boundaries_that_are_jumped_over_do_not_stop_the_copies(
    keeper: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    train(keeper, engine, 0, 2, 4, 7)
    keeper.wait()
    assert held(tmp_path) == [4, 7]


def test_a_rank_that_comes_in_between_two_copies_waits_for_the_next_one(
    keeper: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    train(keeper, engine, 4, 5)
    assert held(tmp_path) == []
    train(keeper, engine, 6, 7, 8)
    assert held(tmp_path) == [6]


def test_the_copy_that_a_rank_came_from_is_not_made_again(
    keeper: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    train(keeper, engine, 3, 4, 5)
    again = PeerCheckpoints(engine, EVERY, tmp_path)  # type: ignore[arg-type]  # a stand-in
    engine.injected.clear()
    train(again, engine, 3)
    assert engine.injected == []


def test_of_several_heads_with_one_number_the_last_one_counts(
    keeper: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    train(keeper, engine, 0)
    engine.writer.latest = [b"of the ", b"real loop"], b"set-up"
    train(keeper, engine, 0, 1, 2)
    assert [parts.journal for _, parts in whole_copies(tmp_path)[0]] == [b"of the real loop"]


def test_a_copy_that_has_no_room_says_so_and_leaves_the_one_before(
    keeper: PeerCheckpoints, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(keeper, engine, 0, 1, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(KeptTensors, "fill", full)
    train(keeper, engine, 3, 4, 5)
    assert held(tmp_path) == [0]
    assert "could not be copied at boundary 3: [Errno 28]" in keeper.failed


def test_nothing_is_copied_once_others_hold_the_same(keeper: PeerCheckpoints, engine: Engine, tmp_path: Path) -> None:
    train(keeper, engine, 0, 1, 2, 3)
    keeper.wait()
    assert held(tmp_path) == [0, 3]
    keeper.assign(KeepCopies(False, "replicas"))
    train(keeper, engine, 4, 5, 6)
    assert held(tmp_path) == []
    assert not list(tmp_path.glob("*/*/*")), "their memory is free again"


def test_the_script_s_end_waits_for_no_buddy(keeper: PeerCheckpoints, engine: Engine) -> None:
    keeper.assign(KeepCopies(True, "alone", 1, "127.0.0.1"))
    train(keeper, engine, 0)
    keeper.close()
    engine.link.sent.clear()
    train(keeper, engine, 3)
    keeper.wait()
    assert engine.link.sent == []


def test_a_buddy_gets_the_whole_copy_and_the_gate_before_the_next_one_waits_for_it(
    keeper: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    keeper.assign(KeepCopies(True, "alone", 1, "127.0.0.1"))
    there = Link()
    taker = Taker(there, tmp_path / "elsewhere", INTEGRITY)  # type: ignore[arg-type]  # a stand-in
    train(keeper, engine, 0)
    ready = engine.link.wait()
    assert isinstance(ready, CopyReady)
    taker.take(TakeCopy(0, ready.boundary, ready.host, ready.port, ready.token))
    train(keeper, engine, 1, 2)  # returns once it has arrived
    taken = there.wait()
    assert (taken.rank, taken.boundary, taken.reason) == (0, 0, "")
    ((folder, parts),) = whole_copies(tmp_path / "elsewhere")[0]
    assert (parts.boundary, parts.journal, parts.set_up, parts.ddp_layout) == (0, b"journal", b"set-up", "layout of 0")
    found = {"w": torch.ones(1000), "b": torch.ones(3)}
    load(folder, lambda infos: found)
    assert torch.equal(found["w"], torch.zeros(1000))
    taker.close()


def test_a_buddy_that_is_lost_keeps_nobody_waiting(keeper: PeerCheckpoints, engine: Engine) -> None:
    keeper.assign(KeepCopies(True, "alone", 1, "127.0.0.1"))
    train(keeper, engine, 0)
    assert isinstance(engine.link.wait(), CopyReady)
    keeper.interrupted(1)
    train(keeper, engine, 1, 2)
    assert keeper.failed == "its buddy has not fetched it"


def test_nothing_is_given_from_the_beginning_of_a_migration_to_its_end(keeper: PeerCheckpoints, engine: Engine) -> None:
    keeper.assign(KeepCopies(True, "alone", 1, "127.0.0.1"))
    keeper.interrupted(2)
    train(keeper, engine, 0, 1, 2, 3)
    keeper.entered(1, 3)  # the news of the next one came before this one was over
    train(keeper, engine, 4, 5, 6)
    keeper.wait()
    assert (engine.link.sent, keeper.failed) == ([], "its buddy has not fetched it")
    keeper.entered(2, 6)
    train(keeper, engine, 7, 8, 9)
    assert engine.link.wait().boundary == 9
    keeper.interrupted(3)
    keeper.abandoned(3)
    train(keeper, engine, 10, 11, 12)
    assert engine.link.wait().boundary == 12
    keeper.close()


def survivor(engine: Engine, keeper: PeerCheckpoints) -> SurvivorRecovery:
    """That rank in a migration. The orders are followed as always; it is connected with nobody, and has no training loop."""

    def nothing(*_: object) -> None:
        pass

    comms = {"address": "127.0.0.1", "now": SimpleNamespace(number=0)}
    comms |= {"break_all": nothing, "break_new": nothing, "waits": SimpleNamespace(watch=nothing)}
    names: dict[str, Any] = {"keeper": keeper, "comms": SimpleNamespace(**comms), "wrapped": []}
    names |= {"layouts": SimpleNamespace(as_text=str, abandoned=nothing), "records": SimpleNamespace(after=[])}
    names |= {"updates": SimpleNamespace(late_now=tuple), "journal": SimpleNamespace(phase=0)}
    names |= {"commit": None, "faults": None, "phase": nothing, "place": str, "left": SimpleNamespace(place="")}
    vars(engine).update(names)
    return SurvivorRecovery(engine, engine.link)  # type: ignore[arg-type]  # a stand-in


def test_a_migration_that_is_abandoned_lets_copies_be_given_again(keeper: PeerCheckpoints, engine: Engine) -> None:
    keeper.assign(KeepCopies(True, "alone", 1, "127.0.0.1"))
    recovery = survivor(engine, keeper)
    recovery.handle(Interrupt(2, "rank 1 is lost"))
    train(keeper, engine, 0, 1, 2)
    assert (engine.link.sent, keeper.failed) == ([], "its buddy has not fetched it")
    recovery.handle(Abandon(2, "it was the joiner that was lost"))
    assert not recovery.stand(StandingPosition.HEAD, None)
    engine.link.said.clear()
    train(keeper, engine, 3)
    ready = engine.link.wait()
    assert isinstance(ready, CopyReady)
    assert ready.boundary == 3
    keeper.close()


def test_a_rank_whose_buddy_is_slow_does_not_look_like_one_that_hangs(
    keeper: PeerCheckpoints, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrelay.shim.replicas.peer_checkpoints._SIGN_OF_LIFE_S", 0.05)
    monkeypatch.setattr("torchrelay.shim.replicas.peer_exchange.PATIENCE_S", 1.0)
    train(keeper, engine, 0, 1, 2)
    assert engine.signs_of_life == 0, "what it does itself is seen otherwise"
    keeper.assign(KeepCopies(True, "alone", 1, "127.0.0.1"))
    train(keeper, engine, 3, 4, 5)
    assert engine.signs_of_life > 1
    assert keeper.failed == "its buddy has not fetched it"


def test_a_copy_that_breaks_off_on_its_way_is_not_held_and_the_older_one_is(
    keeper: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    keeper.assign(KeepCopies(True, "alone", 1, "127.0.0.1"))
    there, elsewhere = Link(), tmp_path / "elsewhere"
    taker = Taker(there, elsewhere, INTEGRITY)  # type: ignore[arg-type]  # a stand-in
    train(keeper, engine, 0)
    ready = engine.link.wait()
    taker.take(TakeCopy(0, 0, ready.host, ready.port, ready.token))
    assert there.wait().reason == ""
    train(keeper, engine, 1, 2, 3)
    ready = engine.link.wait()
    keeper.interrupted(1)  # the channel closes before it was asked for everything
    keeper.wait()
    taker.take(TakeCopy(0, 3, ready.host, ready.port, ready.token))
    failed = there.wait()
    assert isinstance(failed, CopyTaken)
    assert failed.reason
    assert [parts.boundary for _, parts in whole_copies(elsewhere)[0]] == [0]
    taker.close()


def in_sync(keeper: PeerCheckpoints, engine: Engine, *boundaries: int) -> None:
    for boundary in boundaries:
        engine.step.entered(boundary)
        keeper.at_boundary(SimpleNamespace(boundary=boundary))  # type: ignore[arg-type]  # a stand-in
        keeper.meet_at_head()
        keeper.at_gate(boundary)
        keeper.meet()


@pytest.fixture
def synchronous(engine: Engine, tmp_path: Path) -> PeerCheckpoints:
    return PeerCheckpoints(engine, EVERY, tmp_path, sync=True)  # type: ignore[arg-type]  # a stand-in


def test_a_synchronous_copy_is_whole_at_its_head_and_all_ranks_meet_there_once(
    synchronous: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    engine.step.entered(3)
    synchronous.at_boundary(SimpleNamespace(boundary=3))  # type: ignore[arg-type]  # a stand-in
    assert held(tmp_path) == [3]
    in_sync(synchronous, engine, 3, 4, 5, 6, 7)
    assert engine.meetings == [(1, True, True), (2, True, True)]


def test_who_was_not_there_in_time_is_met_before_the_gate(synchronous: PeerCheckpoints, engine: Engine) -> None:
    engine.others_keep = None
    in_sync(synchronous, engine, 3)
    assert engine.meetings == [(1, True, True), (1, True, False)]


def test_ranks_meet_as_long_as_one_of_them_keeps_copies_and_again_in_a_new_generation(
    synchronous: PeerCheckpoints, engine: Engine
) -> None:
    synchronous.assign(KeepCopies(False, "replicas"))
    in_sync(synchronous, engine, 3)
    engine.others_keep = False
    in_sync(synchronous, engine, 6, 9, 12)
    assert engine.meetings == [(1, False, True), (2, False, True)]
    synchronous.entered(1, 13)
    in_sync(synchronous, engine, 13, 14, 15)
    assert engine.meetings[2:] == [(5, False, True)]


def test_copies_beside_training_need_no_meeting(keeper: PeerCheckpoints, engine: Engine) -> None:
    in_sync(keeper, engine, *range(8))
    assert engine.meetings == []


@pytest.fixture
def as_needed(engine: Engine, tmp_path: Path) -> PeerCheckpoints:
    engine.world_size = 1  # type: ignore[attr-defined]  # a stand-in
    return PeerCheckpoints(engine, COPIES_AS_NEEDED, tmp_path)  # type: ignore[arg-type]  # a stand-in


def step(
    keeper: PeerCheckpoints, engine: Engine, *boundaries: int, others: tuple[bool, bool] = (False, False)
) -> list[int]:
    """With gates, in which the others say whether they want a copy, and are busy. Returns where one was agreed on."""
    agreed = []
    for boundary in boundaries:
        train(keeper, engine, boundary)
        keeper.meet()
        yes, busy = keeper.asks(boundary + 1)
        agreed += [boundary + 1] * ((yes or others[0]) and not (busy or others[1]))
        keeper.agreed(bool(agreed) and agreed[-1] == boundary + 1)
    return agreed


def finished(keeper: PeerCheckpoints) -> None:
    assert keeper._finishing is not None
    keeper._finishing.join()


def test_the_first_copy_is_made_at_the_head_after_it_is_known_to_be_needed(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrelay.shim.replicas.peer_checkpoints.EARLY_BYTES", 4000)
    assert step(as_needed, engine, 0, 1, 2) == [], "it is too large to be copied before"
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average"))
    assert step(as_needed, engine, 3, 4) == [4]
    finished(as_needed)
    assert step(as_needed, engine, 5, 6, 7) == [], "how often is not known yet"
    assert (held(tmp_path), as_needed.failed) == ([4], "")
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average", every=12))
    assert step(as_needed, engine, *range(8, 12)) == [12]
    train(as_needed, engine, 12)
    finished(as_needed)
    assert held(tmp_path) == [4, 12]


def copied(keeper: PeerCheckpoints, engine: Engine, *boundaries: int) -> list[int]:
    """As `step`, where each copy is whole before the next gate."""
    agreed = []
    for boundary in boundaries:
        agreed += step(keeper, engine, boundary)
        if agreed and agreed[-1] == boundary + 1:
            train(keeper, engine, boundary + 1)
            finished(keeper)
    return agreed


def test_a_small_state_is_copied_in_the_first_steps_before_it_is_known_whether_others_hold_the_same(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    assert copied(as_needed, engine, *range(6)) == [1, 2, 3]
    assert (held(tmp_path), as_needed.is_on) == ([2, 3], False)
    as_needed.assign(KeepCopies(False, "replicas"))
    assert step(as_needed, engine, 6) == []
    assert held(tmp_path) == []


def test_where_copies_are_needed_a_small_state_is_copied_in_each_step_until_it_is_known_how_often(
    as_needed: PeerCheckpoints, engine: Engine
) -> None:
    assert copied(as_needed, engine, 0, 1) == [1, 2]
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average"))
    assert copied(as_needed, engine, 2, 3, 4) == [3, 4, 5]
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average", every=3))
    assert copied(as_needed, engine, *range(5, 10)) == [6, 9]


def test_a_process_that_comes_later_asks_for_no_copy_before_it_is_told(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    assert step(as_needed, engine, 7, 8) == []


def test_a_rank_copies_what_others_ask_for_and_keeps_it_until_it_is_told(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    assert step(as_needed, engine, 2, others=(True, False)) == [3]
    step(as_needed, engine, 3, 4)
    as_needed.wait()
    assert held(tmp_path) == [3]
    as_needed.assign(KeepCopies(False, "replicas"))
    step(as_needed, engine, 5)
    assert held(tmp_path) == []


def test_no_copy_is_written_over_before_all_ranks_have_the_newer_one(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average", every=2))
    assert step(as_needed, engine, 0, others=(False, True)) == [], "others are busy"
    engine.writer.latest = ([b"journal"], b"s" * SMALL_PARTS_BYTES)
    assert step(as_needed, engine, 1) == [2]
    slow, seal = threading.Event(), KeptTensors.seal
    monkeypatch.setattr(KeptTensors, "seal", lambda kept, *args: (slow.wait(20), seal(kept, *args)))
    assert step(as_needed, engine, 2, 3, 4) == [], "it is not through with its own"
    assert held(tmp_path) == []
    slow.set()
    finished(as_needed)
    assert step(as_needed, engine, 5) == [6], "it is due since 4"
    assert held(tmp_path) == [2]


def test_a_copy_that_is_whole_keeps_nobody_from_the_next_one_which_comes_before_its_digests(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average", every=1))
    assert step(as_needed, engine, 0) == [1]
    began, digests = threading.Event(), digest.digests

    def slow(tensors: Any) -> dict[str, str]:
        began.set()
        assert as_needed._hurry.wait(20)
        return digests(tensors)

    monkeypatch.setattr("torchrelay.shim.replicas.kept_tensors.PART_BYTES", 1)
    monkeypatch.setattr("torchrelay.shim.replicas.kept_tensors.digest.digests", slow)
    assert step(as_needed, engine, 1) == [2]
    assert began.wait(20)
    monkeypatch.setattr("torchrelay.shim.replicas.kept_tensors.digest.digests", digests)
    assert step(as_needed, engine, 2) == [3]
    finished(as_needed)
    kept = {parts.boundary: opened(folder)[1] for folder, parts in whole_copies(tmp_path)[0]}
    assert kept.keys() == {1, 2}
    assert kept[1] is None, "there was no time for its digests"
    assert kept[2] is not None


@pytest.mark.parametrize("set_up_bytes", [7, SMALL_PARTS_BYTES])
def test_a_loss_right_behind_a_head_finds_its_copy_whole_if_little_is_beside_the_tensors(
    set_up_bytes: int, as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.writer.latest = ([b"journal"], b"s" * set_up_bytes)
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average", every=1))
    goes_on, finish = threading.Event(), PeerCheckpoints._finish
    monkeypatch.setattr(PeerCheckpoints, "_finish", lambda *args: (goes_on.wait(20), finish(*args)))
    assert step(as_needed, engine, 0) == [1]
    train(as_needed, engine, 1)
    assert held(tmp_path) == ([1] if set_up_bytes < SMALL_PARTS_BYTES else [])
    goes_on.set()
    finished(as_needed)
    assert held(tmp_path) == [1]


def test_copies_of_each_step_take_turns_and_the_newest_is_whole_before_the_other_is_written_over(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average", every=1))
    assert copied(as_needed, engine, 0, 1) == [1, 2]
    for boundary in range(2, 6):
        assert step(as_needed, engine, boundary) == [boundary + 1]
        assert held(tmp_path) == [boundary - 1, boundary], "none is taken away before the next head"
        train(as_needed, engine, boundary + 1)
        finished(as_needed)
        assert held(tmp_path) == [boundary, boundary + 1]


def test_a_copy_that_not_all_ranks_may_have_is_forgotten_when_they_meet_again(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average", every=2))
    step(as_needed, engine, 1, 2)
    finished(as_needed)
    assert step(as_needed, engine, 3) == [4]
    train(as_needed, engine, 4)
    finished(as_needed)
    assert held(tmp_path) == [2, 4]
    as_needed.entered(1, 4)  # another rank was lost in the gate before 4
    assert held(tmp_path) == [2]
    assert step(as_needed, engine, 4) == [5]
    train(as_needed, engine, 5)
    finished(as_needed)
    assert held(tmp_path) == [2, 5]


def test_what_was_agreed_on_before_a_migration_does_not_hold_after_it(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average"))
    assert step(as_needed, engine, 2) == [3]
    as_needed.entered(1, 3)
    train(as_needed, engine, 3)
    as_needed.wait()
    assert held(tmp_path) == []


def test_a_process_that_comes_from_its_copy_keeps_it(
    as_needed: PeerCheckpoints, engine: Engine, tmp_path: Path
) -> None:
    as_needed.assign(KeepCopies(True, "rank 0 alone has an average", every=2))
    for boundary in (1, 3):
        step(as_needed, engine, boundary)
        train(as_needed, engine, boundary + 1)
        finished(as_needed)
    again = PeerCheckpoints(engine, COPIES_AS_NEEDED, tmp_path)  # type: ignore[arg-type]  # a stand-in
    again.assign(KeepCopies(True, "rank 0 alone has an average", every=2))
    again.entered(1, 2, from_copy=True)
    assert held(tmp_path) == [2]
    assert step(again, engine, 2) == []
    assert step(again, engine, 3) == [4]


def test_copies_that_nobody_asked_for_leave_room_in_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine()
    engine.world_size = 1  # type: ignore[attr-defined]  # a stand-in
    kept = PeerCheckpoints(engine, COPIES_AS_NEEDED, tmp_path)  # type: ignore[arg-type]  # a stand-in
    kept.agreed(True)
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_bavail=16_000, f_frsize=1))
    kept.assign(KeepCopies(True, "rank 0 alone has an average", every=1))
    kept.at_boundary(SimpleNamespace(boundary=1))  # type: ignore[arg-type]  # a stand-in
    assert "more than half of this rank's share of shared memory" in kept.failed
    assert whole_copies(tmp_path) == {}
