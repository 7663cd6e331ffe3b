"""AMD GPUs through amdsmi, where it is installed: RAS errors by block, bad pages, XGMI, PCIe, throttling, temperature and
resets. Runs in a probe process.

Leans on amdsmi 7.0: without its library the import prints, and raises KeyError instead of ImportError; what a device does not
tell is "N/A". Resets come by the kernel's log as well.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from torchrelay.agent.health.probes.differ import Differ
from torchrelay.agent.health.probes.source import AbsentError, FactSource
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

RESET_EVENT = "GPU_PRE_RESET"
EVENTS_AT_ONCE = 10
_RESIDENCIES = ("prochot_residency_acc", "socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc")
"""How long the hardware has slowed the GPU down, by cause. A GPU without these has `throttle_status`."""


class AmdGpu:
    """What is remembered of one GPU between readings: the `blocks` whose errors are counted, slowdowns and XGMI errors so far."""

    def __init__(self, uuid: str, handle: Any) -> None:
        self.uuid = uuid
        self.handle = handle
        self.blocks: list[Any] = []
        self.by_block: dict[str, dict[str, float]] = {}
        self.limit_c: float | None = None
        self.lost = False
        self.slow = False
        self.slowdowns = 0
        self.residency: float | None = None
        self.xgmi_errors = 0
        self.xgmi_left = 0


class Amd:
    """All AMD GPUs. `smi`: the module amdsmi, with its library initialised."""

    def __init__(self, smi: Any) -> None:
        self._smi = smi
        self._differ = Differ()
        self._refusals = (smi.AmdSmiLibraryException,)
        self._gpus = [AmdGpu(smi.amdsmi_get_gpu_device_uuid(h), h) for h in smi.amdsmi_get_processor_handles()]
        for gpu in self._gpus:
            gpu.limit_c = self._told(self._temperature, gpu.handle, "CRITICAL")
            enabled = self._told(smi.amdsmi_get_gpu_ecc_enabled, gpu.handle) or 0
            known = [b for b in smi.AmdSmiGpuBlock if b.name not in ("INVALID", "RESERVED")]
            gpu.blocks = [b for b in known if enabled & int(b)]
            gpu.by_block = {b.name: self._told(smi.amdsmi_get_gpu_ecc_count, gpu.handle, b) or {} for b in gpu.blocks}
        readers = [self._told(self._reader, gpu.handle) for gpu in self._gpus]
        self._readers = [r for r in readers if r is not None]

    def devices(self) -> list[dict[str, str]]:
        smi = self._smi
        return [
            {"device": gpu.uuid, "pci": smi.amdsmi_get_gpu_device_bdf(gpu.handle), "name": "AMD GPU"}
            for gpu in self._gpus
        ]

    def poll(self) -> list[HealthSignal]:
        signals = []
        for gpu in self._gpus:
            if gpu.lost:
                continue
            try:
                errors = self._smi.amdsmi_get_gpu_total_ecc_count(gpu.handle)
            except self._refusals as e:
                if e.get_error_code() == self._smi.amdsmi_wrapper.AMDSMI_STATUS_NOT_SUPPORTED:
                    errors = {}
                else:
                    gpu.lost = True
                    signals.append(HealthSignal(k.GPU_LOST, gpu.uuid, detail=str(e)))
                    continue
            signals += [self._with_block(gpu, s) for s in self._differ.update(gpu.uuid, self._reading(gpu, errors))]
        return signals

    def wait(self, timeout_s: float) -> list[HealthSignal]:
        """Wait for resets that the driver announces, of any GPU."""
        if not self._readers:
            time.sleep(timeout_s)
            return []
        began_s = time.monotonic()
        try:
            events = self._readers[0].read(max(int(timeout_s * 1000), 1), EVENTS_AT_ONCE)
        except self._refusals:  # none came; a driver may say so before the time is over
            time.sleep(max(timeout_s - (time.monotonic() - began_s), 0.0))
            return []
        by_handle = {gpu.handle.value: gpu.uuid for gpu in self._gpus}
        return [
            HealthSignal(k.AMD_RESET, by_handle.get(e["processor_handle"].value, ""), detail=e["message"])
            for e in events
            if e["event"] == RESET_EVENT
        ]

    def _reading(self, gpu: AmdGpu, errors: dict[str, Any]) -> dict[str, float | None]:
        celsius = self._told(self._temperature, gpu.handle, "CURRENT")
        pages = self._told(self._smi.amdsmi_get_gpu_bad_page_info, gpu.handle)
        threshold = self._told(self._smi.amdsmi_get_gpu_bad_page_threshold, gpu.handle)
        return {
            k.RAS_CORRECTED: errors.get("correctable_count"),
            k.RAS_UNCORRECTED: errors.get("uncorrectable_count"),
            k.BAD_PAGES: len(pages) / threshold if pages is not None and threshold else None,
            k.TEMPERATURE_MARGIN: gpu.limit_c - celsius if celsius is not None and gpu.limit_c else None,
            k.XGMI_ERRORS: self._xgmi(gpu),
            k.HW_SLOWDOWN: self._slowdowns(gpu),
            **self._pcie(gpu),
        }

    def _with_block(self, gpu: AmdGpu, signal: HealthSignal) -> HealthSignal:
        """Name the blocks of the GPU that an error was in. The blocks are read only when the sum has moved."""
        key = {k.RAS_CORRECTED: "correctable_count", k.RAS_UNCORRECTED: "uncorrectable_count"}.get(signal.kind)
        if key is None:
            return signal
        moved = []
        for block in gpu.blocks:
            now = self._told(self._smi.amdsmi_get_gpu_ecc_count, gpu.handle, block)
            if now is not None and now[key] > gpu.by_block.get(block.name, {}).get(key, 0):
                moved.append(block.name)
                gpu.by_block[block.name] = now
        detail = f"in block {', '.join(moved)}" if moved else ""
        return HealthSignal(signal.kind, signal.device, value=signal.value, detail=detail)

    def _xgmi(self, gpu: AmdGpu) -> float | None:
        """Return the number of XGMI errors so far; None where the device does not tell.

        The status stays until it is reset. Where a reset is not permitted, a status that stays is no new error.
        """
        status = self._told(self._smi.amdsmi_gpu_xgmi_error_status, gpu.handle)
        if status is None:
            return None
        gpu.xgmi_errors += max(int(status) - gpu.xgmi_left, 0)
        gpu.xgmi_left = int(status)
        if status and self._is_done(self._smi.amdsmi_reset_gpu_xgmi_error, gpu.handle):
            gpu.xgmi_left = 0
        return float(gpu.xgmi_errors)

    def _slowdowns(self, gpu: AmdGpu) -> float | None:
        metrics = self._told(self._smi.amdsmi_get_gpu_metrics_info, gpu.handle) or {}
        sums = [metrics[name] for name in _RESIDENCIES if isinstance(metrics.get(name), int)]
        if sums:
            before = gpu.residency
            gpu.residency = float(sum(sums))
            slow = before is not None and gpu.residency > before
        elif isinstance(metrics.get("throttle_status"), bool):
            slow = metrics["throttle_status"]
        else:
            return None
        gpu.slowdowns += slow and not gpu.slow
        gpu.slow = slow
        return float(gpu.slowdowns)

    def _pcie(self, gpu: AmdGpu) -> dict[str, float | None]:
        info = self._told(self._smi.amdsmi_get_pcie_info, gpu.handle)
        if info is None:
            return {}
        width = info["pcie_metric"]["pcie_width"]
        most = info["pcie_static"]["max_pcie_width"]
        replays = info["pcie_metric"]["pcie_replay_count"]
        known = isinstance(width, int) and isinstance(most, int) and width and most
        return {
            k.PCIE_WIDTH: width / most if known else None,
            k.PCIE_REPLAYS: float(replays) if isinstance(replays, int) else None,
        }

    def _reader(self, handle: Any) -> Any:
        return self._smi.AmdSmiEventReader(handle, [self._smi.AmdSmiEvtNotificationType[RESET_EVENT]])

    def _temperature(self, handle: Any, metric: str) -> float:
        sensor = self._smi.AmdSmiTemperatureType.HOTSPOT
        return float(self._smi.amdsmi_get_temp_metric(handle, sensor, self._smi.AmdSmiTemperatureMetric[metric]))

    def _is_done(self, call: Callable[..., Any], *arguments: Any) -> bool:
        try:
            call(*arguments)
        except self._refusals:
            return False
        return True

    def _told(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._refusals:
            return None


def open_source(options: dict[str, Any]) -> FactSource:
    """Open the GPUs.

    `env`: variables that say where ROCm is. Raises AbsentError where amdsmi or its library is missing, or does not start.
    """
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
