"""The unix socket in a pod: processes come and go under one token, and each gets a name of its own.

The training container can run as another user than the agent, so the socket is open to all users. The user is checked when a
connection comes: root, the agent's user, and one more, the training container's, may speak.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from pathlib import Path

from torchrelay.agent.connections.shim_server import ShimEvents, ShimServer
from torchrelay.protocol.errors import RefusedError, UserError
from torchrelay.protocol.kube import local_ranks
from torchrelay.protocol.messages import Hello
from torchrelay.protocol.names import WorkerId

_GUEST = "guest-"
"""Part of the name of a process that takes no part in the job: it only asks."""


def is_guest(hello: Hello) -> bool:
    """Return whether it is a launcher, or one of several processes that were not started by torchrun."""
    return hello.launcher or (local_ranks.says_several(hello.launch) and not local_ranks.is_torchruns(hello.launch))


_TOKEN_BYTES = 32


def shim_token(path: Path) -> str:
    """Return the token of this pod: the one that an agent before this one has made, or a new one.

    Raises UserError where it cannot be written.
    """
    try:
        if len(known := path.read_text()) == 2 * _TOKEN_BYTES:
            return known
    except (OSError, UnicodeDecodeError):
        pass  # the first agent of this pod, or one that was cut off
    token = secrets.token_hex(_TOKEN_BYTES)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o644)  # the training process may be another user's; nobody else has this volume
            file.write(token)
        partial.rename(path)
    except OSError as e:
        raise UserError(f"the token for training processes cannot be written to {path}: {e}") from e
    return token


class PodShims(ShimServer):
    """The socket of a pod. It takes one process for each local rank at a time: one that is started again has ended before.

    `count`: the file with the number of names that were given, by an agent before this one too. Each name is given once.
    """

    def __init__(
        self, path: Path, node: str, token: str, events: ShimEvents, count: Path, *, training_user: int | None = None
    ) -> None:
        """Set up the socket.

        `training_user`: None if it is not known yet. Then it is the first user that shows the token and is not root.
        """
        super().__init__(path, {}, events, shared=True)
        self._user = training_user
        self._node = node
        self._token = token
        self._count_file = count
        self._guests = self._count = 0
        with contextlib.suppress(OSError, ValueError):
            self._count = int(count.read_text())
        self._places: dict[WorkerId, int] = {}
        """The local rank of each worker that this agent has seen."""

    def may_connect(self, user: int) -> bool:
        return user in (0, os.getuid()) or self._user in (None, 0, user)

    def accepted(self, user: int) -> None:
        if user not in (0, os.getuid()):
            self._user = user

    def identify(self, hello: Hello) -> WorkerId:
        if not hmac.compare_digest(self._token.encode(), hello.token.encode("utf-8", "replace")):
            raise RefusedError("a process with a token of another pod")
        if is_guest(hello):
            self._guests += 1
            return WorkerId(f"{self._node}.{_GUEST}{self._guests}")
        place = local_ranks.place(hello.launch)
        if any(self._places[worker] == place for worker in self._connected if worker in self._places):
            which = f" of local rank {place}" if local_ranks.says_several(hello.launch) else ""
            raise RefusedError(f"a second process{which} of this pod, while the first one lives; one is protected")
        worker = self._known(hello.worker) if hello.again else self._new()
        self._places[worker] = place
        return worker

    def _new(self) -> WorkerId:
        self._count += 1
        self._write_count()
        return WorkerId(f"{self._node}.{self._count}")

    def _write_count(self) -> None:
        with contextlib.suppress(OSError):
            self._count_file.write_text(str(self._count))

    def _known(self, worker: str) -> WorkerId:
        """Return the name of a process that an agent before this one has named: it stays.

        Raises RefusedError for one whose end was told already.
        """
        node, _, number = worker.rpartition(".")
        if node != self._node or not number.isdigit():
            raise RefusedError(f"{worker} is no process of this pod")
        if worker in self._places:
            raise RefusedError(f"{worker} counts as ended")
        if int(number) > self._count:
            self._count = int(number)
            self._write_count()
        return WorkerId(worker)
