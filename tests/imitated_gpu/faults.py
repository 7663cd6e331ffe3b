"""Faults to order in processes on the imitated GPU, and the one home of their names: the build makes a C++ header of them.

An order is a file in a folder that the processes know from their environment. Standard library only: tests order from outside.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "IMITATED_GPU_FAULTS"  # the folder of the orders
DEVICES_VARIABLE = "IMITATED_GPU_DEVICES"  # how many devices a process has (8)
TRACE_VARIABLE = "IMITATED_GPU_TRACE"  # if set, says on stderr what is not imitated, and what the host waited for
_FIRED = "fired"


class Fault(enum.Enum):
    """What can go wrong. A peer that dies in silence needs no order: kill it."""

    CONNECTION_ERROR = "connection_error"  # a dead peer shows as ncclRemoteError in communicators with unfinished work
    ASYNC_ERROR = (
        "async_error"  # one live communicator reports ncclInternalError from now on, and its collectives do not end
    )
    STUCK_ABORT = "stuck_abort"  # from now on ncclCommAbort neither returns nor lets the stream go, in this process
    MISSING_PEER = "missing_peer"  # this process starts to make a communicator and never meets its peers
    SLOW_INIT = "slow_init"  # making a communicator takes `seconds` longer
    DEVICE_ERROR = "device_error"  # sticky: from the device's next work on, every call fails (cudaErrorIllegalAddress)


@dataclass(frozen=True)
class Firing:
    """A fault that happened."""

    fault: Fault
    pid: int


class Orders:
    """A folder of orders, shared with processes that were started with `environment()`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def environment(self) -> dict[str, str]:
        """Names what processes have to find in their environment when they start."""
        return {FOLDER_VARIABLE: str(self._folder)}

    def order(self, fault: Fault, pid: int | None = None, seconds: float = math.inf) -> None:
        """Orders it once in the process `pid`, or each time in every process. `seconds` is how long a delay takes."""
        path = self._path(fault, pid)
        made = path.with_name(f"{path.name}.new")
        made.write_text(str(seconds))
        made.rename(path)

    def withdraw(self, fault: Fault, pid: int | None = None) -> None:
        """Takes an order back. Communicators that it has hit stay as they are."""
        self._path(fault, pid).unlink(missing_ok=True)

    def fired(self, fault: Fault | None = None) -> list[Firing]:
        """Tells what has happened, in order; of one fault if it is named."""
        path = self._folder / _FIRED
        lines = path.read_text().splitlines() if path.exists() else []
        firings = [Firing(Fault(name), int(pid)) for pid, name in map(str.split, lines)]
        return [firing for firing in firings if fault in (None, firing.fault)]

    def _path(self, fault: Fault, pid: int | None) -> Path:
        return self._folder / (fault.value if pid is None else f"{fault.value}.{pid}")


def cpp_header() -> str:
    """Writes the names as C++ constants."""
    names = {fault.name: fault.value for fault in Fault}
    names |= {"FOLDER_VARIABLE": FOLDER_VARIABLE, "DEVICES_VARIABLE": DEVICES_VARIABLE}
    names |= {"TRACE_VARIABLE": TRACE_VARIABLE, "FIRED": _FIRED}
    lines = [f'inline constexpr char {name}[] = "{value}";' for name, value in names.items()]
    return "\n".join(["#pragma once", "namespace imitated::names {", *lines, "}  // namespace imitated::names", ""])


if __name__ == "__main__":
    print(cpp_header(), end="")
