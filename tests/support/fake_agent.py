"""The agent's end of the unix socket, for tests of a single training process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.messages import Ack, FaultInjected, Finishing, Hello, MayFinish
from torchrelay.protocol.transport import wire


class FakeAgent:
    """Answers Hello and FaultInjected with Ack, Finishing with MayFinish; `reports` holds what processes said.

    As context manager it listens on `path`. With `refuse` it closes every connection after Hello.
    """

    def __init__(self, path: Path, *, refuse: bool = False) -> None:
        self.path, self.refuse = path, refuse
        self.reports: list[Any] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []

    def __enter__(self) -> FakeAgent:
        self._server.bind(str(self.path))
        self._server.listen()
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self.die()
        for thread in self._threads:
            thread.join(10)
        self._server.close()

    def die(self) -> None:
        """As by SIGKILL: nobody listens any more, and connections end."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def until(self, true: Callable[[], bool], within_s: float = 30.0) -> None:
        until_s = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < until_s, self.reports
            time.sleep(0.01)

    def _start(self, target: Any, *args: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    report = wire.receive(connection, wire.REPORTS)
                    self.reports.append(report)
                    if self.refuse:
                        return
                    if isinstance(report, (Hello, FaultInjected)):
                        connection.sendall(wire.encode(Ack()))
                    elif isinstance(report, Finishing):
                        connection.sendall(wire.encode(MayFinish()))
                except (TorchrelayError, OSError):
                    return
