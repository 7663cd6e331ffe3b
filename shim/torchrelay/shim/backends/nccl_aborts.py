"""Abort communicators of NCCL, each on a thread of its own, and look whether that comes to an end.

How long an abort takes is not known ahead. It ends when the device has left all collectives that are queued, some 26 ms each on a
GPU (docs/gpu.md), and what the script has queued before them is computed first. So the clock runs only while nothing moves: no
abort has ended, no collective has left the device, and the device does not compute. What does not move for STILL_S is stuck: the
process may wait on its device for ever, and perhaps only this thread can still say so.

Seen on torch 2.13.0 with the imitated GPU of tests/imitated_gpu.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.adapters.process_groups.nccl_trace import waiting_collectives
from torchrelay.shim.backends.nccl_interface import library

STILL_S = 10.0
"""An abort between processes that share one GPU took 0.7 s at most, without a queue. What is slow on one machine may be so on all:
to take that for stuck would cost all ranks at once."""
LOOK_EVERY_S = 0.25
_SLOW_ABORT_S = 1.0


class Aborts:
    def __init__(self) -> None:
        self._freed: dict[int, Any] = {}
        """Communicators by their addresses. An address is not given to another object as long as its communicator is kept here."""
        self._aborting: set[threading.Thread] = set()
        self._ended: list[threading.Thread] = []
        """Threads whose abort is over. Each may hold its communicator until `await_over` has joined it."""
        self._stuck: set[threading.Thread] = set()
        self._changed = threading.Condition()
        self.stream: Any = None
        """The training thread's stream. It is asked whether the device computes."""

    def begin(
        self, communicators: Iterable[Any], log: LogLines, stuck: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Abort each communicator once, and return at once. `stuck(reason)` is called, on a thread, where that does not end."""
        with self._changed:
            new = [communicator for communicator in communicators if id(communicator) not in self._freed]
            self._freed.update((id(communicator), communicator) for communicator in new)
            threads = {
                threading.Thread(target=self._abort, args=(one, log), name="torchrelay-abort", daemon=True)
                for one in new
            }
            self._aborting |= threads
        for thread in threads:
            thread.start()
        if threads:
            arguments = (threads, stuck)
            threading.Thread(target=self._watch, args=arguments, name="torchrelay-abort-watch", daemon=True).start()

    def await_over(self, deadline_s: float) -> None:
        """Return when all aborts that were begun have ended. Raises RuntimeError after the deadline, or as soon as one is stuck."""
        started_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not self._aborting or self._stuck, deadline_s)
            if not self._aborting:
                for thread in self._ended:
                    thread.join()
                self._ended.clear()
                self._freed.clear()  # nothing is freed before these are
                return
            within_s = STILL_S if self._stuck else time.monotonic() - started_s
        raise RuntimeError(f"torchrelay: {_not_aborted(within_s)}")

    def _abort(self, communicator: Any, log: LogLines) -> None:
        started_s = time.monotonic()
        try:
            communicator.abort()
        finally:
            with self._changed:
                self._aborting.discard(threading.current_thread())
                self._ended.append(threading.current_thread())
                self._stuck.discard(threading.current_thread())
                self._changed.notify_all()
        took_s = time.monotonic() - started_s
        if took_s > _SLOW_ABORT_S:
            log.say(f"aborting a communicator of {library()} took {took_s:.1f} s")

    def _watch(self, threads: set[threading.Thread], stuck: Callable[[str], None]) -> None:
        still_looks = 0
        before = (threads, 0)
        while still_looks * LOOK_EVERY_S < STILL_S:  # a process that was stopped meanwhile has not looked
            with self._changed:
                self._changed.wait_for(lambda: not threads & self._aborting, LOOK_EVERY_S)
                left = threads & self._aborting
            if not left:
                return
            waiting = len(waiting_collectives())
            moves = (left, waiting) != before or (not waiting and self._computes())
            still_looks = 0 if moves else still_looks + 1
            before = (left, waiting)
        with self._changed:
            self._stuck |= threads & self._aborting
            self._changed.notify_all()
            is_stuck = bool(self._stuck)
        if is_stuck:
            stuck(_not_aborted(STILL_S))

    def _computes(self) -> bool:
        """Return whether the device computes something that is no collective."""
        if self.stream is None:
            return False
        try:
            return not self.stream.query()
        except RuntimeError:
            return False  # it has failed: it does nothing any more


def _not_aborted(within_s: float) -> str:
    return f"a communicator of {library()} was not aborted within {within_s:.0f} s"
