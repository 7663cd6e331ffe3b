"""Processes that begin anew in their place, for a rank that goes back to its copy. The agent of a pod starts no process itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from torchrelay.protocol.messages import LateWorker
from torchrelay.protocol.names import WorkerId

log = logging.getLogger(__name__)

END_S = 5.0
"""Time for a process to obey. After that it is ended by signal, and comes again only if the pod's container does."""
BEGIN_S = 60.0
"""Time for the interpreter to start again."""


class RestartsInPlace:
    """The processes of a pod that begin anew. `send`: to the controller."""

    def __init__(self, send: Callable[[LateWorker], None], end_s: float = END_S, begin_s: float = BEGIN_S) -> None:
        self._send = send
        self._end_s = end_s
        self._begin_s = begin_s
        self._ranks: dict[int, int] = {}
        """The rank that each process had, by the process's number, which stays."""

    async def follow(self, pid: int, rank: int, gone: asyncio.Event, kill: Callable[[], None]) -> None:
        """Follow a process that was told to begin anew. `gone`: the end of its present life; `kill` ends it for good.

        If it has not begun within `begin_s`, the controller is told so.
        """
        self._ranks[pid] = rank
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(gone.wait(), self._end_s)
        if not gone.is_set():
            log.warning("rank %d does not obey, and is ended", rank)
            kill()
        await asyncio.sleep(self._begin_s)
        if self._ranks.get(pid) == rank:
            self._refuse(pid, rank, f"has not begun anew within {self._begin_s:.0f} s")

    def connected(self, worker: WorkerId, pid: int) -> None:
        """Tell the controller that a followed process has begun anew. To be called after the controller was told of the process."""
        if (rank := self._ranks.pop(pid, None)) is not None:
            self._send(LateWorker(worker, rank, pid))

    def asked(self, rank: int) -> None:
        """Tell the controller that no process will come for the rank, unless one is on its way."""
        if rank not in self._ranks.values():
            self._send(LateWorker("", rank, 0, "its process has ended, and the agent of a pod cannot start one"))

    def _refuse(self, pid: int, rank: int, reason: str) -> None:
        del self._ranks[pid]
        self._send(LateWorker("", rank, 0, f"its process {reason}"))
