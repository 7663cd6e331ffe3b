"""gloo runs collectives on the host, over TCP. Shutting down a generation's sockets lets go the threads that wait in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.adapters.process_groups.gloo_devices import unconnected_gloo
from torchrelay.shim.adapters.process_groups.process_group import timeout_of_communicator


class Gloo:
    name = "gloo"
    on_device = False
    failure_marks: tuple[str, ...] = ("gloo",)
    environment: Mapping[str, str] = {}
    sockets: frozenset[str] = frozenset()
    note = ""

    def prepare(self) -> None:
        """Do nothing: gloo needs no preparation."""

    def missing(self) -> str:
        return "" if dist.is_gloo_available() else f"torch {torch.__version__} lacks ProcessGroupGloo"

    def new(self, store: Any, place: int, size: int, like: Any) -> Any:
        return dist.ProcessGroupGloo(store, place, size, timeout_of_communicator(like))

    def connect(self, communicator: Any, device: torch.device) -> None:
        """Do nothing: the communicator was connected when it was made."""

    def unconnected(self, place: int, size: int) -> Any:
        return unconnected_gloo(place, size)

    def free(
        self, communicators: Iterable[Any], log: LogLines, stuck: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Do nothing: the sockets belong to the generation, and are shut down with it."""

    def await_freed(self, deadline_s: float) -> None:
        """Return at once: `free` has begun nothing."""

    def check_device(self, device: torch.device) -> None:
        """Do nothing: gloo runs nothing on a device."""

    def waits(self) -> bool:
        return False

    def failure(self, communicator: Any) -> str:
        return ""  # a thread that waits in it gets an error

    def synchronize(self) -> None:
        """Return at once: gloo's results are there when its calls return."""
