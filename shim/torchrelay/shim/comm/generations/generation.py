"""What belongs to one generation of this rank's communicators."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from torchrelay.shim.backends.backend import Backend
from torchrelay.shim.comm.gate import Gate


@dataclass
class Generation:
    number: int
    gate: Gate | None = None
    stores: list[Any] = field(default_factory=list)
    defaults: int = 0
    """How many default process groups the script has made in it, after it had destroyed one."""
    incomplete: frozenset[str] = frozenset()
    """Groups that were not connected, since another member has destroyed them, or has not made them yet."""
    inodes: set[str] = field(default_factory=set)
    """Of the sockets that are shut down when it is broken."""
    older: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)
    """Threads that ran when it began: what they were in the middle of, a new process knows nothing of."""
    on_device: list[tuple[Backend, Any]] = field(default_factory=list)
    """Communicators whose collectives run on a device: those that are being made, and all of a generation that is over."""
    broken: bool = False
    """Set before anything of it is broken: a result that is there before that is one that all members gave."""
    waiting: set[threading.Event] = field(default_factory=set)
    """Set when it is broken: one for each thread that waits for a communicator to be connected."""

    def breaks(self) -> None:
        """Mark the generation as broken from now on."""
        self.broken = True
        for event in tuple(self.waiting):
            event.set()

    def failure(self) -> RuntimeError:
        """Return the error for a thread that needs a communicator of this broken generation."""
        return RuntimeError(f"torchrelay: Connection closed: generation {self.number} was broken under a collective")
