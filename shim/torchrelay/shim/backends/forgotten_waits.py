"""Free the threads that gloo leaves asleep after communicators were broken, so that the rank comes to a stand."""

from __future__ import annotations

import threading
import time

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.backends.gloo_waits import GlooWaits, Sleeper, sleepers

LOOK_S = 0.25
"""gloo does not wake a thread that has slept for so long after the connections were shut down: its loop turns every 10 ms."""
PATIENCE_S = 10.0
NAME = "torchrelay-waits"
"""The name of the thread that looks for sleeping threads."""


class ForgottenWaits:
    """Wake threads that gloo has forgotten. Use it only while no communicator is whole: then a wait for gloo is for nothing."""

    def __init__(self, log: LogLines) -> None:
        self._log = log
        try:
            self._gloo: GlooWaits | None = GlooWaits()
        except (UnsupportedError, AttributeError, OSError):
            self._gloo = None  # the controller replaces a rank that does not come to a stand
        self._lock = threading.Lock()
        self._renewed = 0
        """The latest generation that this rank builds communicators for. From then on a wait may be for one of these."""

    def watch(self, generation: int) -> None:
        """Wake forgotten threads, on a thread of its own, until communicators of this generation are built."""
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
        """Return whether no thread waits for gloo; False where that cannot be known."""
        return self._gloo is not None and not self._gloo.buffers(sleepers())

    def free_all(self) -> None:
        """Wake forgotten threads until none waits for gloo, for PATIENCE_S at most.

        Such a thread, which no other thread waits for, would keep the process from ending.
        """
        if self._gloo is None:
            return
        end_s = time.monotonic() + PATIENCE_S
        before = sleepers()
        while self._gloo.buffers(before) and time.monotonic() < end_s:
            time.sleep(LOOK_S)
            now = sleepers()
            self._wake(now & before)
            before = now
