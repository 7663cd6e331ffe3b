"""Let training and the threads that fetch ahead for it run by turns, for a few steps: what changes meanwhile is the doing of one.

A thread stops where it puts an item into its queue, before and behind it. At a boundary training waits until all have stopped,
looks, lets them run until they stop again, and looks once more. Where training has to wait for an item, or nothing moves, the step
tells nothing. Afterwards threads run as ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.thread_objects import PartName

_TURNS = 2
"""So many steps in which threads had a turn have to tell who changes what."""
_TRIES = 12
"""After so many steps it is given up."""
_SLOW = 3
"""One in which training has waited in vain counts for so many more."""
_WAIT_S = 1.0
"""So long training waits for threads to stop."""
_PATIENCE_S = 10.0
"""So long a thread stands still for training."""


class FetchingTurns:
    def __init__(self, queues: FilledQueues, is_state: Callable[[Any], bool]) -> None:
        """Begin. `is_state`: whether an object is of the state of the latest boundary."""
        self._queues = queues
        self._is_state = is_state
        self._moves = threading.Condition()
        self._holds = False
        self._lap = 0
        self._stopped: set[threading.Thread] = set()
        self._putting: dict[threading.Thread, Any] = {}
        """Threads that are putting an item into a queue, and may wait for room: they run none of the script's code."""
        self._stops: dict[threading.Thread, int] = {}
        """How often each thread has stopped."""
        self._alone = False
        """Whether threads have stood still since the latest boundary."""
        self._before: dict[int, Any] | None = None
        """What the threads' objects held when training went on."""
        self._latest: tuple[frozenset[threading.Thread], dict[int, Any]] | None = None
        """What they held at the latest boundary, and which threads there were."""
        self.unknown: list[PartName] = []
        """What has changed since it is known who changes what, and of which that is not known."""
        self._told = 0
        self._tried = 0

    @property
    def is_over(self) -> bool:
        """Return whether it is known who changes what, or cannot be told."""
        return self.has_told or self._tried >= _TRIES

    @property
    def has_told(self) -> bool:
        return self._told >= _TURNS

    def record(self) -> tuple[Any, ...]:
        """Return what is known of who changes what, as plain values."""
        known = self._queues.threads.known
        return (self._told, *known) if self._told or any(known) else ()

    def learn(self, record: tuple[Any, ...]) -> None:
        """Take over what another process has recorded."""
        if record:
            told, *known = record
            self._told = max(self._told, told)
            self._queues.threads.learn(*known)

    # Threads that fetch ahead.

    def before_put(self, into: Any) -> None:
        self._stop()
        with self._moves:
            self._putting[threading.current_thread()] = into
            self._moves.notify_all()

    def after_put(self) -> None:
        here = threading.current_thread()
        with self._moves:
            self._putting.pop(here, None)
        self._stop()

    def _stop(self) -> None:
        if not self._holds:
            return
        here = threading.current_thread()
        with self._moves:
            lap = self._lap
            self._stopped.add(here)
            self._stops[here] = self._stops.get(here, 0) + 1
            self._moves.notify_all()
            if not self._moves.wait_for(lambda: not self._holds or self._lap > lap, _PATIENCE_S):
                self._tried += _SLOW  # a long step, or training waits for something else that this thread has to do
                self._let_go()
            self._stopped.discard(here)

    # Training.

    def waits_for_item(self) -> None:
        """Let threads run: training waits for what one of them has."""
        if self._holds:
            with self._moves:
                self._let_go()

    def at_boundary(self) -> bool:
        """Take a turn. Return whether more is known now of who changes what."""
        threads = self._queues.fillers()
        objects = self._queues.threads
        objects.look(threads)
        if not threads:
            self._latest = None
        if not threads or self.is_over:
            self.end()
            return self._look_for_others() if threads and self.has_told else False
        self._tried += 1
        with self._moves:
            was_alone = self._alone and self._holds
            self._holds = True
            self._alone = self._moves.wait_for(self._are_still, _WAIT_S)
        if not self._alone:
            self._before = None
            self._tried += _SLOW
            return False
        objects.look_again()
        known = len(objects.by_training), len(objects.by_threads)
        now = objects.contents()
        if was_alone and self._before is not None:
            objects.by_training |= objects.changes(self._before, now)
        moved = self._run_on() and self._run_on()
        after = objects.contents()
        if was_alone and moved:
            objects.by_threads |= objects.changes(now, after)
            self._told += 1
        self._before = after
        if self.is_over:
            self.end()
        return known != (len(objects.by_training), len(objects.by_threads))

    def _look_for_others(self) -> bool:
        """Look whether something has changed of which it is not known who changes it. Return whether more is known now.

        Between the beginning of one thread and the next training does what it does alone.
        """
        objects = self._queues.threads
        objects.look_again()
        known = len(objects.by_training)
        threads = frozenset(self._queues.fillers())
        now = objects.contents(self._is_state)
        then = self._latest
        self._latest = threads, now
        if then is not None and then[0] == threads:
            left = objects.sort_out(objects.changes(then[1], now))
            self.unknown += [part for part in left if part not in self.unknown]
        return known != len(objects.by_training)

    def _are_still(self) -> bool:
        return all(thread in self._stopped or self._waits_for_room(thread) for thread in self._queues.fillers())

    def _waits_for_room(self, thread: threading.Thread) -> bool:
        into = self._putting.get(thread)
        return into is not None and 0 < into.maxsize <= len(into.queue)

    def _run_on(self) -> bool:
        """Let those that have stopped run until they stop again. Return whether all have, and any has run."""
        with self._moves:
            waiting = {thread: self._stops[thread] for thread in self._stopped}
            self._lap += 1
            self._moves.notify_all()

            def have_run() -> bool:
                return all(
                    self._stops.get(thread, 0) > stops or self._waits_for_room(thread) or not thread.is_alive()
                    for thread, stops in waiting.items()
                )

            is_done = self._moves.wait_for(lambda: have_run() and self._are_still(), _WAIT_S)
            self._alone = self._alone and is_done
            return is_done and bool(waiting)

    def _let_go(self) -> None:
        self._holds = False
        self._alone = False
        self._moves.notify_all()

    def end(self) -> None:
        """Let threads run as ever."""
        if self._holds:
            with self._moves:
                self._let_go()
                self._stops.clear()  # it would keep threads of earlier epochs, with what they work with
        self._before = None
