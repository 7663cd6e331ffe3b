"""After communicators were broken: frees the threads that gloo leaves asleep, so that the rank comes to a stand."""

from __future__ import annotations

import sys
import threading
import time

from torchrelay.shim.adapters.gloo_waits import GlooWaits, Sleeper, sleepers

LOOK_S = 0.25
"""Who has not run for so long after the connections were shut down is not woken by gloo any more: its loop turns every 10 ms."""
PATIENCE_S = 10.0


class ForgottenWaits:
    """Only for a time in which no communicator is whole: whoever waits for gloo then waits for nothing."""

    def __init__(self) -> None:
        try:
            self._gloo: GlooWaits | None = GlooWaits()
        except (AttributeError, OSError, ValueError):
            self._gloo = None  # what this torch lacks; the controller replaces a rank that does not come to a stand
        self._stop = threading.Event()

    def watch(self) -> None:
        """Until `stop`, on a thread of its own."""
        self.stop()
        if self._gloo is not None:
            self._stop = stop = threading.Event()
            threading.Thread(target=self._watch, args=(stop,), name="torchrelay-waits", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self, stop: threading.Event) -> None:
        before: set[Sleeper] = set()
        while not stop.wait(LOOK_S):
            before = self._look(before, stop)

    def _look(self, before: set[Sleeper], stop: threading.Event) -> set[Sleeper]:
        assert self._gloo is not None
        now = sleepers()
        for buffer in self._gloo.buffers(now & before):
            if not stop.is_set():
                print("torchrelay: a thread that gloo had left asleep is woken", file=sys.stderr, flush=True)
                self._gloo.fail(buffer)
        return now

    def free_all(self) -> None:
        """Returns when no thread waits for gloo: those that nobody waits for in turn would keep the process from ending."""
        if self._gloo is None:
            return
        never, end_s = threading.Event(), time.monotonic() + PATIENCE_S
        before = sleepers()
        while self._gloo.buffers(before) and time.monotonic() < end_s:
            time.sleep(LOOK_S)
            before = self._look(before, never)
