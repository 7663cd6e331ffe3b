"""Watches nodes as a whole: which one is lost, and which one keeps copies of another one's journals."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.silence import END, GIVE_UP, Silence, WitnessRank, judge_silence
from torchrelay.controller.decide.protection.copies import Ring
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.node import Node
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.processes.exits import Exits
from torchrelay.protocol.events import JournalsKept, NodeLost
from torchrelay.protocol.messages import CopyJournals, JournalCopyLost, JournalsCopied, StopJob
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.transport.telling import TELL_S
from torchrelay.protocol.words.positions import STANDS_STILL

FIRST_RETRY_S = 10.0
LAST_RETRY_S = 640.0
"""Time between attempts to copy journals: each may hold training up for as long as a shim waits for an answer."""
FORGIVEN_S = 600.0
"""Copies that went well for this long begin with the first pause again when they are lost."""
OWN_STALL_S = 1.5
"""If the time between two ticks is longer than agreed by so much, this process did not run. While all is calm there is one as often
as agents are to tell."""


@dataclass(frozen=True)
class _Failed:
    """A keeper that has failed. Another keeper is tried at once: a node that has just been lost fails before that is known."""

    keeper: str
    at_s: float
    pause_s: float

    @property
    def forgiven_s(self) -> float:
        return self.at_s + self.pause_s + FORGIVEN_S

    def bars(self, keeper: str, now_s: float) -> bool:
        return keeper == self.keeper and now_s < self.at_s + self.pause_s


SOON_S = 1.0
"""As long as it may take until the clock is looked at while all is calm."""
ASKED_AFTER_S = 3.0
"""Agents are asked when ranks have stood still for this long at most.

