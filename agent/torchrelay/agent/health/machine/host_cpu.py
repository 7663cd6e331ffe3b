"""Tells whether the job's processes get the processors that they ask for. If not, a rank is slow without its device being to blame.

Leans on pressure stall information (Documentation/accounting/psi.rst), the control group's cpu.stat and /proc/stat.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchrelay.agent.health.machine.cgroup import cgroup_file
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

STEP = 0.1
"""A share that moves by less is not told again."""


@dataclass(frozen=True)
class _Counters:
    """Counts since the machine or the group began.

    `waited_us`: time in which a process waited; periods are those of a CPU limit.
    """

    at_s: float
    waited_us: int | None = None
    periods: int = 0
    throttled: int = 0
    ticks: int = 0
    stolen: int = 0


class HostCpu:
    """The processors of this machine. `root`: where proc and sys are. Shares are counted from the first look on."""

    def __init__(self, root: Path = Path("/"), now: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._now = now
        groups = root / "sys/fs/cgroup"
        mine = root / "proc/self/cgroup"
        self._stat = cgroup_file(groups, mine, "cpu", "cpu.stat", "cpu.stat")
        # The group's own figures count where the kernel has them: other containers of the machine may wait for something else.
        own = cgroup_file(groups, mine, "cpu", "cpu.pressure", "cpu.pressure")
        self._pressure = own or root / "proc/pressure/cpu"
        self._before = self._look()
        self._told = 0.0

    def poll(self) -> list[HealthSignal]:
        before = self._before
        self._before = self._look()
        shares = _shares(before, self._before)
        worst = max(shares.values(), default=0.0)
        if abs(worst - self._told) < STEP and not (worst == 0.0 < self._told):
            return []
        self._told = worst
        detail = ", ".join(f"{name} {share:.0%} of the time" for name, share in shares.items() if share >= STEP / 2)
        return [HealthSignal(k.HOST_CPU, value=round(worst, 3), detail=detail)]

    def _look(self) -> _Counters:
        waited_us = None
        for words in _lines(self._pressure):
            if words[0] == "some":
                waited_us = next((int(w[6:]) for w in words if w.startswith("total=")), None)
        stat = {words[0]: int(words[1]) for words in _lines(self._stat) if len(words) == 2 and words[1].isdigit()}
        ticks = next(
            ([int(w) for w in words[1:9]] for words in _lines(self._root / "proc/stat") if words[0] == "cpu"), []
        )
        return _Counters(
            self._now(),
            waited_us,
            stat.get("nr_periods", 0),
            stat.get("nr_throttled", 0),
            sum(ticks),
            ticks[7] if len(ticks) > 7 else 0,
        )


def _shares(before: _Counters, now: _Counters) -> dict[str, float]:
    """Return shares of the time between two looks, 0 to 1 each."""
    took_us = (now.at_s - before.at_s) * 1e6
    shares = {}
    if now.waited_us is not None and before.waited_us is not None and took_us > 0:
        shares["processes waited for a processor"] = (now.waited_us - before.waited_us) / took_us
    if now.periods > before.periods:
        shares["the control group was throttled"] = (now.throttled - before.throttled) / (now.periods - before.periods)
    if now.ticks > before.ticks:
        shares["the hypervisor took the processors"] = (now.stolen - before.stolen) / (now.ticks - before.ticks)
    return {name: min(max(share, 0.0), 1.0) for name, share in shares.items()}


def _lines(path: Path | None) -> list[list[str]]:
    """Return the words of each line; nothing where the kernel has no such file, or does not fill it."""
    if path is None:
        return []
    try:
        return [words for line in path.read_text().splitlines() if (words := line.split())]
    except OSError:
        return []
