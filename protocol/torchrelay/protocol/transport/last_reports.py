"""What a process has said of itself that still holds, for a controller or an agent that was not there to hear it. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from torchrelay.protocol.messages import Armed, Disabled, Finishing, ReplicaCheck, Report, Warm

CHECKS_KEPT = 6
_LASTING = (Warm, Armed, Disabled, Report, Finishing)


class LastReports:
    def __init__(self) -> None:
        self._newest: dict[type, Any] = {}
        self._checks: deque[ReplicaCheck] = deque(maxlen=CHECKS_KEPT)

    def keep(self, report: Any) -> None:
        if isinstance(report, ReplicaCheck):
            for older in [c for c in self._checks if c.boundary == report.boundary]:
                self._checks.remove(older)  # it was told of again, at a later head
            self._checks.append(report)
        elif isinstance(report, _LASTING):
            self._newest[type(report)] = report

    def inherit(self, checks: Sequence[ReplicaCheck]) -> None:
        """Take over the checks that were made of the rank before this process had it."""
        self._checks = deque(checks, maxlen=CHECKS_KEPT)

    def all(self) -> list[Any]:
        """Return the reports in the order in which a process sends them."""
        return [self._newest[kind] for kind in _LASTING if kind in self._newest] + list(self._checks)