So a node that is gone since then is noticed without delay.
"""
WITNESSES = 16
"""The most ranks that are named of each sort in a large job."""


@dataclass(frozen=True)
class _Around:
    """What counts for every node that is silent. `living`: how many ranks there are."""

    living: int
    witnesses: tuple[WitnessRank, ...]
    unprotected_because: str


class Nodes:
    """The nodes of one job. `lost(node)` is called when a node was given up, before its workers are.

    `end_job(exit_code, reason)` ends the job. `may_give_up(node, now_s)`: whether the job may go on without the node.
    `fenced_after_s`: as in Silence.
    """

    def __init__(
        self,
        policy: Policy,
        job: Job,
        outbox: Outbox,
        exits: Exits,
        lost: Callable[[str, float], None],
        end_job: Callable[[int, str], None],
        may_give_up: Callable[[str, float], bool],
        fenced_after_s: float = 0.0,
    ) -> None:
        self._fenced_after_s = fenced_after_s
        self._may_give_up = may_give_up
        self._policy = policy
        self._job = job
        self._outbox = outbox
        self._exits = exits
        self._lost = lost
        self._end_job = end_job
        self._said: dict[str, str] = {}
        self._failed: dict[str, _Failed] = {}
        """Copies of a worker's journals that failed last."""
        self._looked_s: float | None = None
        self._agreed_s = TELL_S
        """Between the last tick and this one, at most."""
        self._around: _Around | None = None
        """What was seen in this look at all nodes; None where something has been done since."""
        self.to_hang_up: list[str] = []
        """Nodes whose streams are of no use any more. The holder of the streams takes them out."""

    def is_uneasy(self, now_s: float) -> bool:
        """Return whether some node may soon have to be given up."""
        limit_s = self._policy.node_silent_s - SOON_S
        return any(
            node.away_since_s is not None or self._silent_s(node, now_s) >= limit_s
            for node in self._living(self._job.by_node())
        )

    def asked(self, now_s: float) -> None:
        """Count the silence of each node until now as ASKED_AFTER_S at most: it was as agreed.

        All nodes are to tell more often from now on.
        """
        for node in self._job.nodes.values():
            node.heard_s = max(node.heard_s, now_s - ASKED_AFTER_S)

    def heard(self, node: str, now_s: float) -> None:
        if node in self._job.nodes:
            self._job.nodes[node].heard_s = now_s

    def is_lost(self, node: str) -> bool:
        return node in self._job.nodes and bool(self._job.nodes[node].lost)

    def is_back(self, node: str) -> None:
        """End the workers of a lost node that is back: its ranks live elsewhere."""
        known = self._job.nodes[node]
        reason = f"{node} was given up, and its ranks live elsewhere: {known.lost}"
        self._outbox.orders.append((node, StopJob(1, int(signal.SIGKILL), reason)))
        self._outbox.log_once("warning", f"{node} is back; its workers are ended, since its ranks live elsewhere")

    def release(self, node: str, reason: str, now_s: float) -> None:
        """End the agent of a node of which no process takes part any more.

        Another node keeps from now on what it has kept for others.
        """
        if node in self._job.nodes:
            self._job.nodes[node].released = True
            self.assign_keepers(now_s)
            self._outbox.to_agent(node, StopJob(0, int(signal.SIGTERM), reason))

    def gone(self, node: str, reason: str, now_s: float) -> None:
        """Give up a node that is known to be gone, without waiting for its silence.

        If the job cannot be repaired, leave it to the clock.
        """
        known = self._job.nodes.get(node)
        if known is None or known.lost or self._job.unprotected_because():
            return
        if self._holds_anyone(known):
            self._give_up(known, reason, now_s)
            return
        known.lost = reason  # no rank is lost with it, but the copies that its agent kept are
        self.to_hang_up.append(node)
        self.assign_keepers(now_s)
        self._lost(node, now_s)

    def tick(self, now_s: float) -> None:
        if self._looked_s is not None and now_s - self._looked_s > OWN_STALL_S + self._agreed_s:
            self._excuse(now_s - self._looked_s)
        self._looked_s = now_s
        self._agreed_s = self._job.tell_s
        of = self._job.by_node()
        self._around = None
        for node in list(self._living(of)):
            self._judge(node, of.get(node.node, []), now_s)
        self.assign_keepers(now_s)

    def _excuse(self, stall_s: float) -> None:
        """Add the time in which this process did not run: what agents said meanwhile may still be unread."""
        for node in self._job.nodes.values():
            node.heard_s += stall_s
            if node.away_since_s is not None:
                node.away_since_s += stall_s

    def _holds_anyone(self, node: Node) -> bool:
        return not node.lost and any(w.alive for w in self._workers_of(node))

    def _living(self, of: Mapping[str, Sequence[Worker]]) -> Iterator[Node]:
        """Yield the nodes that are not lost and have a living worker. `of`: the workers of each node."""
        return (n for n in self._job.nodes.values() if not n.lost and any(w.alive for w in of.get(n.node, ())))

    def _workers_of(self, node: Node) -> list[Worker]:
        return self._job.workers.on(node.node)

    def _judge(self, node: Node, workers: Sequence[Worker], now_s: float) -> None:
        job = self._job
        away = node.away_since_s is not None
        silent_s = self._silent_s(node, now_s)
        if silent_s < (self._policy.node_away_s if away else self._policy.node_silent_s):
            self._said[node.node] = ""
            return  # of most nodes at most times: to ask what others say costs a look at all of them
        ranks = tuple(w.rank for w in workers if w.alive and w.rank != NO_RANK)
        if self._around is None:
            self._around = self._look_around(now_s)
        around = self._around
        elsewhere = around.living > sum(w.alive and job.is_holder(w) for w in workers)
        seen = [w for w in around.witnesses if w.node != node.node]
        because = around.unprotected_because
        fenced_after_s = self._fenced_after_s
        silence = Silence(node.node, silent_s, away, ranks, not elsewhere, tuple(seen), because, fenced_after_s)
        verdict = judge_silence(silence, self._policy)
        if verdict.action == GIVE_UP:
            if self._may_give_up(node.node, now_s):
                self._around = None
                self._give_up(node, verdict.reason, now_s)
        elif verdict.action == END:
            self._around = None
            self._end_job(1, verdict.reason)
        elif verdict.reason != self._said.get(node.node, ""):
            self._said[node.node] = verdict.reason
            if verdict.reason:
                self._outbox.log("warning", verdict.reason)

    def _silent_s(self, node: Node, now_s: float) -> float:
        """Return for how long the node is away, or silent beyond what was agreed."""
        if node.away_since_s is not None:
            return now_s - node.away_since_s
        return now_s - node.heard_s - (self._job.tell_s - TELL_S)

    def _look_around(self, now_s: float) -> _Around:
        """Look at all ranks, once for all nodes that are silent now."""
        living = [w for w in self._job.rank_workers if w.alive]
        witnesses = [
            WitnessRank(w.rank, w.progress.waiting or w.progress.phase in STANDS_STILL, w.silent_s(now_s), w.node)
            for w in living
            if w.progress is not None and self._is_heard(w.node, now_s)
        ]
        stuck = [w for w in witnesses if w.stands and w.still_s >= self._policy.node_stuck_s]
        told = [*stuck[:WITNESSES], *witnesses[:WITNESSES]] if len(witnesses) > 2 * WITNESSES else witnesses
        return _Around(len(living), tuple(told), self._job.unprotected_because())

    def _is_heard(self, node: str, now_s: float) -> bool:
        known = self._job.nodes[node]
        return known.away_since_s is None and now_s - known.heard_s < self._policy.node_away_s

    def _give_up(self, node: Node, reason: str, now_s: float) -> None:
        node.lost = reason
        self.to_hang_up.append(node.node)
        workers = [w for w in self._workers_of(node) if w.alive]
        ranks = tuple(sorted(w.rank for w in workers if w.rank != NO_RANK))
        without = sorted(w.rank for w in workers if w.rank != NO_RANK and not w.copied_to)
        self._outbox.emit(NodeLost(node.node, ranks, sum(w.rank == NO_RANK for w in workers), reason))
        if without:
            listed = ", ".join(map(str, without))
            self._outbox.log("warning", f"no other node has whole copies of the journals of these ranks: {listed}")
        self.assign_keepers(now_s)
        since_s = node.heard_s if node.away_since_s is None else node.away_since_s
        for worker in workers:
            self._exits.lost_with_node(worker, f"rank {worker.rank} is lost with {node.node}: {reason}", since_s, now_s)
        self._lost(node.node, now_s)

    # What becomes of copies of journals.

    def assign_keepers(self, now_s: float) -> None:
        """Name to each rank the node that is to keep copies of its journals, where that has changed."""
        job = self._job
        if len(job.nodes) < 2 or job.protection != "on":
            return
        there = [n.node for n in job.nodes.values() if not (n.lost or n.released) and n.away_since_s is None]
        ring = Ring(there, job.machines)
        for worker in job.rank_workers:
            if not worker.alive or job.nodes[worker.node].lost:
                continue
            keeper = ring.keeper_of(worker.node)
            failed = self._failed.get(worker.worker)
            if keeper == worker.copies_to or (failed is not None and failed.bars(keeper, now_s)):
                continue
            kept = job.nodes.get(worker.copies_to)
            beside = ring.are_beside(worker.node, worker.copies_to) and not ring.are_beside(worker.node, keeper)
            if kept is not None and not (kept.lost or kept.released) and worker.copied_to and not beside:
                continue  # copies that are whole are not given up because an agent stays away for a moment
            worker.copies_to = keeper
            worker.copied_to = ""
            known = job.nodes.get(keeper)
            order = CopyJournals("", "", 0, b"")
            if known is not None:
                order = CopyJournals(keeper, known.host, known.copies_port, known.copies_token)
            self._outbox.to_worker(worker.worker, order)

    def copied(self, worker: Worker, report: JournalsCopied, now_s: float) -> None:
        if report.node == worker.copies_to and not worker.copied_to:
            worker.copied_to = report.node
            everybody = all(w.copied_to for w in self._job.rank_workers)
            self._outbox.emit(JournalsKept(worker.rank, report.node, report.boundary, everybody))

    def copy_lost(self, worker: Worker, report: JournalCopyLost, now_s: float) -> None:
        if report.node != worker.copies_to:
            return
        worker.copies_to = ""
        worker.copied_to = ""
        pause_s = FIRST_RETRY_S
        before = self._failed.get(worker.worker)
        if before is not None and before.keeper == report.node and now_s < before.forgiven_s:
            pause_s = min(2 * before.pause_s, LAST_RETRY_S)
        self._failed[worker.worker] = _Failed(report.node, now_s, pause_s)
        text = f"the journals of rank {worker.rank} are copied to {report.node} no more: {report.reason}"
        self._outbox.log("warning", f"{text}; tried again in {pause_s:.0f} s")
