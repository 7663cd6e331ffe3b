"""Network ports by sysfs: InfiniBand and RoCE ports, and the Ethernet interfaces that the job uses. Runs in a probe process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchrelay.agent.health.probes.differ import Differ
from torchrelay.agent.health.probes.source import AbsentError, FactSource
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

UP = 0.0
DOWN = 1.0
DISABLED = 2.0
_COUNTERS = {
    "excessive_buffer_overrun_errors": "counters/excessive_buffer_overrun_errors",
    "local_link_integrity_errors": "counters/local_link_integrity_errors",
    "rnr_nak_retry_err": "hw_counters/rnr_nak_retry_err",
    "symbol_error": "counters/symbol_error",
    "link_error_recovery": "counters/link_error_recovery",
    "port_rcv_errors": "counters/port_rcv_errors",
    "local_ack_timeout_err": "hw_counters/local_ack_timeout_err",
    "port_xmit_discards": "counters/port_xmit_discards",
    "roce_slow_restart": "hw_counters/roce_slow_restart",
}
_MOST_BYTES = 4096
"""The most bytes that are read of an attribute in sysfs."""
_DOWNED = "counters/link_downed"


class Port:
    """One InfiniBand or RoCE port. A link that was down between two polls shows in `link_downed`."""

    def __init__(self, folder: Path, name: str, device: Path) -> None:
        self.name = name
        self.pci = os.path.realpath(device)
        self._counters = {k.PORT + name: f"{folder}/{file}" for name, file in _COUNTERS.items()}
        self._state = f"{folder}/state"
        self._physical = f"{folder}/phys_state"
        self._downed_file = f"{folder}/{_DOWNED}"
        self._downed = _read_number(self._downed_file)
        self.was_up = self.state() == UP

    def state(self) -> float:
        """Return the state as the level link-down counts it. A port that never was up is not connected, which is no fault."""
        if "ACTIVE" in _read_text(self._state):
            return UP
        return DISABLED if "Disabled" in _read_text(self._physical) else DOWN

    def poll(self) -> tuple[dict[str, float | None], int]:
        """Return the reading, and how often the link went down since the last one."""
        reading: dict[str, float | None] = {kind: _read_number(file) for kind, file in self._counters.items()}
        state = self.state()
        downed = _read_number(self._downed_file)
        flaps = int(downed - self._downed) if downed is not None and self._downed is not None else 0
        self._downed = downed
        if self.was_up or state == UP:
            reading[k.LINK_DOWN] = state
            self.was_up = True
        return reading, max(flaps, 0)


class Interface:
    """One Ethernet interface."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.pci = os.path.realpath(folder / "device")
        self._state = f"{folder}/operstate"
        self._changes_file = f"{folder}/carrier_changes"
        self._changes = _read_number(self._changes_file)
        self.was_up = self._is_up()

    def _is_up(self) -> bool:
        return _read_text(self._state) == "up"

    def poll(self) -> tuple[dict[str, float | None], int]:
        changes = _read_number(self._changes_file)
        flaps = 0
        if changes is not None and self._changes is not None:
            flaps = int(changes - self._changes + 1) // 2  # down and up are one change each
        self._changes = changes
        reading: dict[str, float | None] = {k.PORT + "carrier_changes": changes}
        up = self._is_up()
        if self.was_up or up:
            reading[k.LINK_DOWN] = UP if up else DOWN
            self.was_up = True
        return reading, max(flaps, 0)


class Network:
    """The ports and interfaces.

    `strict`: a port that is down from the start counts as down, and not as one that is not connected.
    """

    def __init__(self, sys: Path, interfaces: Sequence[str], strict: bool = False) -> None:
        self._ports: list[Port | Interface] = [*_ports(sys), *_interfaces(sys, interfaces)]
        for port in self._ports if strict else ():
            port.was_up = True
        self._differ = Differ()
        self._gone: set[str] = set()
        if not self._ports:
            raise AbsentError(f"no InfiniBand port below {sys}, and no network interface with the job's address")

    def devices(self) -> list[dict[str, str]]:
        return [{"device": p.name, "pci": p.pci, "name": type(p).__name__} for p in self._ports]

    def poll(self) -> list[HealthSignal]:
        signals = []
        for port in self._ports:
            try:
                reading, flaps = port.poll()
            except FileNotFoundError as e:
                if port.name not in self._gone:
                    self._gone.add(port.name)
                    detail = f"the port is gone from sysfs: {e.filename}"
                    signals.append(HealthSignal(k.LINK_DOWN, port.name, value=DISABLED, detail=detail))
                continue
            self._gone.discard(port.name)
            signals += [HealthSignal(k.LINK_FLAP, port.name) for _ in range(min(flaps, 10))]
            signals += self._differ.update(port.name, reading)
        return signals

    def wait(self, timeout_s: float) -> list[HealthSignal]:
        time.sleep(timeout_s)
        return []


def _ports(sys: Path) -> list[Port]:
    folders = sorted((sys / "class" / "infiniband").glob("*/ports/*"))
    return [Port(f, f"{f.parent.parent.name}/{f.name}", f.parent.parent / "device") for f in folders]


def _interfaces(sys: Path, names: Sequence[str]) -> list[Interface]:
    folders = [sys / "class" / "net" / name for name in names]
    return [Interface(f) for f in folders if f.exists()]


def _read_text(path: str) -> str:
    """Read a file of sysfs. Raises FileNotFoundError where the file, and so the port, is gone.

    No file object is made: a machine has hundreds of counters.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _MOST_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(file)


def _read_number(path: str) -> float | None:
    try:
        return float(_read_text(path))
    except (FileNotFoundError, ValueError):
        return None  # not every port has every counter
    except OSError:
        return None  # EINVAL: a counter that this firmware does not fill


def open_source(options: dict[str, Any]) -> FactSource:
    """Open the ports. `sys`: where sysfs is; `interfaces`: the Ethernet interfaces that the job uses. Raises AbsentError."""
    return Network(Path(options.get("sys") or "/sys"), options.get("interfaces", ()), bool(options.get("check")))
