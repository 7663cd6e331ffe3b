"""Let go of the communicators that a process group had before.

`ProcessGroup` keeps every backend that was ever registered, by its type, and nothing in Python takes one out: three threads and
five descriptors for each migration. `ProcessGroup::release_resources` of C++ forgets them all, with the group's own store (which
only NCCL's parts ask for). It is called without Python's lock, since a backend that goes away waits for its threads, which may need
the lock. Then the present backend is registered again. The object's address lies behind the head of pybind11's instance, and is
believed only where the object begins with the address of that class's table of virtual functions. Seen on torch 2.13.0 on x86-64.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchrelay.shim.adapters.process_groups import process_group as groups

_RELEASE = "_ZN4c10d12ProcessGroup17release_resourcesEv"
_TABLE = "_ZTVN4c10d12ProcessGroupE"
_TABLE_HEADER_BYTES = 16
"""The size of the part of a table of virtual functions that lies in front of the place that objects point to (Itanium C++ ABI)."""
_INSTANCE_HEAD_BYTES = object.__basicsize__


class OldBackends:
    """Forget old backends. Raises AttributeError, OSError or ValueError where torch lacks what this leans on."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        self._release = library[_RELEASE]
        self._release.argtypes = [ctypes.c_void_p]
        self._release.restype = None
        self._table = ctypes.addressof(ctypes.c_char.in_dll(library, _TABLE)) + _TABLE_HEADER_BYTES

    def forget(self, group: Any) -> bool:
        """Forget all backends of the group but the present one, which is registered as torch registers a group's first one.

        Returns False where the group is not what it was taken for. To be called on the training thread, while no thread waits in
        any of the backends.
        """
        address = self._address(group)
        if address is None:
            return False
        present = groups.communicators(group)
        names = groups.backend_names(group)
        self._release(address)
        for device, communicator in present.items():
            group._register_backend(device, groups.first_type(names[device.type]), communicator)
        return True

    def _address(self, group: Any) -> int | None:
        if not isinstance(group, dist.ProcessGroup):
            return None
        address = ctypes.c_void_p.from_address(id(group) + _INSTANCE_HEAD_BYTES).value
        if not address or ctypes.c_void_p.from_address(address).value != self._table:
            return None
        return address
