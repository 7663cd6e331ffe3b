"""After communicators were broken: frees the threads that gloo leaves asleep, so that the rank comes to a stand."""

from __future__ import annotations

import threading
import time

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.backends.gloo_waits import GlooWaits, Sleeper, sleepers

LOOK_S = 0.25
"""Who has not run for so long after the connections were shut down is not woken by gloo any more: its loop turns every 10 ms."""
PATIENCE_S = 10.0
NAME = "torchrelay-waits"
"""Of the thread that looks."""


class ForgottenWaits:
    """Only for a time in which no communicator is whole: whoever waits for gloo then waits for nothing."""

    def __init__(self, log: LogLines) -> None:
        self._log = log
        try:
            self._gloo: GlooWaits | None = GlooWaits()
        except (UnsupportedError, AttributeError, OSError):
            self._gloo = None  # the controller replaces a rank that does not come to a stand
        self._lock = threading.Lock()
        self._renewed = 0
        """The latest generation that this rank builds communicators for: from then on its waits may be theirs."""

    def watch(self, generation: int) -> None:
        """Until communicators of this generation are built, on a thread of its own."""
        if self._gloo is not None:
            threading.Thread(target=self._watch, args=(generation,), name=NAME, daemon=True).start()

    def renewed(self, generation: int) -> None:
        with self._lock:
            self._renewed = max(generation, self._renewed)

    def _watch(self, generation: int) -> None:
        before: set[Sleeper] = set()
        while self._renewed < generation:
            time.sleep(LOOK_S)
            now = sleepers()
            with self._lock:
                if self._renewed < generation:
                    self._wake(now & before)
            before = now

    def _wake(self, asleep: set[Sleeper]) -> None:
        assert self._gloo is not None
        for buffer in self._gloo.buffers(asleep):
            self._log.say("a thread that gloo had left asleep is woken")
            self._gloo.fail(buffer)

    def none_waits(self) -> bool:
        """Whether no thread waits for gloo; False where that cannot be known."""
        return self._gloo is not None and not self._gloo.buffers(sleepers())

    def free_all(self) -> None:
        """Returns when no thread waits for gloo: those that nobody waits for in turn would keep the process from ending."""
        if self._gloo is None:
            return
        end_s = time.monotonic() + PATIENCE_S
        before = sleepers()
        while self._gloo.buffers(before) and time.monotonic() < end_s:
            time.sleep(LOOK_S)
            now = sleepers()
            self._wake(now & before)
            before = now
