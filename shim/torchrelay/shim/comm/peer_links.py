"""Whether peers answer over the communicators' connections. Looked at when the rank is silent, on the agent's word.

That a connection is idle proves nothing: while it is looked at, the kernel asks the peer's kernel every second, also when the
peer's process is stopped or busy. What nobody answers is not broken by that: whether it is given up is the controller's to say.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import NamedTuple

from torchrelay.protocol.messages import LinkState
from torchrelay.shim.adapters.process_groups import tcp
from torchrelay.shim.adapters.process_groups.sockets import Inode

PROBING_S = 20.0
"""After the last look: longer than the controller lets pass between two looks at a job in which all ranks wait."""
MOST_PROBES = 100
"""The kernel would break the connection after 127. Who has not answered so many need not be asked again."""


class _Probed(NamedTuple):
    since_s: float
    before: tcp.Keepalive


class PeerLinks:
    def __init__(self, probing_s: float = PROBING_S) -> None:
        self._probing_s = probing_s
        self._probed: dict[Inode, _Probed] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def probe(self, inodes: set[Inode]) -> None:
        """Ask the peers of these connections from now on, until this was not called for a while."""
        with self._lock, tcp.connections(inodes) as found:
            for inode, fd in found.items():
                if inode not in self._probed:
                    with contextlib.suppress(OSError):
                        reading = tcp.read(fd)
                        if reading is not None and reading.probes < MOST_PROBES:
                            self._probed[inode] = _Probed(time.monotonic(), tcp.keep_alive(fd))
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._probing_s, self.stop)
            self._timer.name = "torchrelay-links"
            self._timer.daemon = True
            self._timer.start()

    def look(self, inodes: set[Inode], *, carry_all: bool) -> tuple[LinkState, ...]:
        """Return how the connections are. `carry_all`: whether ranks talk to each other over these alone."""
        links = []
        with self._lock, tcp.connections(inodes) as found:
            for inode, fd in found.items():
                with contextlib.suppress(OSError):
                    reading = tcp.read(fd)
                    if reading is not None:
                        links.append(self._state(inode, fd, reading, reading.quiet_s if carry_all else 0.0))
        return tuple(sorted(links, key=lambda link: (link.local, link.remote)))

    def _state(self, inode: Inode, fd: int, reading: tcp.Reading, quiet_s: float) -> LinkState:
        probed = self._probed.get(inode)
        probed_s = time.monotonic() - probed.since_s if probed is not None else 0.0
        # Before the first unanswered packet it may have been idle for any time.
        asked_s = reading.silent_s if reading.probes >= MOST_PROBES else max(probed_s, reading.retried_s)
        unanswered_s = min(reading.silent_s, asked_s) if reading.is_overdue else 0.0
        return LinkState(*tcp.ends(fd), unanswered_s, probed_s, reading.silent_s, quiet_s)

    def stop(self) -> None:
        """Put the connections back as they were before."""
        with self._lock, tcp.connections(set(self._probed)) as found:
            for inode, fd in found.items():
                with contextlib.suppress(OSError):
                    tcp.put_back(fd, self._probed[inode].before)
            self._probed.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
