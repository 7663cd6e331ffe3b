"""Turns what a device reads now into evidence: counters that moved, levels that changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

NEAR_C = 20.0
"""Temperatures further below the device's own limit are of no interest; rows of a policy look at less."""
STEP_C = 1.0
HEALTHY = {
    k.REMAP_PENDING: 0.0,
    k.REMAP_FAILED: 0.0,
    k.RETIRED_PENDING: 0.0,
    k.RETIRED_PAGES: 0.0,
    k.ECC_LIFETIME: 0.0,
    k.DCGM_HEALTH: 0.0,
    k.NVLINK_DOWN: 0.0,
    k.PCIE_WIDTH: 1.0,
    k.BAD_PAGES: 0.0,
    k.LINK_DOWN: 0.0,
    k.DRIVER_HANG: 0.0,
    k.CHECKPOINT_BROKEN: 0.0,
}
"""Values at which a level is healthy. A level that starts there is not told."""


class Differ:
    """Compares readings of the devices of one source. A counter starts at its first reading; one that goes down was reset."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], float] = {}
        self._levels: dict[tuple[str, str], float] = {}

    def update(self, device: str, reading: Mapping[str, float | None], detail: str = "") -> list[HealthSignal]:
        """Return the evidence in a new reading. `reading`: kind -> value; None where the device does not tell."""
        signals = []
        for kind, value in reading.items():
            if value is None:
                continue
            told = self._level(device, kind, value) if kind in k.LEVELS else self._counter(device, kind, value)
            if told is not None:
                signals.append(HealthSignal(kind, device, value=told, detail=detail))
        return signals

    def start_at(self, device: str, kind: str, value: float) -> None:
        """Count from `value` on: another source has told of the counter up to there."""
        self._counters[device, kind] = value

    def _counter(self, device: str, kind: str, value: float) -> float | None:
        before = self._counters.get((device, kind))
        self._counters[device, kind] = value
        if before is None:
            return None
        moved = value - before if value >= before else value
        return moved or None

    def _level(self, device: str, kind: str, value: float) -> float | None:
        if kind == k.TEMPERATURE_MARGIN:
            value = min(value, NEAR_C)
        before = self._levels.get((device, kind), NEAR_C if kind == k.TEMPERATURE_MARGIN else HEALTHY.get(kind))
        if before is not None and abs(value - before) < (STEP_C if kind == k.TEMPERATURE_MARGIN else 1e-9):
            return None
        self._levels[device, kind] = value
        return value
