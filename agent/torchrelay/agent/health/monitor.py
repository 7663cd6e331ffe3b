"""Watches all that the agent watches besides its workers' progress: starts the sources, and tells what they see."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchrelay.agent.health.gpus.devices import Device, choice, free, gpus_of, in_place, usage, visible
from torchrelay.agent.health.gpus.xids import XidMerger
from torchrelay.agent.health.job_files.files import Files
from torchrelay.agent.health.machine.host_cpu import HostCpu
from torchrelay.agent.health.machine.kernel_log import KernelLog, normal_pci
from torchrelay.agent.health.machine.memory import MemoryLimit
from torchrelay.agent.health.machine.notices import Notices
from torchrelay.agent.health.probes.places import DCGM, WatchedPlaces
from torchrelay.agent.health.probes.probe_process import HANG_S, OK, ProbeProcess
from torchrelay.agent.health.probes.source import Covered
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.machine import visible_gpus
from torchrelay.protocol.messages import HealthSignal, HealthSignals, HealthSources
from torchrelay.protocol.names import WorkerId

log = logging.getLogger(__name__)

KERNEL_LOG = "kernel-log"
FAKE_NOTICE = "notice"
NOTICES_S = 1.0
HOST_CPU_EVERY = 5
"""Seconds between two looks at the machine's files; every HOST_CPU_EVERY-th look is also at its processors."""
_OOMS = (k.OOM_PROGRAM, k.OOM_NODE)


