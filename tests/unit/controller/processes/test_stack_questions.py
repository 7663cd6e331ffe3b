from __future__ import annotations

import pytest

from torchrelay.controller.config import Policy
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.processes.stack_questions import Witness
from torchrelay.protocol import messages as msg

LIMIT_S = 7.0
POLICY = Policy()


class Bench:
    """Rank 0 waits for rank 1, which stands still from second 100 on."""

    def __init__(self) -> None:
        self.job = Job(2)
        workers = tuple(msg.WorkerInfo(f"n0.w{rank}", rank, 100 + rank) for rank in range(2))
        self.job.attach(msg.AgentHello("n0", 0, "127.0.0.1", workers), 0.0)
        self.outbox = Outbox(self.job, lambda: 0.0)
        self.witness = Witness(POLICY, self.job, self.outbox)

    def silent(self, rank: int, still_s: float, now_s: float, *, waiting: bool, state: str = "S") -> Worker:
        worker = self.job.holder(rank)
        progress = msg.WorkerProgress(worker.worker, 5, 5, "body", waiting, 3, state, still_s, still_s)
        worker.take_progress(progress, now_s)
        return worker

    def at(self, still_s: float) -> list[int]:
        """After that much silence: the numbers of the questions to rank 1."""
        now_s = 100.0 + still_s
        self.silent(0, still_s, now_s, waiting=True)
        self.silent(1, still_s, now_s, waiting=False)
        self.witness.ask(LIMIT_S, now_s)
        orders, _ = self.outbox.take()
        asked = [m for _, m in orders if isinstance(m, msg.ToWorker) and m.worker == "n0.w1"]
        return [m.order.request for m in asked if isinstance(m.order, msg.Explain)]


def test_silent_ranks_are_asked_before_a_verdict_and_then_ever_more_rarely() -> None:
    bench = Bench()
    seconds = [s / 10 for s in range(400)]
    asked_s = [s for s in seconds if bench.at(s)]
    first_s = LIMIT_S - POLICY.explain_lead_s
    assert asked_s == [first_s, first_s + 4, first_s + 12, first_s + 28]


def test_nobody_is_asked_as_long_as_nobody_waits() -> None:
    bench = Bench()
    for rank in range(2):
        bench.silent(rank, 60.0, 160.0, waiting=False)
    bench.witness.ask(LIMIT_S, 160.0)
    assert bench.outbox.take()[0] == []


def test_a_stopped_rank_is_asked_for_at_once() -> None:
    bench = Bench()
    bench.silent(0, 0.1, 100.0, waiting=False)
    bench.silent(1, 0.1, 100.0, waiting=False, state="T")
    bench.witness.ask(LIMIT_S, 100.0)
    assert [m.worker for _, m in bench.outbox.take()[0] if isinstance(m, msg.ToWorker)] == ["n0.w1"]


def test_an_answer_counts_for_its_silence_alone() -> None:
    bench = Bench()
    (request,) = bench.at(6.0)
    worker = bench.job.holder(1)
    assert bench.witness.answer(worker) is None
    assert bench.witness.is_awaited(worker, 106.5)
    assert not bench.witness.is_awaited(worker, 106.0 + POLICY.explain_grace_s)
    bench.witness.answered(worker, msg.Explained(request + 7, (), "moving", "a question of before"))
    assert bench.witness.answer(worker) is None
    report = msg.Explained(request, ("f (a.py:1)",), "circling", "its own process")
    bench.witness.answered(worker, report)
    assert bench.witness.answer(worker) == report
    assert not bench.witness.is_awaited(worker, 106.5)
    bench.silent(1, 0.2, 120.0, waiting=False)  # it has moved since
    assert bench.witness.answer(worker) is None


def test_where_all_wait_they_are_asked_again_soon_and_those_that_are_done_too() -> None:
    bench = Bench()

    def asked(still_s: float) -> list[str]:
        now_s = 100.0 + still_s
        bench.silent(0, still_s, now_s, waiting=True)
        finished = msg.WorkerProgress("n0.w1", 5, 5, "finished", False, 3, "S", still_s, still_s)
        bench.job.holder(1).take_progress(finished, now_s)
        bench.witness.ask(LIMIT_S, now_s)
        return [m.worker for _, m in bench.outbox.take()[0] if isinstance(m, msg.ToWorker)]

    seconds = [s / 10 for s in range(400)]
    asked_s = [s for s in seconds if asked(s) == ["n0.w0", "n0.w1"]]
    first_s, again_s, most_s = LIMIT_S - POLICY.explain_lead_s, POLICY.explain_waiting_s, POLICY.explain_waiting_most_s
    assert asked_s[:4] == pytest.approx(
        [first_s, first_s + again_s, first_s + 3 * again_s, first_s + 7 * again_s], abs=0.11
    )
    assert asked_s[4] - asked_s[3] == pytest.approx(most_s, abs=0.11)


def test_a_rank_that_has_computed_since_it_was_asked_is_asked_again_before_a_verdict() -> None:
    bench = Bench()
    (request,) = bench.at(6.0)
    worker = bench.job.holder(1)
    bench.witness.answered(worker, msg.Explained(request, (), "still", "its own process", asleep=True))
    assert bench.witness.is_of_this_wait(worker)
    worked = msg.WorkerProgress(worker.worker, 5, 5, "body", False, 3, "S", 7.5, 1.2)  # until 0.3 s after the question
    bench.silent(0, 7.5, 107.5, waiting=True)
    worker.take_progress(worked, 107.5)
    assert not bench.witness.is_of_this_wait(worker)
    bench.witness.ask(LIMIT_S, 107.5)
    orders, _ = bench.outbox.take()
    assert [m.worker for _, m in orders if isinstance(m, msg.ToWorker)] == ["n0.w1"]
    assert bench.witness.answer(worker) is None, "what it waited for before it worked says nothing"
    assert bench.witness.is_awaited(worker, 108.0)
