"""Ranks that are all on one machine: one moves to the other machine, in a calm moment, and then no more."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.replacement.spread import MOST_IN_VAIN
from torchrelay.protocol import events
from torchrelay.protocol import messages as msg

CALM_S = Policy().spread_calm_s
REPORT = msg.Report("train.py", 30, 400, 900, 4, (), (), (), 5, True)


def together(folder: Path, **config: Any) -> FakeJob:
    """A job of two machines that has lost one, with one rank and one spare more than it needs on the other."""
    job = FakeJob(folder, world_size=2, spares=2, nnodes=2, config={"refill": True, **config})
    job.train()
    job.tick(1.0)
    report(job)
    job.silent.add("n1")
    job.waiting.add("n0.w0")
    job.still.add("n0.w0")
    job.tick(10.0)
    job.settle()
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.s0"}
    job.waiting.clear()
    job.still.clear()
    del job.ranks["n1.w0"]
    report(job)
    job.boundary += 1
    job.tick(1.0)
    return job


def report(job: FakeJob) -> None:
    for worker in job.ranks:
        job.say(worker, REPORT)
        order = job.sent(msg.CopyJournals).get(worker)
        if order is not None and order.node not in job.silent:
            job.say(worker, msg.JournalsCopied(order.node, job.boundary))


def back(job: FakeJob, spares: int = 1) -> None:
    names = [f"n1-2.w{i}" for i in range(spares)]
    job.infos = [msg.WorkerInfo(name, -1, 300 + i) for i, name in enumerate(names)]
    job.spares += names
    job.attach("n1-2")
    for name in names:
        job.say(name, msg.Warm("2.13"))


def moves(job: FakeJob) -> list[tuple[int, str]]:
    return [(e.rank, e.reason) for e in job.told(events.MigrationStarted) if e.kind == "planned"]


def train(job: FakeJob, seconds: float) -> None:
    """All ranks make steps, and whoever is asked answers."""
    for _ in range(int(seconds)):
        job.boundary += 1
        job.tick(1.0)
        job.settle()
        report(job)


WHY = "to another machine, since the loss of n0 would end the job: all ranks are there"


def test_a_rank_moves_to_the_machine_that_is_back_once_all_is_calm(tmp_path: Path) -> None:
    job = together(tmp_path)
    assert job.told(events.Protection)[-1].level == "partly"
    train(job, CALM_S + 5)
    assert "ready there: 0" in job.core.status(job.now_s).spread_reason
    back(job, spares=2)
    train(job, CALM_S - 4)
    assert moves(job) == []
    assert job.core.status(job.now_s).spread_reason.startswith(f"rank 1 is to move {WHY}; in ")
    train(job, 8)
    assert moves(job) == [(1, WHY)]
    assert job.core.job.holders == {0: "n0.w0", 1: "n1-2.w0"}
    train(job, 10 * CALM_S)
    assert moves(job) == [(1, WHY)]
    assert job.told(events.RankSpread) == [events.RankSpread(1, "n1-2", 1)]
    assert job.told(events.Protection)[-1].level == "protected"
    status = job.core.status(job.now_s)
    assert (status.ranks_spread, status.spread_reason) == (1, "")


def test_each_fault_begins_the_wait_anew(tmp_path: Path) -> None:
    job = together(tmp_path)
    train(job, CALM_S)
    back(job, spares=2)
    train(job, CALM_S - 4)
    job.core.job.nodes["n1-2"].links_down = True
    job.die("n0.s0")
    job.settle()
    job.boundary += 1
    job.progress()
    report(job)  # so that all is as before at the next look
    job.core.job.nodes["n1-2"].links_down = False
    assert job.core.job.holders[1] == "n0.s1"
    train(job, CALM_S - 4)
    assert moves(job) == []
    train(job, 8)
    assert moves(job) == [(1, WHY)]


def test_a_lost_rank_and_one_that_is_moved_by_hand_go_to_the_other_machine_at_once(tmp_path: Path) -> None:
    job = together(tmp_path)
    back(job, spares=2)
    assert [w.worker for w in job.core.job.spares] == ["n0.s1", "n1-2.w0", "n1-2.w1"]
    job.die("n0.s0")
    job.settle()
    assert job.core.job.holders[1] == "n1-2.w0"
    train(job, 3 * CALM_S)
    assert moves(job) == []


def test_moves_that_fail_are_made_ever_more_rarely_and_then_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = together(tmp_path)
    back(job)
    answers = job._reports

    def refuses(worker: str, order: msg.ShimOrder) -> list[msg.ShimReport]:
        if isinstance(order, msg.Assign) and worker.startswith("n1-2"):
            job.spares.remove(worker)
            return [msg.OrderFailed(order.generation, "join", "no room")]
        return answers(worker, order)

    monkeypatch.setattr(job, "_reports", refuses)
    train(job, 20 * CALM_S)
    assert [reason for _, reason in moves(job)] == [WHY] * MOST_IN_VAIN
    assert f"{MOST_IN_VAIN} moves to another machine brought nothing" in job.core.status(job.now_s).spread_reason
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.s0"}
    assert job.told(events.RankSpread) == []


@pytest.mark.parametrize("config", [{"spares_barred": "no"}, {"planned_only": True}])
def test_nothing_moves_where_a_loss_ends_the_job_anyway(tmp_path: Path, config: dict[str, Any]) -> None:
    job = FakeJob(tmp_path, world_size=2, spares=2, nnodes=2, config=config)
    job.train()
    report(job)
    job.core.job.holders[1] = "n0.s0"
    job.core.job.workers["n0.s0"] = dataclasses.replace(job.core.job.workers["n0.s0"], rank=1)
    train(job, 3 * CALM_S)
    assert moves(job) == []