class MachineMonitor:
    """All sources of a machine.

    `send` takes HealthSignals and HealthSources; `worker_with` finds the worker with the kernel's pid.
    """

    def __init__(
        self,
        places: WatchedPlaces,
        workers: Sequence[WorkerId],
        environ: Mapping[str, str],
        send: Callable[[Any], None],
        worker_with: Callable[[int], WorkerId | None],
        hang_s: float = HANG_S,
    ) -> None:
        self._places = places
        self._workers = workers
        self._send = send
        self._worker_with = worker_with
        self._selecting = {name: environ[name] for name in visible_gpus.VARIABLES if name in environ}
        self._is_amd = False
        self._gpus: list[Device] = []
        self._ports: list[Device] = []
        self._by_pci: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self._xids = XidMerger(self._told)
        self._kernel_log = KernelLog(places.kernel_log, self._from_kernel, self._kernel_log_died)
        self._memory = MemoryLimit()
        self._files = Files(places.watched, self.tell)
        notices = (*places.notices, str(Path(places.root) / FAKE_NOTICE)) if places.root else places.notices
        self._notices = Notices(notices, Path(places.root or "/"))
        self._host_cpu = HostCpu(Path(places.root or "/"))
        self._probes = {
            name: ProbeProcess(
                name, options, self._from_probe(name), self._found(name), self._state, hang_s, self._leave_to_exporter
            )
            for name, options in places.probes().items()
        }

    def use(self, workers: Sequence[WorkerId], selection: str | None) -> None:
        """Set the workers that use the GPUs from now on, of which they see `selection`, as CUDA_VISIBLE_DEVICES has it."""
        self._selecting = {} if selection is None else {visible_gpus.CUDA: selection}
        self._seat(workers)

    def is_gpu(self, place: str) -> bool:
        """Return whether `place` names one of the machine's GPUs."""
        return any(gpu.device == place for gpu in self._gpus)

    def takes_place(self, worker: WorkerId, place: str) -> None:
        """Give `worker` the device of a worker that has ended, or one that is free. `place`: that worker, or that device."""
        self._seat(in_place(worker, place, self._workers, self._visible()))

    def _seat(self, workers: Sequence[WorkerId]) -> None:
        self._workers = workers
        if self.states:
            self._announce()

    async def run(self) -> None:
        """Run all sources until cancelled."""
        probed = self._places.probes()
        for name in ("nvidia", "amd", "network"):
            self.states[name] = "starting" if name in probed else "not present: no such device on this machine"
        if DCGM in probed:
            self.states[DCGM] = "starting"
        reason = self._kernel_log.open()
        self.states[KERNEL_LOG] = f"not present: {reason}" if reason else OK
        self._xids.has_kernel_log = not reason
        self._files.start()
        self._announce()
        tasks = [asyncio.ensure_future(probe.run()) for probe in self._probes.values()]
        tasks.append(asyncio.ensure_future(self._look_around()))
        try:
            # Those that turned out to be absent end; one that raises, which is a bug, takes all of them with it.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._files.stop()
            self._kernel_log.close()

    async def _look_around(self) -> None:
        """Tell what files say of the machine itself, until cancelled."""
        for turn in itertools.count():
            for signal in (*self._notices.poll(), *(() if turn % HOST_CPU_EVERY else self._host_cpu.poll())):
                self._told(signal)
            await asyncio.sleep(NOTICES_S)

    @property
    def probe_pids(self) -> list[int]:
        return [probe.pid for probe in self._probes.values() if probe.pid is not None]

    def tell(self, signal: HealthSignal) -> None:
        self._told(signal)

    def explain_kill(self, worker: WorkerId, pid: int) -> None:
        """Tell what the kernel says about a worker that was killed with SIGKILL, but not by torchrelay.

        To be called before the worker's end is told.
        """
        self._kernel_log.read()
        kind = self._memory.killed()
        # The kernel's log names the process; without it the control group's counters have to do.
        if kind and self.states.get(KERNEL_LOG) != OK:
            self._told(HealthSignal(kind, worker=worker, detail=f"memory ran out in the control group of pid {pid}"))

    def environment(self, worker: WorkerId, local_rank: int) -> dict[str, str]:
        """Return the variables with which a spare that becomes `local_rank` uses its own GPU, and not that of the lost rank."""
        own = gpus_of(self._workers, self._visible()).get(worker)
        if self._places.root or own is None:
            return {}
        return choice(self._gpus, self._selecting, own, local_rank, amd=self._is_amd)

    def _visible(self) -> list[Device]:
        return visible(self._gpus, visible_gpus.selections(self._selecting, amd=self._is_amd))

    def gpu_index(self, worker: str) -> int | None:
        """Return the number of the machine's GPU that the worker uses; None if it uses none."""
        mine = self._usage().get(worker, "").split()
        return next((i for i, g in enumerate(self._gpus) if g.device in mine), None)

    def _found(self, source: str) -> Callable[[list[dict[str, str]]], None]:
        def found(devices: list[dict[str, str]]) -> None:
            known = [Device(d["device"], d["pci"], d.get("name", "")) for d in devices]
            if source == "network":
                self._ports = known
            elif source != DCGM or not self._gpus:
                # Where there are GPUs of both makers, the job's are NVIDIA's: the other may be the processor's own.
                self._is_amd = bool(known) and source == "amd" and "nvidia" not in self._places.probes()
                # A source that starts anew may miss a GPU that was lost: who uses which does not change by that.
                self._gpus += [d for d in known if d.device not in {g.device for g in self._gpus}]
                self._by_pci = {normal_pci(d.pci): d.device for d in self._gpus}
            self._announce()

        return found

    def _usage(self) -> dict[str, str]:
        folders = {p: os.path.realpath(self._places.sys / "bus/pci/devices" / f"{p}.0") for p in self._by_pci}
        for_all = [p.device for p in self._ports if p.name == "Interface"]
        for_all += [f"{n}{k.DRIVER}" for n in ("nvidia", "amd") if self._gpus and n in self._places.probes()]
        ports = [p for p in self._ports if p.name != "Interface"]
        return usage(self._workers, self._visible(), ports, folders, for_all)

    def _announce(self) -> None:
        # Where nobody has said which GPUs are this job's, the others may be another job's.
        is_chosen = bool(visible_gpus.selections(self._selecting, amd=self._is_amd))
        unused = free(self._workers, self._visible()) if is_chosen else []
        gpus = {str(worker): gpu.device for worker, gpu in gpus_of(self._workers, self._visible()).items()}
        self._send(HealthSources(dict(self.states), self._usage(), tuple(gpu.device for gpu in unused), gpus))

    def _state(self, source: str, text: str) -> None:
        if source == DCGM and text != OK:
            self._leave_to_exporter({})
        if self.states.get(source) != text:
            self.states[source] = text
            if text != "starting":
                self._announce()

    def _kernel_log_died(self, reason: str) -> None:
        self._xids.has_kernel_log = False
        self._state(KERNEL_LOG, f"dead: {reason}")
        self._told(HealthSignal(k.SOURCE_DEAD, KERNEL_LOG, detail=reason))

    def _from_kernel(self, signal: HealthSignal) -> None:
        device = self._by_pci.get(signal.device, signal.device)
        worker = signal.worker
        if signal.kind in _OOMS:
            pid = worker.removeprefix("pid ")
            found = self._worker_with(int(pid)) if pid.isdigit() else None
            if found is None:
                log.debug("memory ran out for a process that is none of ours: %s", signal.detail)
                return
            worker = found
        seen = HealthSignal(signal.kind, device, worker, signal.code, signal.value, 0.0, signal.detail)
        if seen.kind == k.XID:
            self._xids.from_kernel(seen)
        else:
            self._told(seen)

    def _leave_to_exporter(self, covered: Covered) -> None:
        if (nvidia := self._probes.get("nvidia")) is not None:
            nvidia.leave(covered)

    def _from_probe(self, source: str) -> Callable[[list[HealthSignal]], None]:
        def seen(signals: list[HealthSignal]) -> None:
            for signal in signals:
                if signal.kind != k.XID:
                    continue
                if source != DCGM:
                    self._xids.from_driver(signal)
                elif self.states.get("nvidia") != OK:
                    self._xids.from_exporter(signal)
            if rest := [s for s in signals if s.kind != k.XID]:
                self._send(HealthSignals(tuple(rest)))

        return seen

    def _told(self, signal: HealthSignal) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._send(HealthSignals((signal,)))
