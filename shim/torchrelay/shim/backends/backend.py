"""What a communication library has to offer for its communicators to be exchanged inside a live process group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch

from torchrelay.protocol.logs.log_lines import LogLines


class Backend(Protocol):
    """One for each library. A communicator is torch's object: `ProcessGroupGloo`, `ProcessGroupNCCL`."""

    @property
    def name(self) -> str:
        """As torch spells it."""
        ...

    @property
    def on_device(self) -> bool:
        """Whether its collectives run on a device's stream: a call returns before its result is there, and abort leaves garbage."""
        ...

    @property
    def failure_marks(self) -> tuple[str, ...]:
        """Words in its errors when a peer has gone away. These errors have no type of their own."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What has to be set before its first communicator is made, so that torch does not end a process that can be saved."""
        ...

    @property
    def note(self) -> str:
        """What its users have to know while their job is protected, for the protection report; may be empty."""
        ...

    @property
    def sockets(self) -> frozenset[str]:
        """Inodes of sockets that the library has opened and looks after itself: `free` closes them."""
        ...

    def prepare(self) -> None:
        """Called once, before torch makes its first communicator."""
        ...

    def missing(self) -> str:
        """Return why communicators of this torch cannot be exchanged; empty where they can."""
        ...

    def new(self, store: Any, place: int, size: int, like: Any) -> Any:
        """Make a communicator with the options of `like`. `connect` comes next. Raises RuntimeError after its timeout."""
        ...

    def connect(self, communicator: Any, device: torch.device) -> None:
        """Return when all members are there. `free`, on another thread, ends the wait. Raises RuntimeError."""
        ...

    def unconnected(self, place: int, size: int) -> Any:
        """Make a communicator that nobody uses, for what it says of itself: its name, `place` and `size`. It waits for nobody."""
        ...

    def free(
        self, communicators: Iterable[Any], log: LogLines, stuck: Callable[[str], None] = lambda reason: None
    ) -> None:
        """From any thread: let go whoever waits in them. Returns at once.

        `stuck(reason)` is called, on another thread, where that does not come to an end.
        """
        ...

    def await_freed(self, deadline_s: float) -> None:
        """Return when what `free` has begun is over. Raises RuntimeError after the deadline, or once it is stuck."""
        ...

    def check_device(self, device: torch.device) -> None:
        """Return when the device has done all that was queued. Raises DeviceLostError where it cannot be used any more."""
        ...

    def waits(self) -> bool:
        """From any thread: whether one of its collectives has begun on a device and waits there for other ranks."""
        ...

    def failure(self, communicator: Any) -> str:
        """From any thread: why this communicator has failed by itself and waits for ever; empty where it has not."""
        ...

    def synchronize(self) -> None:
        """Return when the results of all collectives are there that the training thread's stream waits for."""
        ...
