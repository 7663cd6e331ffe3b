"""What a probe reads from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.messages import HealthSignal


class AbsentError(TorchrelayError):
    """There is no such device here; the text says what is missing."""


class FactSource(Protocol):
    """What a module of probe.SOURCES makes with `open_source(options)`, which raises AbsentError."""

    def devices(self) -> list[dict[str, str]]: ...
    def poll(self) -> list[HealthSignal]: ...
    def wait(self, timeout_s: float) -> list[HealthSignal]:
        """Sleeps for so long, or until something happened."""


Covered = dict[str, dict[str, float]]
"""Device -> kind -> the value that was read last."""


@runtime_checkable
class Covering(Protocol):
    """A source that stands for readings of another one, so that a device is not read twice."""

    def covers(self) -> Covered: ...


@runtime_checkable
class Yielding(Protocol):
    """A source that leaves readings to another one; what that no longer covers, it reads again, from the values on that were
    read last."""

    def leave(self, covered: Covered) -> None: ...
