"""A roll-back of all ranks to their kept copies: asks the agents for them, and finds the processes that take over."""

from __future__ import annotations

from collections import Counter

from torchrelay.controller.decide.roll_back import choose_step
from torchrelay.controller.decide.stand import Cannot
from torchrelay.controller.job import Job, Worker
from torchrelay.controller.outbox import Outbox
from torchrelay.protocol import migration_events as m
from torchrelay.protocol.messages import FetchKept, KeptCopies, KeptCopy, LateWorker, StartWorker
from torchrelay.protocol.migration_state import State
from torchrelay.protocol.names import NO_RANK

STARTS = 4
"""How many processes one rank may use up in a roll-back before a spare is asked for."""


class Rollback:
    """One at a time, as migrations are. `every`: steps between copies; 0: there are none."""

    def __init__(self, every: int, job: Job, outbox: Outbox) -> None:
        self._every, self._job, self._outbox = every, job, outbox
        self._awaited: set[str] = set()
        self._found: dict[int, dict[int, dict[str, KeptCopy]]] = {}
        self._why = ""
        self._nodes: dict[int, str] = {}
        """By rank, where it enters."""
        self._in_place: set[int] = set()
        self._starting: set[int] = set()
        self._starts: Counter[int] = Counter()
        self.copies: dict[int, KeptCopy] = {}
        """By rank, what it goes on from; of the last roll-back that was decided."""

    @property
    def is_on(self) -> bool:
        return self._every > 0

    def ask(self, why: str) -> None:
        """Wants to know of all copies; `why` says for what reason nothing less will do."""
        self._why, self._found = why, {}
        self._awaited = {node.node for node in self._job.nodes.values() if not node.lost}
        for node in self._awaited:
            self._outbox.to_agent(node, FetchKept())

    def arrived(self, node: str, message: KeptCopies) -> bool:
        """Whether this was the last word that was waited for."""
        for copy in message.copies:
            self._found.setdefault(copy.rank, {}).setdefault(copy.boundary, {})[node] = copy
        return message.last and self.heard_all(node)

    def heard_all(self, node: str) -> bool:
        """`node` has said all that it will say, or is lost."""
        if node not in self._awaited:
            return False
        self._awaited.discard(node)
        return not self._awaited

    def decide(self, s: State) -> m.RollBackDecided | m.TargetImpossible:
        """From what was found. Forgets of the job what lies behind the step that all go back to."""
        job = self._job
        places = {rank: job.holder(rank).node for rank in s.survivors}
        places |= {rank: job.workers[joiner.worker].node for rank, joiner in s.joiners.items()}
        alone = [rank for rank in s.lost if rank not in s.joiners]
        for rank in alone:
            leaver = job.workers[s.lost[rank]]
            if because := job.nodes[leaver.node].lost or job.quarantined(leaver):
                return m.TargetImpossible(f"{self._why}; {s.no_spare}; and rank {rank} cannot start over: {because}")
            places[rank] = leaver.node
        held = {rank: {b: set(nodes) for b, nodes in by.items()} for rank, by in self._found.items()}
        step = choose_step(held, places, {rank: s.standings[rank] for rank in s.survivors})
        if isinstance(step, Cannot):
            return m.TargetImpossible(f"{self._why}; and {step.reason}")
        self._nodes = places
        self.copies = {rank: self._found[rank][step.boundary][node] for rank, node in places.items()}
        stale = tuple(rank for rank in s.joiners if self.copies[rank].set_up != job.journal(rank).set_up)
        self._in_place, self._starting = {*s.survivors, *stale, *alone}, set()
        self._starts.clear()
        job.go_back(step.boundary)
        return m.RollBackDecided(step.boundary, step.redone, f"{step.reason}: {self._why}", stale)

    def target(self, s: State) -> m.TargetDecided:
        boundary = next(iter(self.copies.values())).boundary
        return m.TargetDecided(
            boundary,
            f"all ranks enter at boundary {boundary} from their copies",
            actions={},
            entries=dict.fromkeys(range(s.world_size), "enter"),
            donors={},
            tokens={},
            peer_hosts={},
        )

    # Who takes over. Survivors go on where they were, in new processes; spares are for what was lost, if there are any.

    def process_for(self, rank: int) -> m.SpareChosen | m.NoSpare | None:
        """None: one of the spares is to be taken."""
        found = next((w for w in self._job.spares if w.started_for == rank), None)
        if found is not None and found.warm:
            self._job.workers[found.worker].rank = rank
            self._starting.discard(rank)
            return m.SpareChosen(rank, found.worker, f"rank {rank} starts over on {found.node}, as {found.worker}")
        if found is None and rank not in self._starting:
            if rank not in self._in_place or self._starts[rank] >= STARTS:
                return None
            self._starts[rank] += 1
            self._starting.add(rank)
            self._outbox.to_agent(self._nodes[rank], StartWorker(rank))
        return m.NoSpare(rank, f"rank {rank} waits for the process in which it starts over", soon=True)

    def started(self, node: str, message: LateWorker, now_s: float) -> None:
        if message.pid == 0:
            self._outbox.log("warning", f"{node} could not start a process for rank {message.rank}: {message.reason}")
            self._starting.discard(message.rank)
            return
        worker = Worker(message.worker, node, message.pid, NO_RANK, news_s=now_s)
        worker.started_for = message.rank
        self._job.workers[message.worker] = worker

    def ended(self, worker: Worker) -> None:
        """A process that was started for a rank is gone before it was given it."""
        self._starting.discard(worker.started_for)
