"""gloo runs collectives on the host, over TCP. Shutting down the sockets of a generation lets go whoever waits in one."""

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
        """It needs nothing."""

    def missing(self) -> str:
        return "" if dist.is_gloo_available() else f"torch {torch.__version__} lacks ProcessGroupGloo"

    def new(self, store: Any, place: int, size: int, like: Any) -> Any:
        return dist.ProcessGroupGloo(store, place, size, timeout_of_communicator(like))

    def connect(self, communicator: Any, device: torch.device) -> None:
        """It was connected when it was made."""

    def unconnected(self, place: int, size: int) -> Any:
        return unconnected_gloo(place, size)

    def free(
        self, communicators: Iterable[Any], log: LogLines, stuck: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Their sockets are the generation's, and shut down with it."""

    def await_freed(self, deadline_s: float) -> None:
        """It took no time."""

    def check_device(self, device: torch.device) -> None:
        """Nothing of it runs on a device."""

    def waits(self) -> bool:
        return False

    def failure(self, communicator: Any) -> str:
        return ""  # whoever waits in it is told

    def synchronize(self) -> None:
        """Its results are there when its calls return."""
