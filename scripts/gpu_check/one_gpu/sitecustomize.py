"""Lets several ranks share one GPU: NCCL refuses a device twice on one host, so each process names itself another host.

The folder of this file is put onto PYTHONPATH by the check. `ONE_GPU_LOCAL_RANK` is what a script reads as its LOCAL_RANK, whatever
that is: most scripts take the device of that number.
"""

import os
import socket

os.environ["NCCL_HOSTID"] = f"{socket.gethostname()}-{os.getpid()}"


class _WithOneDevice(type(os.environ)):  # type: ignore[misc]  # the class of os.environ has no public name
    def __getitem__(self, name: str) -> str:
        value: str = super().__getitem__(name)
        return super().__getitem__("ONE_GPU_LOCAL_RANK") if name == "LOCAL_RANK" else value


if "ONE_GPU_LOCAL_RANK" in os.environ:
    os.environ.__class__ = _WithOneDevice
