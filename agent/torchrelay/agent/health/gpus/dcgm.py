"""NVIDIA GPUs through a dcgm-exporter, where one runs. torchrelay does not read a second time what the exporter reads.

Leans on the metrics of dcgm-exporter 2 to 4, by the names of DCGM's fields (DCGM_FI_*, older and newer ones) and its own
DCGM_EXP_GPU_HEALTH_STATUS, with the label UUID; on Prometheus' text format, which prometheus_client parses.
Runs in a probe process.
"""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from torchrelay.agent.health.probes.differ import Differ
from torchrelay.agent.health.probes.source import AbsentError, FactSource
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

TIMEOUT_S = 3.0
MOST_BYTES = 16 << 20
_ECC = "DCGM_FI_DEV_ECC_"
_NVLINK = "DCGM_FI_DEV_NVLINK_"
_SUMS = {
    k.ECC_CORRECTED: (_ECC + "SBE_VOL_TOTAL",),
    k.ECC_UNCORRECTED: (_ECC + "DBE_VOL_TOTAL",),
    k.ECC_LIFETIME: (_ECC + "DBE_AGG_TOTAL",),
    k.REMAP_PENDING: ("DCGM_FI_DEV_ROW_REMAP_PENDING",),
    k.REMAP_FAILED: ("DCGM_FI_DEV_ROW_REMAP_FAILURE",),
    k.RETIRED_PENDING: ("DCGM_FI_DEV_RETIRED_PENDING",),
    k.RETIRED_PAGES: ("DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE"),
    k.NVLINK_ERRORS: tuple(
        f"{_NVLINK}{what}_ERROR_COUNT_TOTAL" for what in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
    ),
    k.PCIE_REPLAYS: ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER",),
}
"""Kind -> the metrics that are summed. A GPU that lacks one of them leaves the kind to the driver."""
_XID = "DCGM_FI_DEV_XID_ERRORS"
_TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
_SLOWDOWN_AT = "DCGM_FI_DEV_SLOWDOWN_TEMP"
_WIDTH = "DCGM_FI_DEV_PCIE_LINK_WIDTH"
_LANES = "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"
_REASONS = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
_HEALTH = "DCGM_EXP_GPU_HEALTH_STATUS"
_ALIASES = {
    "DCGM_FI_DEV_XID_ERROR": _XID,
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": _TEMPERATURE,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _REASONS,
}
_KNOWN = {*_ALIASES, *(n for names in _SUMS.values() for n in names)}
_KNOWN |= {_XID, _TEMPERATURE, _SLOWDOWN_AT, _WIDTH, _LANES, _REASONS, _HEALTH}
_HW_SLOWDOWN_BITS = 0x8 | 0x40 | 0x80
"""Slowdown by the hardware, for heat, and for power: bits as NVML has them."""
_BLANKS = ((2147483632, 2147483647), (140737488355328, 140737488355343), (9223372036854775792, 2**63))
"""DCGM's numbers for "not known", as integers of 32 and 64 bits and as floating point."""


