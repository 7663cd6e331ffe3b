"""Which worker uses which device. Pure."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchrelay.agent.health.machine.kernel_log import normal_pci
from torchrelay.protocol.machine.visible_gpus import CUDA, HIP, ROCR, selected, selections
from torchrelay.protocol.names import WorkerId


@dataclass(frozen=True)
class Device:
    """A GPU or a port. `device`: GPU UUID, or port; `pci`: its address, or for ports its folder in sysfs."""

    device: str
    pci: str
    name: str = ""


def visible(gpus: Sequence[Device], selections: Iterable[str]) -> list[Device]:
    """Return the GPUs that a process sees, in the order in which it sees them.

    `selections`: as `visible_gpus.selections` says them.
    """
    left = list(gpus)
    for selection in selections:
        left = [left[place] for place in selected([gpu.device for gpu in left], selection)]
    return left


NOBODY = WorkerId("")
"""Stands among workers for a GPU that none of them uses."""


def gpus_of(workers: Sequence[WorkerId], gpus: Sequence[Device]) -> dict[WorkerId, Device]:
    """Return the GPU of each worker, as long as there are enough. `workers`: ranks by local rank, then spares."""
    return {worker: gpu for worker, gpu in zip(workers, gpus) if worker != NOBODY}


def free(workers: Sequence[WorkerId], gpus: Sequence[Device]) -> list[Device]:
    """Return the GPUs that no worker has used."""
    used = gpus_of(workers, gpus).values()
    return [gpu for gpu in gpus if gpu not in used]


def in_place(worker: WorkerId, place: str, workers: Sequence[WorkerId], gpus: Sequence[Device]) -> list[WorkerId]:
    """Return the workers with a further one in `place`: an ended worker whose GPU it takes, or a GPU that is free.

    A GPU that another worker uses meanwhile stays with that worker.
    """
    if place in workers:
        return [worker if w == place else w for w in workers]
    names = [gpu.device for gpu in gpus]
    if place not in names:
        return list(workers)
    at = names.index(place)
    found = [*workers, *[NOBODY] * (at + 1 - len(workers))]
    if found[at] == NOBODY:
        found[at] = worker
    return found


def choice(
    gpus: Sequence[Device], environ: Mapping[str, str], own: Device, local_rank: int, *, amd: bool
) -> dict[str, str]:
    """Return what the environment of process number `local_rank` needs so that it uses `own`; empty if it uses `own` anyway.

    `gpus`: all of the machine; `environ`: the environment that chooses this process's GPUs. AMD's are named by their numbers: its
    runtimes call them otherwise than its driver does.
    """
    order = order_with(visible(gpus, selections(environ, amd=amd)), own, local_rank)
    if not order:
        return {}
    if not amd:
        return {CUDA: ",".join(gpu.device for gpu in order)}
    left = visible(gpus, [environ[ROCR]] if ROCR in environ else [])
    return {HIP: ",".join(str(left.index(gpu)) for gpu in order)}


def order_with(gpus: Sequence[Device], own: Device, local_rank: int) -> list[Device]:
    """Return the GPUs in an order in which `own` is number `local_rank`.

    Empty if it is that anyway, if `own` is not among them, or if they have no such number.
    """
    if own not in gpus or local_rank >= len(gpus) or gpus[local_rank] == own:
        return []
    order = list(gpus)
    at = order.index(own)
    order[at], order[local_rank] = order[local_rank], order[at]
    return order


def nearest(gpu_folder: str, ports: Sequence[Device]) -> list[Device]:
    """Return the ports that share the longest way through the PCI tree with the GPU; none if they share only the host bridge."""

    def shared(port: Device) -> int:
        return len(os.path.commonpath((gpu_folder, port.pci)).split("/")) if port.pci.startswith("/") else 0

    best = max(map(shared, ports), default=0)
    root = len(gpu_folder.split("/devices/")[0].split("/")) + 2
    return [p for p in ports if shared(p) == best] if best > root else []


def usage(
    workers: Sequence[WorkerId],
    gpus: Sequence[Device],
    ports: Sequence[Device],
    folders: Mapping[str, str],
    for_all: Sequence[str],
) -> dict[str, str]:
    """Return each worker's devices, separated by blanks.

    `folders`: PCI address -> folder in sysfs; `for_all`: devices that every worker uses.
    """
    mine = gpus_of(workers, gpus)
    told = {}
    for worker in workers:
        if worker == NOBODY:
            continue
        names = list(for_all)
        if (gpu := mine.get(worker)) is not None:
            names.append(gpu.device)
            if folder := folders.get(normal_pci(gpu.pci)):
                names += [p.device for p in nearest(folder, ports)]
        told[str(worker)] = " ".join(names)
    return told
