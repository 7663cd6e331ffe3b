"""How a process ended that is no child of the agent: from what it has said, since the kernel tells its parent alone. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from torchrelay.protocol.messages import WorkerExited

LOST_EXIT_CODE = 128 + signal.SIGKILL


@dataclass
class LastWords:
    """`failed`: exit code of a script that failed; `finishing`: it had reached its end; `told_to_end`: by the controller."""

    failed: int | None = None
    finishing: bool = False
    told_to_end: bool = False


def how_it_ended(worker: str, words: LastWords) -> WorkerExited:
    """Whoever goes without a word was killed, as far as anyone can tell; `os._exit` looks the same."""
    if words.told_to_end:
        return WorkerExited(worker, LOST_EXIT_CODE, int(signal.SIGKILL), True)
    if words.failed is not None:
        return WorkerExited(worker, words.failed, 0, False)
    if words.finishing:
        return WorkerExited(worker, 0, 0, False)
    return WorkerExited(worker, LOST_EXIT_CODE, int(signal.SIGKILL), False)
