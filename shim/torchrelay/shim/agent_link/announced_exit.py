"""`os._exit` in a process whose parent is none of ours: told first, or it would look like a kill, which a spare would repeat."""

from __future__ import annotations

import os
import threading
from typing import NoReturn

from torchrelay.protocol.messages import ScriptFailed
from torchrelay.shim.agent_link.link import AgentLink

AT_MOST_S = 1.0
leave = os._exit
"""The real one."""


def install(link: AgentLink) -> None:
    process = os.getpid()

    def _exit(status: int) -> NoReturn:
        code = status & 0xFF  # raises as the real one does, for what is no number
        if os.getpid() == process:
            report = ScriptFailed("os._exit", f"os._exit({code})", code, -1)
            # A thread of its own speaks: whoever calls this, in a signal handler perhaps, may hold any lock.
            teller = threading.Thread(target=link.send, args=(report,), name="torchrelay-end", daemon=True)
            teller.start()
            teller.join(AT_MOST_S)
        leave(status)

    os._exit = _exit
