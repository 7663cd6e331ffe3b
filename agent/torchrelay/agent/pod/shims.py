"""The unix socket in a pod: processes come and go under one token, and each gets a name of its own."""

from __future__ import annotations

import hmac
from pathlib import Path

from torchrelay.agent.shim_server import ShimEvents, ShimServer
from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.messages import Hello
from torchrelay.protocol.names import WorkerId

_GUEST = "guest-"
"""In the name of one that takes no part in the job: it only asks."""


def is_guest(hello: Hello) -> bool:
    return hello.launcher or (not hello.spare and hello.launch.get("LOCAL_WORLD_SIZE", "1") != "1")


class PodShims(ShimServer):
    """One process at a time: a container that starts again has ended before."""

    def __init__(self, path: Path, node: str, token: str, events: ShimEvents) -> None:
        super().__init__(path, {}, events, shared=True)
        self._node, self._token = node, token
        self._count = self._guests = 0

    def identify(self, hello: Hello) -> WorkerId:
        if not hmac.compare_digest(self._token.encode(), hello.token.encode("utf-8", "replace")):
            raise RefusedError("a process with a token of another pod")
        if is_guest(hello):
            self._guests += 1
            return WorkerId(f"{self._node}.{_GUEST}{self._guests}")
        if any(_GUEST not in worker for worker in self._connected):
            raise RefusedError("a second process of this pod, while the first one lives; one for each pod is protected")
        if hello.again:
            return self._known(hello.worker)
        self._count += 1
        return WorkerId(f"{self._node}.{self._count}")

    def _known(self, worker: str) -> WorkerId:
        """Of an agent before this one: its name stays. Raises RefusedError for one whose end was told already."""
        node, _, number = worker.rpartition(".")
        if node != self._node or not number.isdigit():
            raise RefusedError(f"{worker} is no process of this pod")
        if int(number) <= self._count:
            raise RefusedError(f"{worker} counts as ended")
        self._count = int(number)
        return WorkerId(worker)
