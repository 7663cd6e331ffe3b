"""While nobody is silent there is nothing to decide, which must not cost at every tick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.processes import hang_watch
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import MigrationStarted, Suspected


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
