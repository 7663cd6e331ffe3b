"""All processes of a job, by name, and those of one node at no cost."""

from __future__ import annotations

from collections import UserDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrelay.controller.job import Worker


class WorkerBook(UserDict[str, "Worker"]):
    """A worker stays on the node that it came with."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, Worker]] = {}
        super().__init__()

    def __setitem__(self, name: str, worker: Worker) -> None:
        if name in self.data:
            del self[name]
        super().__setitem__(name, worker)
        self._on.setdefault(worker.node, {})[name] = worker

    def __delitem__(self, name: str) -> None:
        ours = self._on[self.data[name].node]
        del ours[name]
        if not ours:
            del self._on[self.data[name].node]
        super().__delitem__(name)

    def on(self, node: str) -> list[Worker]:
        """Those of one node."""
        return list(self._on.get(node, {}).values())
