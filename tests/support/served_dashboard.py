"""A dashboard that is served to a real browser, of runs that a test tells."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable

from support import told_runs
from torchrelay.dashboard import guard, server
from torchrelay.dashboard.hub import Answer, Hub
from torchrelay.dashboard.tokens import one_token
from torchrelay.dashboard.view import Seen
from torchrelay.protocol import events as e


class ToldRun:
    """A run that a test tells, event by event; what is asked of it is noted, and called done."""

    def __init__(self, told: Iterable[told_runs.Told], actions: bool = False, late_s: float = 0.0) -> None:
        self.record = told_runs.record_of(told)
        self._actions, self._late_s = actions, late_s
        self.asked: list[tuple[object, ...]] = []

    def tell(self, told: Iterable[told_runs.Told]) -> None:
        for time_s, what in told:
            self.record.take(what, time_s)

    def end(self, exit_code: int = 0) -> None:
        self.tell([(self.record.newest_s + 1, e.JobFinished(exit_code, ""))])

    def seen(self) -> Seen:
        command = "run --nproc-per-node 4 --spares 2 train.py"
        return Seen(self.record, self.record.newest_s + self._late_s, command, actions=self._actions)

    async def migrate(self, rank: int, reason: str, by: str) -> Answer:
        self.asked.append((rank, reason))
        return Answer(True, "migration m3 is under way")

    async def clear(self, subject: str, reason: str, check: bool, by: str) -> Answer:
        self.asked.append((subject, reason))
        return Answer(True, f"{subject} may be used again")


class Served:
    """A dashboard of these runs, on a thread of its own; `address` ends with a slash."""

    def __init__(self, runs: dict[str, ToldRun], token: str) -> None:
        hub = Hub()
        for name, run in runs.items():
            hub.put(name, run)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._server = server.make_server(server.make_app(hub, guard.LOOPBACK_NAMES, one_token(token)))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve([self._socket])))
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._socket.close()
