"""Collectives on threads of the script's own, beside training."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.cpython import threads
from torchrelay.shim.comm.generations.communication_failure import is_communication_failure

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

_REASON = "a rank was lost or moved while this thread communicated, or before it went on: the new one is not in it"


class SideThreadCollectives:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._communicating: set[threading.Thread] = set()

    def communicate(self) -> bool:
        """Return whether a thread beside the training thread is in a communication, which peers may end. For any thread."""
        return bool(self._communicating)

    def call(self, call: Callable[[], Any]) -> Any:
        """Call a collective beside training.

        Raises UnsupportedError where a migration has come between: the new rank is not in it.
        """
        return self._communicates(functools.partial(self._call, call))

    def wait(self, wait: Callable[[], Any]) -> Any:
        """Wait for what was called without a wait."""
        self._engine.saves.dispatched()
        return self._communicates(wait)

    def _communicates(self, do: Callable[[], Any]) -> Any:
        thread = threading.current_thread()
        if thread in self._communicating:
            return do()  # within a call of this thread
        self._communicating.add(thread)
        try:
            return do()
        finally:
            self._communicating.discard(thread)

    def _call(self, call: Callable[[], Any]) -> Any:
        engine = self._engine
        thread = threading.current_thread()
        generation = engine.comms.now
        if not engine.tracker.live or not threads.started_by_python(thread):
            return call()  # autograd's: part of the step
        attempt = engine.saves.attempt()
        if attempt is not None:
            return engine.saves.collective(attempt, call)
        engine.reporter.beside()
        if thread in generation.older:
            raise UnsupportedError(_REASON)
        try:
            return call()
        except RuntimeError as error:
            if engine.comms.now is generation and not (
                engine.recovery.interrupted() or is_communication_failure(error)
            ):
                raise
            raise UnsupportedError(_REASON) from error
