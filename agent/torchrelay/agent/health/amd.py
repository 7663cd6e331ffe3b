"""AMD GPUs through amdsmi, where it is installed: errors, bad pages, temperature. Runs in a probe process.

Leans on amdsmi 7.0: without its library the import prints, and raises KeyError instead of ImportError. Resets of a GPU come
by the kernel's log.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from torchrelay.agent.health.differ import Differ
from torchrelay.agent.health.source import AbsentError, Source
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal


class Amd:
    """`smi`: the module amdsmi, with its library initialised."""

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        self._differ = Differ()
        self._gpus = {smi.amdsmi_get_gpu_device_uuid(h): h for h in smi.amdsmi_get_processor_handles()}
        self._lost: set[str] = set()
        self._refusals = (smi.AmdSmiLibraryException,)
        self._limits_c = {u: self._told(self._temperature, h, "CRITICAL") for u, h in self._gpus.items()}

    def devices(self) -> list[dict[str, str]]:
        smi = self._smi
        return [
            {"device": uuid, "pci": smi.amdsmi_get_gpu_device_bdf(handle), "name": "AMD GPU"}
            for uuid, handle in self._gpus.items()
        ]

    def poll(self) -> list[HealthSignal]:
        signals = []
        for uuid, handle in self._gpus.items():
            if uuid in self._lost:
                continue
            try:
                errors = self._smi.amdsmi_get_gpu_total_ecc_count(handle)
            except self._refusals as e:
                if e.get_error_code() == self._smi.amdsmi_wrapper.AMDSMI_STATUS_NOT_SUPPORTED:
                    errors = {}
                else:
                    self._lost.add(uuid)
                    signals.append(HealthSignal(k.GPU_LOST, uuid, detail=str(e)))
                    continue
            signals += self._differ.update(uuid, self._reading(uuid, handle, errors))
        return signals

    def wait(self, timeout_s: float) -> list[HealthSignal]:
        time.sleep(timeout_s)
        return []

    def _reading(self, uuid: str, handle: Any, errors: dict[str, Any]) -> dict[str, float | None]:
        celsius, limit_c = self._told(self._temperature, handle, "CURRENT"), self._limits_c[uuid]
        pages = self._told(self._smi.amdsmi_get_gpu_bad_page_info, handle)
        threshold = self._told(self._smi.amdsmi_get_gpu_bad_page_threshold, handle)
        return {
            k.RAS_CORRECTED: errors.get("correctable_count"),
            k.RAS_UNCORRECTED: errors.get("uncorrectable_count"),
            k.BAD_PAGES: len(pages) / threshold if pages is not None and threshold else None,
            k.TEMPERATURE_MARGIN: limit_c - celsius if celsius is not None and limit_c else None,
        }

    def _temperature(self, handle: Any, metric: str) -> float:
        sensor = self._smi.AmdSmiTemperatureType.HOTSPOT
        return float(self._smi.amdsmi_get_temp_metric(handle, sensor, self._smi.AmdSmiTemperatureMetric[metric]))

    def _told(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._refusals:
            return None


def open_source(options: dict[str, Any]) -> Source:
    """`env`: where ROCm is. Raises AbsentError."""
    os.environ.update(options.get("env", {}))
    with contextlib.redirect_stdout(sys.stderr):  # our own lines go there
        try:
            import amdsmi
        except ImportError as e:
            raise AbsentError("amdsmi is not installed (pip install torchrelay[amd])") from e
        except (KeyError, OSError, AttributeError) as e:
            raise AbsentError(f"amdsmi does not find its library libamd_smi.so: {e!r}") from e
        try:
            amdsmi.amdsmi_init()
        except amdsmi.AmdSmiException as e:
            raise AbsentError(f"the AMD driver cannot be asked: {e}") from e
    return Amd(amdsmi)
