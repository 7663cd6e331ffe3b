"""Describe what a communication library has to offer, so that its communicators can be exchanged inside a live process group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

from torchrelay.protocol.logs.log_lines import LogLines


class Backend(Protocol):
    """Exchange the communicators of one library. A communicator is torch's object: `ProcessGroupGloo`, `ProcessGroupNCCL`."""

    @property
    def name(self) -> str:
        """Return the library's name, as torch spells it."""
        ...

    @property
    def on_device(self) -> bool:
        """Return whether its collectives run on a device's stream.

        A call then returns before its result is there, and an abort leaves garbage.
        """
        ...

    @property
    def failure_marks(self) -> tuple[str, ...]:
        """Return words in its errors that show that a peer has gone away. These errors have no type of their own."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables to set before its first communicator is made.

        They keep torch from ending a process that can be saved.
        """
        ...

    @property
    def note(self) -> str:
        """Return what its users have to know while their job is protected, for the protection report. It may be empty."""
        ...

    @property
    def sockets(self) -> frozenset[str]:
        """Return the inodes of sockets that the library has opened and that `free` closes: the library looks after them itself."""
        ...

    def prepare(self) -> None:
        """Prepare the library. It is called once, before torch makes its first communicator."""
        ...

    def missing(self) -> str:
        """Return why communicators of this torch cannot be exchanged; empty where they can."""
        ...

    def new(self, store: Any, place: int, size: int, like: Any) -> Any:
        """Make a communicator with the options of `like`. `connect` comes next. Raises RuntimeError after its timeout."""
        ...

    def connect(self, communicator: Any, device: torch.device) -> None:
        """Return when all members are connected. `free`, on another thread, ends the wait. Raises RuntimeError."""
        ...

    def unconnected(self, place: int, size: int) -> Any:
        """Make a communicator that nobody uses, to read what it says of itself: its name, `place` and `size`.

        It waits for no rank.
        """
        ...

    def free(
        self, communicators: Iterable[Any], log: LogLines, stuck: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Let go the threads that wait in these communicators. It may be called from any thread, and returns at once.

        `stuck(reason)` is called, on another thread, where that does not come to an end.
        """
        ...

    def await_freed(self, deadline_s: float) -> None:
        """Return when what `free` has begun is over. Raises RuntimeError after the deadline, or once it is stuck."""
        ...

    def check_device(self, device: torch.device) -> None:
        """Return when the device has done all work that was queued. Raises DeviceLostError where it cannot be used any more."""
        ...

    def waits(self) -> bool:
        """Return whether one of its collectives has begun on a device and waits there for other ranks. For any thread."""
        ...

    def failure(self, communicator: Any) -> str:
        """Return why this communicator has failed by itself and waits for ever; empty where it has not. For any thread."""
        ...

    def synchronize(self) -> None:
        """Return when the training thread's stream has the results of all collectives that it waits for."""
        ...
