"""A communicator that has failed by itself, while all ranks live: a link that was down for a moment, an error in the library.

Where the host waits for its device nothing raises: the device waits in a collective that never ends, and so do the peers'. The
library knows, and is asked (on the thread of `device_waits`). A peer that dies looks the same at first; of that all ranks are told.
"""

from __future__ import annotations

import time

from torchrelay.protocol.messages import CommunicationFailed
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.comm.generations.communicators import Communicators

NEWS_S = 10.0
"""A connection breaks before it is told that its other end is lost: until then who notices is not the one that failed."""


class FailedCommunicators:
    def __init__(self, comms: Communicators, link: AgentLink) -> None:
        self._comms = comms
        self._link = link
        self._since_s = 0.0
        self._generation = self._told = -1

    def look(self) -> None:
        """Tell the controller, once in a generation, of one that has failed and of no loss in the time since."""
        generation = self._comms.now
        reason = "" if generation.broken else self._comms.failure()
        if not reason or generation.number != self._generation:
            self._since_s = time.monotonic()
            self._generation = generation.number if reason else -1
        elif self._told != generation.number and (age_s := time.monotonic() - self._since_s) > NEWS_S:
            self._told = generation.number
            self._link.send(CommunicationFailed(reason, age_s))
