"""Tell which library a group's communicator on a device is of, and why a job on another library is not protected."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.process_groups import process_group as groups
from torchrelay.shim.backends.backend import Backend
from torchrelay.shim.backends.gloo import Gloo
from torchrelay.shim.backends.nccl import Nccl

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Gloo(), Nccl())}


def of_group(group: Any) -> dict[str, Backend]:
    """Return the libraries that serve the group's devices, by the device's type. Raises UnsupportedError as `named` does."""
    return {device: named(name) for device, name in groups.backend_names(group).items()}


def named(name: str) -> Backend:
    """Return the library of that name.

    Raises UnsupportedError where none has that name, or torch lacks what the exchange of its communicators needs.
    """
    backend = BACKENDS.get(name)
    if backend is None:
        known = " and ".join(BACKENDS)
        raise UnsupportedError(f"the process group uses {name}; groups on {known} can be migrated")
    missing = backend.missing()
    if missing:
        raise UnsupportedError(missing)
    return backend


def check_groups(found: Iterable[Any]) -> None:
    """Raise UnsupportedError where one of the groups cannot be migrated."""
    for group in found:
        of_group(group)


def is_known(group: Any) -> bool:
    """Return whether communicators for the group can be made here."""
    found = [BACKENDS.get(name) for name in groups.backend_names(group).values()]
    return all(backend is not None and not backend.missing() for backend in found)


@functools.cache
def prepare() -> dict[str, str]:
    """Prepare the libraries, before torch makes its first communicator.

    Return the variables of the environment that were overruled, with their earlier values.
    """
    overruled = {}
    for backend in BACKENDS.values():
        if backend.missing():
            continue
        backend.prepare()
        for name, value in backend.environment.items():
            before = os.environ.get(name, value)
            if before != value:
                overruled[name] = before
            os.environ[name] = value
    return overruled


def notes(backends: Iterable[Backend]) -> tuple[str, ...]:
    """Return what users of these libraries have to know, for the protection report."""
    told = [backend.note for backend in backends if backend.note]
    if told and (overruled := prepare()):
        told.append(f"not in force: {', '.join(f'{name}={value}' for name, value in overruled.items())}")
    return tuple(told)


def called_on_devices() -> int:
    """Return how many collectives this process has called on libraries whose collectives run on a device."""
    found = {}
    for group in groups.groups():
        for device, communicator in groups.communicators(group).items():
            backend = BACKENDS.get(groups.backend_names(group)[device.type])
            if backend is not None and backend.on_device:
                found[id(communicator)] = communicator
    return sum(groups.called(communicator) for communicator in found.values())


def library_sockets() -> frozenset[str]:
    """Return the inodes of sockets that libraries look after themselves."""
    return frozenset().union(*(backend.sockets for backend in BACKENDS.values()))


@functools.cache
def unconnected(name: str, place: int, size: int) -> Any:
    """Make a communicator that is not connected, to read what it says of itself; None for a library that is not known here."""
    backend = BACKENDS.get(name)
    return backend.unconnected(place, size) if backend is not None and not backend.missing() else None


def is_peer_failure(text: str) -> bool:
    """Return whether an error with this text means, for one of the libraries, that a peer went away."""
    return any(mark in text for backend in BACKENDS.values() for mark in backend.failure_marks)