class DcgmGpu:
    """The metrics of one GPU, as scraped last."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.pci = ""
        self.name = ""
        self.values: dict[str, float] = {}
        self.watches: dict[str, float] = {}


class Dcgm:
    """All GPUs of an exporter.

    `url`: of its metrics. Raises AbsentError where it has no metric that is of use, OSError where it cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        # A proxy of the environment is for the world outside.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._differ = Differ()
        self._xids: dict[str, int] = {}
        self._slow: dict[str, tuple[bool, int]] = {}
        self._gpus = self._scrape()
        self.readings: dict[str, dict[str, float]] = {}
        if not any(gpu.values or gpu.watches for gpu in self._gpus.values()):
            raise AbsentError(f"{url} has no metric of a GPU that is of use here")

    def devices(self) -> list[dict[str, str]]:
        return [{"device": gpu.uuid, "pci": gpu.pci, "name": gpu.name} for gpu in self._gpus.values()]

    def covers(self) -> dict[str, dict[str, float]]:
        """Return, for each device, the latest reading of each kind: no other source needs to read these kinds."""
        return self.readings

    def poll(self) -> list[HealthSignal]:
        self._gpus = self._scrape()
        signals = []
        self.readings = {}
        for gpu in self._gpus.values():
            signals += self._xid(gpu)
            reading = self._reading(gpu)
            detail = ", ".join(f"{name} {value:g}" for name, value in gpu.watches.items() if value)
            health = reading.pop(k.DCGM_HEALTH, None)
            signals += self._differ.update(gpu.uuid, {k.DCGM_HEALTH: health}, detail)
            signals += self._differ.update(gpu.uuid, reading)
            self.readings[gpu.uuid] = {kind: value for kind, value in reading.items() if value is not None}
        return signals

    def wait(self, timeout_s: float) -> list[HealthSignal]:
        time.sleep(timeout_s)
        return []

    def _scrape(self) -> dict[str, DcgmGpu]:
        """Read the exporter's metrics. Raises OSError."""
        with self._opener.open(self._url, timeout=TIMEOUT_S) as answer:
            text = answer.read(MOST_BYTES).decode("utf-8", "replace")
        return read_metrics(text)

    def _xid(self, gpu: DcgmGpu) -> list[HealthSignal]:
        """Return the evidence of an XID that is new.

        The metric is the last XID, and stays. An XID that was there before, or one that comes a second time, cannot be told from
        it.
        """
        code = int(gpu.values.get(_XID, 0))
        before = self._xids.get(gpu.uuid)
        self._xids[gpu.uuid] = code
        if before is None or code in (0, before):
            return []
        return [HealthSignal(k.XID, gpu.uuid, code=code)]

    def _reading(self, gpu: DcgmGpu) -> dict[str, float | None]:
        v = gpu.values
        reading: dict[str, float | None] = {
            kind: sum(v[n] for n in names) for kind, names in _SUMS.items() if all(n in v for n in names)
        }
        if _TEMPERATURE in v and v.get(_SLOWDOWN_AT):
            reading[k.TEMPERATURE_MARGIN] = v[_SLOWDOWN_AT] - v[_TEMPERATURE]
        if v.get(_WIDTH) and v.get(_LANES):
            reading[k.PCIE_WIDTH] = v[_WIDTH] / v[_LANES]
        if _REASONS in v:
            was_slow, slowdowns = self._slow.get(gpu.uuid, (False, 0))
            slow = bool(int(v[_REASONS]) & _HW_SLOWDOWN_BITS)
            slowdowns += slow and not was_slow
            self._slow[gpu.uuid] = slow, slowdowns
            reading[k.HW_SLOWDOWN] = slowdowns
        if gpu.watches:
            reading[k.DCGM_HEALTH] = max(gpu.watches.values())
        return reading


def read_metrics(text: str) -> dict[str, DcgmGpu]:
    """Return the GPU of each UUID. Metrics of MIG instances are left out."""
    wanted = "\n".join(line for line in text.splitlines() if line.partition("{")[0].strip() in _KNOWN)
    gpus: dict[str, DcgmGpu] = {}
    for sample in _samples(wanted + "\n"):
        labels = sample.labels
        uuid = labels.get("UUID") or labels.get("uuid", "")
        if not uuid or labels.get("GPU_I_ID") or any(low <= sample.value <= high for low, high in _BLANKS):
            continue
        gpu = gpus.setdefault(uuid, DcgmGpu(uuid))
        gpu.pci = labels.get("pci_bus_id", gpu.pci)
        gpu.name = labels.get("modelName", gpu.name)
        if sample.name == _HEALTH:
            gpu.watches[labels.get("health_watch", "")] = sample.value
        else:
            gpu.values[_ALIASES.get(sample.name, sample.name)] = sample.value
    return gpus


def _samples(text: str) -> Iterable[Any]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


def host_engine(proc: Path = Path("/proc")) -> str:
    """Return in words which process of DCGM's host engine runs here; empty if none does."""
    for comm in proc.glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == "nv-hostengine":
                return f"nv-hostengine runs here (pid {comm.parent.name})"
        except OSError:
            continue  # it has ended
    return ""


def open_source(options: Mapping[str, Any]) -> FactSource:
    """Open the exporter. `url`: of its metrics; `required`: whether the user asked for it.

    Raises AbsentError; OSError if it is required.
    """
    url = str(options["url"])
    try:
        return Dcgm(url)
    except (OSError, http.client.HTTPException) as e:
        if options.get("required"):
            raise
        reason = f"no dcgm-exporter at {url}: {getattr(e, 'reason', e)}"
        if engine := host_engine():
            reason += f"; {engine}: with a dcgm-exporter beside it, it would be read in place of the driver"
        raise AbsentError(reason) from e
