"""A process that cannot go on as its rank says why, and ends itself: what it holds must reach nobody."""

from __future__ import annotations

import os
import signal

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.messages import Unfit
from torchrelay.shim.agent_link.link import AgentLink

REASON_CHARS = 500


def end(link: AgentLink, log: LogLines, reason: str, *, by_script: bool = False) -> None:
    """Tell the reason, and end this process. `by_script`: whether what the script does may be the cause.

    Does not return. From any thread: the training thread may wait for a device that never answers, and no handler of a signal would
    run then.
    """
    log.say(f"this rank cannot go on, and has to be replaced: {reason}")
    link.send(Unfit(reason[:REASON_CHARS], by_script))
    os.kill(os.getpid(), signal.SIGKILL)
