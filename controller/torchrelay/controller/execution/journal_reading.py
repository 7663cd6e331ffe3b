"""Reads lost ranks' journals, which a migration waits for. If the node that was asked is lost too, another one is asked."""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.messages import FetchJournal


class JournalReading:
    """Reads them. `is_read(rank, now_s)` is called once all of the rank's journal that is left has been heard."""

    def __init__(self, job: Job, outbox: Outbox, is_read: Callable[[int, float], None]) -> None:
        self._job = job
        self._outbox = outbox
        self._is_read = is_read
        self._asked: dict[str, tuple[int, str]] = {}
        """Worker -> its rank, and the node that was asked."""

    def ask(self, worker: str, rank: int, now_s: float) -> None:
        """Ask for the journal that the worker has left of the rank."""
        self._asked.pop(worker, None)
        if node := self._job.node_with_journal(worker):
            self._asked[worker] = rank, node
            self._outbox.to_agent(node, FetchJournal(worker))
        else:
            self._is_read(rank, now_s)

    def waits_for(self, worker: str) -> bool:
        return worker in self._asked

    def arrived(self, worker: str, now_s: float) -> None:
        """Take note that the worker's node has told what it has of the journal."""
        if (asked := self._asked.pop(worker, None)) is not None:
            self._is_read(asked[0], now_s)

    def node_lost(self, node: str, now_s: float) -> None:
        """Ask elsewhere for the journals that a lost node owed."""
        for worker, (rank, asked) in list(self._asked.items()):
            if asked == node:
                self.ask(worker, rank, now_s)
