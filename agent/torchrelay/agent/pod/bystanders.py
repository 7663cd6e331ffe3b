"""Processes of the training container that take no part in a job. When the last one is gone, the agent has nothing to wait for.

They are known by the container's control group, where the containers of the pod share their processes. Namespaces would say the
same, but not of a process that has capabilities which the agent lacks.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

POLL_S = 0.5
SOON_S = 2.0
RESTARTED_S = 360.0
"""The kubelet starts a container that has failed again after five minutes at the latest."""


class Bystanders:
    """The bystanders of a pod. `restarts`: whether the kubelet may start the container again."""

    def __init__(self, restarts: bool, proc: Path = Path("/proc")) -> None:
        self._patience_s = RESTARTED_S if restarts else SOON_S
        self._proc = proc
        self._groups: set[str] = set()
        self._any = asyncio.Event()

    def add(self, pid: int) -> None:
        """Take in a bystander. `pid` is 0 where it cannot be seen: then nothing is known of its end."""
        if pid and (group := self._group(str(pid))):
            self._groups.add(group)
            self._any.set()

    async def gone(self) -> None:
        """Wait until there was a bystander, and none has been there for a while."""
        await self._any.wait()
        loop = asyncio.get_running_loop()
        missed_s: float | None = None
        while True:
            # Times are counted from look to look: time in which this agent did not run says nothing.
            now_s = loop.time()
            missed_s = None if self._is_there() else now_s if missed_s is None else missed_s
            if missed_s is not None and now_s - missed_s >= self._patience_s:
                return
            await asyncio.sleep(POLL_S)  # nobody tells of another container's processes

    def _is_there(self) -> bool:
        own = str(os.getpid())
        pids = [name for name in os.listdir(self._proc) if name.isdigit() and name != own]
        return any(self._group(pid) in self._groups for pid in pids)

    def _group(self, pid: str) -> str:
        try:
            return (self._proc / pid / "cgroup").read_text()
        except OSError:
            return ""  # it is gone
