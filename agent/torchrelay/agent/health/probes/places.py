"""The sources of evidence that a machine has, and where they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from torchrelay.agent.fake_machine.machine import ENV_STATE

DCGM = "dcgm"
AUTO = "auto"
OFF = "off"
DCGM_URL = "http://127.0.0.1:9400/metrics"
DCGM_POLL_S = 5.0
"""The exporter itself looks every 30 s, unless it is told otherwise."""


@dataclass(frozen=True)
class WatchedPlaces:
    """The places to look. `root`: of a fake machine, or empty; `notices`: files that say that the machine has to go.

    `dcgm`: URL of a dcgm-exporter, AUTO to look for one beside NVIDIA GPUs, or OFF.
    """

    root: str = ""
    host: str = ""
    watched: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    dcgm: str = AUTO

    @property
    def sys(self) -> Path:
        return Path(self.root or "/") / "sys"

    @property
    def kernel_log(self) -> Path:
        return Path(self.root or "/") / "dev" / "kmsg"

    def probes(self) -> dict[str, dict[str, Any]]:
        """Return the options of each source. Raises nothing: a source that is missing says itself that it is `absent`."""
        if self.root:
            library = Path(self.root) / "lib" / "libnvidia-ml.so.1"
            state = {ENV_STATE: str(Path(self.root) / "nvml.state")}
            fake: dict[str, dict[str, Any]] = {
                "nvidia": {"library": str(library), "env": state},
                "network": {"sys": str(self.sys)},
            }
            return fake | ({DCGM: self._exporter()} if self.dcgm not in (AUTO, OFF) else {})
        found: dict[str, dict[str, Any]] = {}
        if Path("/dev/nvidiactl").exists() or Path("/proc/driver/nvidia").exists():
            found["nvidia"] = {}
        if self.dcgm not in (AUTO, OFF) or ("nvidia" in found and self.dcgm == AUTO):
            found[DCGM] = self._exporter()
        if Path("/dev/kfd").exists():
            found["amd"] = {}
        interfaces = interfaces_with(self.host)
        if interfaces or (self.sys / "class" / "infiniband").exists():
            found["network"] = {"interfaces": interfaces}
        return found

    def _exporter(self) -> dict[str, Any]:
        required = self.dcgm != AUTO
        return {"url": self.dcgm if required else DCGM_URL, "required": required, "poll_s": DCGM_POLL_S}


def interfaces_with(address: str) -> list[str]:
    """Return the network interfaces that carry this address; none for loopback."""
    found = [n for n, all_of_it in psutil.net_if_addrs().items() if any(a.address == address for a in all_of_it)]
    return [n for n in found if n != "lo"]
