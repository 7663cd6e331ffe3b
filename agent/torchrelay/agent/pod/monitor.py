"""Watches devices for the agent in a pod: the GPUs and ports of its own training process, and of no other pod."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torchrelay.agent.health.monitor import MachineMonitor
from torchrelay.agent.health.probes.places import OFF, WatchedPlaces
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.kube.gpu_selection import NONE_KNOWN
from torchrelay.protocol.kube.kube_names import ENV_GPUS
from torchrelay.protocol.machine import visible_gpus
from torchrelay.protocol.messages import HealthSignals, HealthSources
from torchrelay.protocol.names import WorkerId

log = logging.getLogger(__name__)

ENV_MACHINE = "TORCHRELAY_MACHINE"
"""Folder of a fake machine, for tests."""


class PodMonitor:
    """The devices of a pod. `send` takes HealthSignals and HealthSources.

    NVML shows all GPUs of the node. The device plugin has told the training container which of them are the pod's.
    """

    def __init__(self, host: str, environ: Mapping[str, str], send: Callable[[Any], None]) -> None:
        self._send = send
        self._on = bool(environ.get(ENV_GPUS))
        self._mine: frozenset[str] = frozenset()
        self._workers: dict[int, WorkerId] = {}
        """The process of each local rank."""
        places = WatchedPlaces(environ.get(ENV_MACHINE, ""), host, dcgm=OFF)
        self._monitor = MachineMonitor(places, [], {visible_gpus.CUDA: NONE_KNOWN}, self._pass_on, lambda pid: None)

    async def run(self) -> None:
        """Watch until cancelled. Return at once where the pod asks for no GPU."""
        if self._on:
            await self._monitor.run()

    def uses(self, worker: WorkerId, gpus: str, local_rank: int = 0) -> None:
        """Watch the GPUs of a process from now on. `gpus`: the process's word on the GPUs that the pod was given.

        Of several processes each uses the GPU with the number of its local rank.
        """
        if not self._on:
            return
        if gpus == NONE_KNOWN:
            log.warning(
                "which GPUs are this pod's is not known, so that none is watched: NVIDIA_VISIBLE_DEVICES names none"
            )
        self._workers[local_rank] = worker
        nobody = WorkerId("")
        self._monitor.use([self._workers.get(n, nobody) for n in range(max(self._workers) + 1)], gpus)

    def _pass_on(self, message: HealthSignals | HealthSources) -> None:
        """Pass on a message, without the signals of other pods' devices: these are not of this job."""
        if isinstance(message, HealthSources):
            self._mine = frozenset(" ".join(message.devices.values()).split())
            self._send(message)
            return
        mine = tuple(s for s in message.signals if not s.device or s.device in self._mine or s.kind == k.SOURCE_DEAD)
        if mine:
            self._send(HealthSignals(mine))
