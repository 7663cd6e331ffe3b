"""Asks what silent ranks are doing, in time for a verdict, and keeps the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.controller.config import Policy
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.messages import Explain, Explained
from torchrelay.protocol.words.positions import RankPhase

_WAITS_S = 1.0
"""A rank that has computed since it was asked is asked again once it has waited for so long."""


@dataclass
class _Inquiry:
    """The questions about one worker's present silence, which began at `since_s`."""

    since_s: float
    request: int
    asked_s: float
    next_s: float
    pause_s: float
    answer: Explained | None = None


class Witness:
    def __init__(self, policy: Policy, job: Job, outbox: Outbox) -> None:
        self._policy = policy
        self._job = job
        self._outbox = outbox
        self._inquiries: dict[str, _Inquiry] = {}
        self._requests = 0

    def ask(self, limit_s: float, now_s: float) -> None:
        """Ask silent ranks where they stand. To be called while all is well otherwise.

        `limit_s`: after this much silence a verdict may fall.
        """
        workers = [w for w in self._job.rank_workers if w.alive and w.progress is not None]
        lead_s = self.lead_s(limit_s)
        silent = [w for w in workers if self._is_silent(w, lead_s, now_s)]
        # A rank that nobody waits for has time.
        if not any(self._waits(w) for w in silent) and not any(w.stopped_since_s is not None for w in silent):
            return
        # Of a rank that has finished nobody wants to know more than whether its peers can be reached.
        finished = [w for w in workers if w.progress is not None and w.progress.phase == RankPhase.FINISHED]
        all_wait = len(silent) + len(finished) == len(workers) and all(self._waits(w) for w in silent)
        for worker in [*silent, *finished] if all_wait else silent:
            self._ask(worker, now_s, all_wait)

    def ask_those(self, workers: Sequence[Worker], limit_s: float, now_s: float) -> None:
        """Ask the silent ones among these workers where they stand. To be called while all others wait for them."""
        for worker in workers:
            if self._is_silent(worker, self.lead_s(limit_s), now_s):
                self._ask(worker, now_s, all_wait=False)

    def lead_s(self, limit_s: float) -> float:
        """Return after how much silence a rank is asked."""
        return max(limit_s - self._policy.explain_lead_s, 0.0)

    def answered(self, worker: Worker, report: Explained) -> None:
        inquiry = self._inquiries.get(worker.worker)
        if inquiry is not None and inquiry.request == report.request:
            inquiry.answer = report

    def answer(self, worker: Worker) -> Explained | None:
        """Return what was seen of the worker in its present silence; None if nothing was."""
        inquiry = self._inquiries.get(worker.worker)
        return inquiry.answer if inquiry is not None and self._is_same_silence(inquiry, worker) else None

    def is_awaited(self, worker: Worker, now_s: float) -> bool:
        """Return whether an answer may still come that a verdict should wait for."""
        inquiry = self._inquiries.get(worker.worker)
        if inquiry is None or not self._is_same_silence(inquiry, worker) or inquiry.answer is not None:
            return False
        return now_s - inquiry.asked_s < self._policy.explain_grace_s

    def is_of_this_wait(self, worker: Worker) -> bool:
        """Return whether the worker was asked since it was last seen at work: only then the answer tells what it waits for."""
        inquiry = self._inquiries.get(worker.worker)
        return inquiry is not None and inquiry.asked_s >= worker.busy_s

    def _is_silent(self, worker: Worker, lead_s: float, now_s: float) -> bool:
        assert worker.progress is not None
        if worker.progress.phase in (RankPhase.SET_UP, RankPhase.FINISHED):
            return False
        return worker.stopped_since_s is not None or worker.silent_s(now_s) >= lead_s

    def _waits(self, worker: Worker) -> bool:
        return worker.progress is not None and worker.progress.waiting

    @staticmethod
    def _is_same_silence(inquiry: _Inquiry, worker: Worker) -> bool:
        # Told ages are rounded by the way they take: what has moved has moved by more than that.
        return abs(_since_s(worker) - inquiry.since_s) < 0.5

    def _ask(self, worker: Worker, now_s: float, all_wait: bool) -> None:
        known = self._inquiries.get(worker.worker)
        pause_s = self._policy.explain_waiting_s if all_wait else self._policy.explain_every_s
        answer = None
        if known is not None and self._is_same_silence(known, worker):
            waits_anew = known.asked_s < worker.busy_s < now_s - _WAITS_S
            if now_s < known.next_s and not waits_anew:
                return
            pause_s = known.pause_s * 2
            answer = None if waits_anew else known.answer  # a verdict waits for the new one
        if all_wait:
            pause_s = min(pause_s, self._policy.explain_waiting_most_s)
        self._requests += 1
        inquiry = _Inquiry(_since_s(worker), self._requests, now_s, now_s + pause_s, pause_s, answer)
        self._inquiries[worker.worker] = inquiry
        self._outbox.to_worker(worker.worker, Explain(self._requests, self._policy.explain_watch_s))


def _since_s(worker: Worker) -> float:
    return worker.moved_s if worker.stopped_since_s is None else worker.stopped_since_s
