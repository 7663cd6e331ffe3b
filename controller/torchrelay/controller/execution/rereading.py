"""Copies of a lost rank's journals, read once more when all stand.

A node can be given up while its processes still run: a pod that is deleted with force is gone from the API before they are.
Then others pass further gates after the copies were read. Nobody passes a gate before the copy of its journal is kept, and
nobody passes another one once all stand: one more read finds what is needed, where anybody has it.
"""

from __future__ import annotations

from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.events import Decision
from torchrelay.protocol.messages import FetchJournal

ANSWER_TIMEOUT_S = 10.0


class Rereading:
    """Once in each generation, since in the next one others stand elsewhere."""

    def __init__(self, job: Job, outbox: Outbox) -> None:
        self._job = job
        self._outbox = outbox
        self._generation = 0
        self._awaited: set[str] = set()
        self._set_ups: dict[int, bytes] = {}
        """By rank, what its joiner has been given."""
        self._deadline_s = 0.0
        self._outcome = ""

    def is_of(self, s: State) -> bool:
        return self._generation == s.generation

    def begin(self, s: State, why: str, now_s: float) -> bool:
        """Asks for newer journals. False where there can be none: they have been asked for, or are nobody's copies."""
        job = self._job
        if self.is_of(s):
            return False
        copied = [w for w in s.lost.values() if job.is_lost_with_node(w) and job.node_with_journal(w)]
        if not copied:
            return False
        self._generation = s.generation
        self._awaited = set(copied)
        self._deadline_s = now_s + ANSWER_TIMEOUT_S
        self._set_ups = {rank: job.journal(rank).set_up for rank in s.lost}
        self._outcome = "also after the copies were read again when all stood"
        text = (
            f"{why}; its process may have gone on after the copies were read: they are read again, since all stand now"
        )
        self._outbox.emit(Decision(s.migration, text))
        for worker in copied:
            self._outbox.to_agent(job.node_with_journal(worker), FetchJournal(worker))
        return True

    def waits_for(self, worker: str) -> bool:
        return worker in self._awaited

    def arrived(self, worker: str) -> bool:
        """Whether this was the last one that was waited for."""
        if worker not in self._awaited:
            return False
        self._awaited.discard(worker)
        return not self._awaited

    def node_lost(self) -> bool:
        """Whether nothing is left to wait for, since whoever had the rest is lost."""
        gone = {worker for worker in self._awaited if not self._job.node_with_journal(worker)}
        if not gone:
            return False
        self._outcome = f"and the node with the copies of {', '.join(sorted(gone))} is lost as well"
        self._awaited -= gone
        return not self._awaited

    def is_late(self, now_s: float) -> bool:
        """Whether waiting ends now."""
        if not self._awaited or now_s < self._deadline_s:
            return False
        nodes = ", ".join(sorted({self._job.node_with_journal(worker) for worker in self._awaited}))
        self._outcome = f"and {nodes} did not send the copies again within {ANSWER_TIMEOUT_S:.0f} s"
        self._awaited.clear()
        return True

    def explain(self, s: State, why: str) -> str:
        """Why that is final."""
        return f"{why}, {self._outcome}" if self.is_of(s) else why

    def outdated(self, s: State) -> dict[str, str]:
        """Return why joiners are of no use that were set up for another loop than newer journals are of, by worker."""
        if not self.is_of(s):
            return {}
        changed = [
            r for r, old in sorted(self._set_ups.items()) if r in s.joiners and old != self._job.journal(r).set_up
        ]
        why = "was set up for a loop that its rank had left when it was lost"
        joiners = {rank: s.joiners[rank].worker for rank in changed}
        return {worker: f"{worker} (rank {rank}) {why}" for rank, worker in joiners.items()}
