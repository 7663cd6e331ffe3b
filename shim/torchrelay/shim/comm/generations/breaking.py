"""Breaks generations, from any thread: whatever waits in their sockets and on their devices fails then."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.adapters.process_groups import agent_store, sockets
from torchrelay.shim.backends import registry
from torchrelay.shim.backends.backend import Backend
from torchrelay.shim.comm.gate_links import GateListener
from torchrelay.shim.comm.generations.generation import Generation


class Breaking:
    """Also of a generation that is being connected: it notes what is opened meanwhile.

    `lock`: of what generations hold. `on_device(generation)`: its communicators whose collectives run on a device, asked with the
    lock held. `stuck(reason)`: what is done, on any thread, where this process cannot come loose from its peers.
    """

    def __init__(
        self,
        lock: threading.Lock,
        on_device: Callable[[Generation], list[tuple[Backend, Any]]],
        log: LogLines,
        stuck: Callable[[str], None],
    ) -> None:
        self._lock = lock
        self._on_device = on_device
        self._log = log
        self._stuck = stuck
        self._connecting: Generation | None = None
        self._before: set[sockets.Inode] = set()
        """Sockets that were there when that began."""
        self._listener: GateListener | None = None

    @contextmanager
    def connecting(self, generation: Generation) -> Iterator[None]:
        """Sockets that are opened meanwhile belong to the generation, and are shut down when it is broken."""
        before = set(sockets.tcp_sockets().values())
        with self._lock:
            self._connecting = generation
            self._before = before
        try:
            yield
        finally:
            with self._lock:
                self._connecting = None
                made = set(sockets.tcp_sockets().values()) - before - registry.library_sockets()
                generation.inodes |= made - agent_store.connections(os.environ)

    @contextmanager
    def listening(self, listener: GateListener) -> Iterator[None]:
        """Who waits for calls meanwhile, for the generation that is being connected, comes loose when that is broken."""
        with self._lock:
            self._listener = listener
        try:
            yield
        finally:
            with self._lock:
                self._listener = None

    def break_all(self, generations: list[Generation]) -> int:
        """Sockets first: nobody may pass the gate on what an aborted collective leaves behind. Returns how many they were."""
        on_device: list[tuple[Backend, Any]] = []
        with self._lock:
            wanted: set[str] = set()
            for generation in generations:
                wanted |= generation.inodes
                if not generation.broken:  # what was aborted may be gone by now
                    generation.breaks()
                    on_device += self._on_device(generation)
            if self._connecting in generations:
                wanted |= set(sockets.tcp_sockets().values()) - self._before - registry.library_sockets()
                wanted |= agent_store.connections(os.environ)  # this rank may wait there for what a lost one would say
                if self._listener is not None:
                    self._listener.wake()
        count = sockets.shut_down(wanted)
        free(on_device, self._log, self._stuck)
        return count


def free(found: list[tuple[Backend, Any]], log: LogLines, stuck: Callable[[str], None] = lambda reason: None) -> None:
    """Those of one library at once: whether they come loose is looked at together."""
    by_backend: dict[Backend, list[Any]] = {}
    for backend, communicator in found:
        by_backend.setdefault(backend, []).append(communicator)
    for backend, communicators in by_backend.items():
        backend.free(communicators, log, stuck)
