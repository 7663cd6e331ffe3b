"""What a probe reads from."""

from __future__ import annotations

from typing import Protocol

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.messages import HealthSignal


class AbsentError(TorchrelayError):
    """There is no such device here; the text says what is missing."""


class Source(Protocol):
    """What a module of probe.SOURCES makes with `open_source(options)`, which raises AbsentError."""

    def devices(self) -> list[dict[str, str]]: ...
    def poll(self) -> list[HealthSignal]: ...
    def wait(self, timeout_s: float) -> list[HealthSignal]:
        """Sleeps for so long, or until something happened."""
