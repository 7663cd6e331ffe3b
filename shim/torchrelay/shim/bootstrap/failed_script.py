"""A script has failed: says so, and, beside other ranks in one pod, waits for the verdict.

torchrun ends all processes of a pod for one that has failed. Where it was the device's fault, or that of a migration, the rank is
replaced, and this process is ended from outside: that looks like a kill, and the others of its pod train on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.kube import local_ranks
from torchrelay.protocol.messages import ScriptFailed
from torchrelay.shim.agent_link.link import AgentLink

VERDICT_S = 5.0
"""Where nobody answers the script fails as it does without us."""


def tell(link: AgentLink, failure: BaseException, boundary: int) -> None:
    code = failure.code if isinstance(failure, SystemExit) and isinstance(failure.code, int) else 1
    ours = isinstance(failure, TorchrelayError) and not isinstance(failure, UserError)
    link.send(ScriptFailed(type(failure).__name__, str(failure)[:1000], code, boundary, ours))


def await_verdict(launch: Mapping[str, str], may_finish: threading.Event, within_s: float = VERDICT_S) -> None:
    """`launch`: what this process's launcher has told it. Returns when it may fail."""
    if local_ranks.says_several(launch):
        may_finish.wait(within_s)
