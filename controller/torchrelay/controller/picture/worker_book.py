"""All processes of a job, by name, and those of one node at no cost."""

from __future__ import annotations

from torchrelay.controller.picture.worker import Worker


class WorkerBook(dict[str, Worker]):
    """A worker stays on the node that it came with. Entries come by `book[name] = worker`, and go by `del` or `forget`."""

    def __init__(self) -> None:
        super().__init__()
        self._on: dict[str, dict[str, Worker]] = {}

    def __setitem__(self, name: str, worker: Worker) -> None:
        self.forget(name)
        super().__setitem__(name, worker)
        self._on.setdefault(worker.node, {})[name] = worker

    def __delitem__(self, name: str) -> None:
        node = self[name].node
        super().__delitem__(name)
        del self._on[node][name]
        if not self._on[node]:
            del self._on[node]

    def forget(self, name: str) -> None:
        """One that is not there is forgotten already."""
        if name in self:
            del self[name]

    def on(self, node: str) -> list[Worker]:
        """Those of one node."""
        return list(self._on.get(node, {}).values())
