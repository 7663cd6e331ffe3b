"""While nobody is silent there is nothing to decide, which must not cost at every tick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.processes import hang_watch
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import Decision, MigrationFinished, MigrationStarted, Suspected


def test_only_a_silence_has_all_ranks_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = FakeJob(tmp_path, world_size=4)
    job.train()
    looked = 0
    find = hang_watch.find_culprit

    def counted(*asked: Any) -> Any:
        nonlocal looked
        looked += 1
        return find(*asked)

    monkeypatch.setattr(hang_watch, "find_culprit", counted)
    for boundary in range(6, 12):
        job.boundary = boundary
        job.tick(0.5)
    assert looked == 0
    job.still.add("n0.w2")
    job.waiting |= {"n0.w0", "n0.w1", "n0.w3"}
    job.tick(4.0)
    assert looked > 0


def test_ranks_that_wait_for_each_other_through_our_doing_are_let_go_and_none_is_lost(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=2)
    job.train()
    job.boundary = 6
    job.tick(1.0)
    job.still |= {"n0.w0", "n0.w1"}
    job.waiting |= {"n0.w0", "n0.w1"}
    job.phases |= {"n0.w0": "left", "n0.w1": "gate"}
    job.tick(30.0)
    told = [(sent.worker, sent.order) for sent in job.orders if isinstance(sent, msg.ToWorker)]
    lifted = {worker: order.reason for worker, order in told if isinstance(order, msg.LiftGates)}
    assert lifted.keys() == {"n0.w0", "n0.w1"}
    assert set(lifted.values()) == {
        "ranks make unlike numbers of updates: rank 0 went on without another one after 6, and rank 1 came to one more"
    }
    assert not any(isinstance(event, (Suspected, MigrationStarted)) for event in job.events)


@pytest.mark.parametrize("hangs_since", ["before", "after"])
def test_a_rank_that_hangs_while_the_others_stand_is_replaced_at_the_usual_limit(
    hangs_since: str, tmp_path: Path
) -> None:
    job = FakeJob(tmp_path, world_size=4, spares=2)
    job.train()
    job.mute.add("n0.w2")  # it does not come to a stand
    job.still.add("n0.w2")
    job.waiting |= {"n0.w0", "n0.w1", "n0.w3"}
    if hangs_since == "before":
        job.tick(2.0)
    job.die("n0.w1")
    job.settle()
    job.still |= {"n0.w0", "n0.w3"}
    job.phases |= {"n0.w0": "standing", "n0.w3": "standing"}
    job.tick(12.0)
    job.settle()
    assert job.core.job.holders[2] in ("n0.s0", "n0.s1")
    (started,) = job.told(MigrationStarted)
    assert started.rank == 1
    (finished,) = job.told(MigrationFinished)
    assert (finished.outcome, sorted(finished.ranks)) == ("committed", [1, 2])
    assert any("rank 2 has shown no progress" in e.text for e in job.told(Decision))


class OnTheWay(FakeJob):
    """Its ranks are told at which step to stop, and never get there."""

    def _reports(self, worker: str, order: msg.ShimOrder) -> list[msg.ShimReport]:
        return [] if isinstance(order, msg.QuiesceDecided) else super()._reports(worker, order)


@pytest.mark.parametrize("asked", ["save", "move"])
def test_a_rank_that_hangs_on_its_way_to_the_step_at_which_all_are_to_stop_is_replaced_at_the_usual_limit(
    asked: str, tmp_path: Path
) -> None:
    job = OnTheWay(tmp_path, world_size=3, spares=2)
    job.train()
    if asked == "save":
        assert job.core.user_requests.save(msg.CheckpointRequest("before the maintenance"), job.now_s).accepted
    else:
        assert job.core.user_requests.migrate(msg.MigrateRequest(0, "the fan is loud"), job.now_s).accepted
    job.tick()
    job.settle()
    job.still |= {"n0.w0", "n0.w1", "n0.w2"}
    job.waiting |= {"n0.w0", "n0.w2"}
    job.tick(12.0)
    job.settle()
    assert job.core.job.holders[1] in ("n0.s0", "n0.s1")
    assert any("rank 1 has shown no progress" in e.text for e in job.told(Decision))


def test_a_rank_that_computes_for_long_before_it_stands_is_waited_for(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=4, spares=2)
    job.train()
    job.mute.add("n0.w2")
    job.still.add("n0.w2")
    job.states["n0.w2"] = "R"
    job.die("n0.w1")
    job.settle()
    job.still |= {"n0.w0", "n0.w3"}
    job.phases |= {"n0.w0": "standing", "n0.w3": "standing"}
    job.tick(60.0)
    assert job.core.job.holders[2] == "n0.w2"
    assert job.core.driver.migration is not None, "until the phase's own time is over"


def test_a_rank_that_may_hang_is_replaced_and_let_go_only_if_it_comes_to_a_stand_in_the_same_step_again(
    tmp_path: Path,
) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=2)
    job.train()
    job.boundary = 6
    job.tick(1.0)

    def stand_still(first: str) -> dict[str, msg.LiftGates]:
        job.still |= {first, "n0.w1"}
        job.waiting |= {first, "n0.w1"}
        job.phases |= {first: "body", "n0.w1": "gate"}
        job.tick(12.0)
        lifted = job.sent(msg.LiftGates)
        job.still.clear()
        job.settle()
        return lifted

    assert stand_still("n0.w0") == {}
    assert job.core.job.holders[0] == "n0.s0"
    assert stand_still("n0.s0").keys() == {"n0.s0", "n0.w1"}
    assert job.core.job.holders[0] == "n0.s0"
