"""SIGTERM in a pod: its rank is moved within the pod's grace period, instead of being lost at once.

A script that handles the signal itself is left to it, whether it does so before or after this.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from torchrelay.protocol.messages import MigrationWanted
from torchrelay.protocol.names import TOLD_TO_END
from torchrelay.shim.agent_link.link import AgentLink


class LastNotice:
    """Tells of SIGTERM. `within_s`: after that the process ends by the signal, as it does at once when it comes again."""

    def __init__(self, link: AgentLink, within_s: float) -> None:
        self._link = link
        self._within_s = within_s
        self._process = os.getpid()
        self._told = False
        self._read, self._write = os.pipe()

    def install(self) -> None:
        """Handle SIGTERM. To be called on any thread; it does something on the main one only."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        threading.Thread(target=self._tell, name="torchrelay-last-notice", daemon=True).start()
        signal.signal(signal.SIGTERM, self._arrived)

    def remove_in_child(self) -> None:
        """Let a process that was forked end by the signal, as without us."""
        if signal.getsignal(signal.SIGTERM) == self._arrived:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        # In a signal handler the main thread may hold any lock, so another one has to speak.
        if self._told or self._link.lost or os.getpid() != self._process:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._told = True
        os.write(self._write, b"t")

    def _tell(self) -> None:
        os.read(self._read, 1)
        self._link.send(MigrationWanted(TOLD_TO_END))
        threading.Event().wait(self._within_s)
        os.kill(self._process, signal.SIGTERM)
