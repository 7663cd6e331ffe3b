"""A training process without torch: says Hello as the shim would, then runs the lines of Python that the test sends.

Usage: fake_worker.py FOLDER, where the test has made a FIFO with the worker's name. Orders of the controller come back
to it as `Disabled(repr(order))`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

sys.path[:0] = os.environ["TORCHRELAY_ROOTS"].split(os.pathsep)

from torchrelay.protocol import names  # noqa: E402 - found by the path above
from torchrelay.protocol.errors import ChannelClosedError  # noqa: E402 - found by the path above
from torchrelay.protocol.journals.journal import JournalWriter  # noqa: E402 - found by the path above
from torchrelay.protocol.messages import Ack, Disabled, Hello  # noqa: E402 - found by the path above
from torchrelay.protocol.transport import wire  # noqa: E402 - found by the path above

WORKER = os.environ[names.ENV_WORKER]
SPARE = os.environ.get(names.ENV_SPARE) == "1"


class Link:
    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ[names.ENV_SOCKET])
        self.acknowledged = threading.Semaphore(0)
        threading.Thread(target=self._receive, daemon=True).start()

    def send(self, *reports: object) -> None:
        self.socket.sendall(b"".join(map(wire.encode, reports)))

    def order(self, order: object) -> None:
        """A test may put something else here."""
        self.send(Disabled(repr(order)))

    def _receive(self) -> None:
        try:
            while True:
                order = wire.receive(self.socket, wire.ORDERS)
                if isinstance(order, Ack):
                    self.acknowledged.release()
                else:
                    self.order(order)
        except ChannelClosedError:
            return


def main() -> None:
    link = Link()
    link.send(Hello(WORKER, os.environ[names.ENV_TOKEN], os.getpid(), sys.version, SPARE))
    link.acknowledged.acquire()
    journal = JournalWriter(Path(os.environ[names.ENV_JOURNAL]))
    known = {"link": link, "journal": journal, "os": os, "sys": sys}
    with open(os.open(Path(sys.argv[1]) / WORKER, os.O_RDWR)) as lines:
        link.send(Disabled("ready"))
        for line in lines:
            exec(line, known)


main()
