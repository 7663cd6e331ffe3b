"""NVIDIA GPUs through nvidia-ml-py: events at once, counters and levels at each poll. Runs in a probe process.

Leans on NVML of driver 450 or newer; what a driver or device lacks is left out of the reading.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import pynvml as nv

from torchrelay.agent.health.probes.differ import Differ
from torchrelay.agent.health.probes.source import AbsentError, Covered, FactSource
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

LINKS_EVERY = 5
"""Polls between two looks at the state of each NVLink. A look takes a call for each link, and XID 74 tells of a fault at once."""
_FIELDS: dict[str, tuple[int, ...]] = {
    k.ECC_CORRECTED: (nv.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,),
    k.ECC_UNCORRECTED: (nv.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,),
    k.REMAP_PENDING: (nv.NVML_FI_DEV_REMAPPED_PENDING,),
    k.REMAP_FAILED: (nv.NVML_FI_DEV_REMAPPED_FAILURE,),
    k.ECC_LIFETIME: (nv.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,),
    k.RETIRED_PENDING: (nv.NVML_FI_DEV_RETIRED_PENDING,),
    k.RETIRED_PAGES: (nv.NVML_FI_DEV_RETIRED_SBE, nv.NVML_FI_DEV_RETIRED_DBE),
    k.NVLINK_ERRORS: (
        nv.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        nv.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
        nv.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        nv.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    ),
    k.PCIE_REPLAYS: (nv.NVML_FI_DEV_PCIE_REPLAY_COUNTER,),
    k.RECOVERY_ACTION: (nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,),
}
_SLOWDOWNS = (
    nv.nvmlClocksEventReasonHwSlowdown
    | nv.nvmlClocksEventReasonHwThermalSlowdown
    | nv.nvmlClocksEventReasonHwPowerBrakeSlowdown
)


class NvidiaGpu:
    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.uuid: str = nv.nvmlDeviceGetUUID(handle)
        self.name: str = nv.nvmlDeviceGetName(handle)
        self.pci = nv.nvmlDeviceGetPciInfo(handle).busId
        self.limit_c = _told(
            lambda: nv.nvmlDeviceGetTemperatureThreshold(handle, nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        )
        self.lanes = _told(lambda: nv.nvmlDeviceGetMaxPcieLinkWidth(handle))
        self.links_up = self._links(range(nv.NVML_NVLINK_MAX_LINKS))
        self.lost = False
        self.recovery: int | None = None
        self.slow = False
        self.slowdowns = 0
        self.left: frozenset[str] = frozenset()
        """Kinds that another source reads."""

    def _links(self, asked: Iterable[int]) -> set[int]:
        return {i for i in asked if _told(functools.partial(nv.nvmlDeviceGetNvLinkState, self.handle, i)) == 1}

    def read(self, with_links: bool) -> dict[str, float | None]:
        """Read the GPU. Raises NVMLError where the device does not answer at all."""
        reading = self._fields()
        if self.limit_c and k.TEMPERATURE_MARGIN not in self.left:
            celsius = _told(lambda: nv.nvmlDeviceGetTemperature(self.handle, nv.NVML_TEMPERATURE_GPU))
            reading[k.TEMPERATURE_MARGIN] = None if celsius is None else self.limit_c - celsius
        if self.lanes and k.PCIE_WIDTH not in self.left:
            width = _told(lambda: nv.nvmlDeviceGetCurrPcieLinkWidth(self.handle))
            reading[k.PCIE_WIDTH] = width / self.lanes if width else None
        if k.HW_SLOWDOWN not in self.left:
            reading[k.HW_SLOWDOWN] = self._slowdowns()
        if with_links and self.links_up:
            reading[k.NVLINK_DOWN] = len(self.links_up - self._links(self.links_up))
        return reading

    def _slowdowns(self) -> float | None:
        reasons = _told(lambda: nv.nvmlDeviceGetCurrentClocksEventReasons(self.handle))
        if reasons is None:
            return None
        slow = bool(reasons & _SLOWDOWNS)
        self.slowdowns += slow and not self.slow
        self.slow = slow
        return float(self.slowdowns)

    def _fields(self) -> dict[str, float | None]:
        wanted = {kind: numbers for kind, numbers in _FIELDS.items() if kind not in self.left}
        values = nv.nvmlDeviceGetFieldValues(self.handle, [n for numbers in wanted.values() for n in numbers])
        told = {v.fieldId: _number(v) for v in values if v.nvmlReturn == nv.NVML_SUCCESS}
        reading: dict[str, float | None] = {}
        for kind, numbers in wanted.items():
            known = [told[n] for n in numbers if n in told]
            reading[kind] = sum(known) if known else None
        return reading


class Nvidia:
    def __init__(self) -> None:
        self._gpus = [gpu for i in range(nv.nvmlDeviceGetCount()) if (gpu := _gpu(i)) is not None]
        self._differ = Differ()
        self._polls = 0
        self._left: Covered = {}
        self._by_address = {ctypes.cast(g.handle, ctypes.c_void_p).value: g for g in self._gpus}
        self._events = self._register()

    def devices(self) -> list[dict[str, str]]:
        return [{"device": g.uuid, "pci": g.pci, "name": g.name} for g in self._gpus]

    def poll(self) -> list[HealthSignal]:
        self._polls += 1
        signals = []
        for gpu in self._gpus:
            now_and_then = self._polls % LINKS_EVERY == 0
            if gpu.lost and not now_and_then:
                continue
            try:
                reading = gpu.read(with_links=now_and_then)
            except (nv.NVMLError_GpuIsLost, nv.NVMLError_Unknown) as e:
                if not gpu.lost:
                    signals.append(HealthSignal(k.GPU_LOST, gpu.uuid, detail=str(e)))
                gpu.lost = True
                continue
            gpu.lost = False
            signals += self._recovery(gpu, reading.pop(k.RECOVERY_ACTION, None))
            signals += self._differ.update(gpu.uuid, reading)
        return signals

    def leave(self, covered: Covered) -> None:
        """Leave to another source the kinds in `covered`.

        The recovery action, and whether it is lost, is still asked of every GPU.
        """
        for gpu in self._gpus:
            before = self._left.get(gpu.uuid, {})
            now = covered.get(gpu.uuid, {})
            gpu.left = frozenset(now)
            for kind in before.keys() - now.keys():
                if kind in k.COUNTERS and kind != k.HW_SLOWDOWN:
                    self._differ.start_at(gpu.uuid, kind, before[kind])
        self._left = covered

    def gpu(self, uuid: str) -> NvidiaGpu:
        return next(g for g in self._gpus if g.uuid == uuid)

    def _recovery(self, gpu: NvidiaGpu, action: float | None) -> list[HealthSignal]:
        if action is None or int(action) == gpu.recovery:
            return []
        gpu.recovery = int(action)
        return [HealthSignal(k.RECOVERY_ACTION, gpu.uuid, code=gpu.recovery)]

    def _register(self) -> Any:
        """Return one event set for the XIDs of all GPUs, or None where the driver has none."""
        try:
            events = nv.nvmlEventSetCreate()
            for gpu in self._gpus:
                nv.nvmlDeviceRegisterEvents(gpu.handle, nv.nvmlEventTypeXidCriticalError, events)
        except (nv.NVMLError_NotSupported, nv.NVMLError_FunctionNotFound):
            return None
        return events

    def wait(self, timeout_s: float) -> list[HealthSignal]:
        if self._events is None:
            time.sleep(timeout_s)
            return []
        try:
            event = nv.nvmlEventSetWait_v2(self._events, max(int(timeout_s * 1000), 1))
        except nv.NVMLError_Timeout:
            return []
        except (nv.NVMLError_GpuIsLost, nv.NVMLError_Unknown):
            time.sleep(timeout_s)  # the poll says which one
            return []
        gpu = self._by_address.get(ctypes.cast(event.device, ctypes.c_void_p).value)
        return [HealthSignal(k.XID, gpu.uuid if gpu else "", code=int(event.eventData), detail="")]


def _gpu(index: int) -> NvidiaGpu | None:
    """Return the GPU; None for one that was lost before. A lost GPU has no name any more, and the others have to be read."""
    try:
        return NvidiaGpu(nv.nvmlDeviceGetHandleByIndex(index))
    except (nv.NVMLError_GpuIsLost, nv.NVMLError_Unknown) as e:
        print(f"GPU {index} of the driver cannot be asked: {e}", file=sys.stderr)
        return None


def _told(call: Callable[[], Any]) -> Any:
    """Return what the driver says, or None where this device or driver does not know it."""
    try:
        return call()
    except (
        nv.NVMLError_NotSupported,
        nv.NVMLError_FunctionNotFound,
        nv.NVMLError_InvalidArgument,
        nv.NVMLError_NoData,
    ):
        return None


_MEMBERS = {
    nv.NVML_VALUE_TYPE_DOUBLE: "dVal",
    nv.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    nv.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    nv.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    nv.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
}


def _number(value: Any) -> float:
    return float(getattr(value.value, _MEMBERS.get(value.valueType, "ullVal")))


def open_source(options: dict[str, Any]) -> FactSource:
    """Open the GPUs. `library`: path of libnvidia-ml.so.1, if it is not the system's. Raises AbsentError."""
    if library := options.get("library"):
        os.environ.update(options.get("env", {}))
        try:
            ctypes.CDLL(library)  # what is loaded by that name is what nvidia-ml-py finds
        except OSError as e:
            raise AbsentError(f"{library} cannot be loaded: {e}") from e
    try:
        nv.nvmlInit()
        return Nvidia()
    except (nv.NVMLError_LibraryNotFound, nv.NVMLError_DriverNotLoaded) as e:
        raise AbsentError(f"no NVIDIA driver: {e}") from e
    except nv.NVMLError_NoPermission as e:
        raise AbsentError(f"the NVIDIA driver may not be asked: {e}") from e
