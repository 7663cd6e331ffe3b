"""What the kernel says about a process, and how it ended, in words."""

from __future__ import annotations

import os
import platform
import signal

from torchrelay.protocol.machine.process_states import GONE

_STAT_BYTES = 1024
_MOST_DESCENDANTS = 256
_DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
_WAITS_FOR_LOCK = {"x86_64": "202", "aarch64": "98"}
"""The number of the system call `futex`, by machine."""
_TIMEOUT = 4
"""The place of its time limit among its words in /proc/PID/syscall, of which the first is the number."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def process_state(pid: int) -> str:
    """Return the state letter of /proc/PID/stat: `R`, `S`, `D`, `T` (stopped), `Z` (dead, not yet collected); or `gone`."""
    return process_activity(pid)[0]


def process_activity(pid: int) -> tuple[str, float]:
    """Return state letter and processor time in seconds of the main thread, which is the one that trains."""
    return _activity(f"/proc/{pid}/task/{pid}/stat")


def descendants_processor_s(pid: int) -> float:
    """Return the processor time in seconds of the living descendants of process `pid`, such as the workers of its data loaders.

    Processes that were started by other threads than a main thread are left out. Of very many, the last ones are left out.
    """
    total_s = 0.0
    seen = {pid}
    left = _children(pid)
    while left and len(seen) < _MOST_DESCENDANTS:
        child = left.pop(0)
        if child not in seen:
            seen.add(child)
            total_s += _activity(f"/proc/{child}/stat")[1]
            left += _children(child)
    return total_s


def uses_device(pid: int) -> bool:
    """Return whether the process has a GPU's device file open; True where nobody may look."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except PermissionError:
        return True
    except OSError:
        return False  # it is gone
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}").startswith(_DEVICE_FILES):
                return True
        except OSError:
            continue  # closed meanwhile
    return False


def waits_for_lock(pid: int) -> bool:
    """Return whether the main thread waits for a lock without a time limit. False where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/task/{pid}/syscall", "rb") as file:
            words = file.read().decode("ascii", "replace").split()
    except OSError:
        return False
    is_lock = len(words) > _TIMEOUT and words[0] == _WAITS_FOR_LOCK.get(platform.machine())
    return is_lock and int(words[_TIMEOUT], 16) == 0


def _children(pid: int) -> list[int]:
    """Return the processes that the main thread of `pid` has started.

    The list is empty where the kernel does not tell: it was built without CONFIG_PROC_CHILDREN, or the process is hidden from us.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [*map(int, file.read().split())]
    except OSError:
        return []


def _activity(path: str) -> tuple[str, float]:
    """Return state letter and processor time in seconds, from one of the kernel's files `stat`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            stat = os.read(file, _STAT_BYTES)
        finally:
            os.close(file)
    except (FileNotFoundError, ProcessLookupError):
        return GONE, 0.0
    # The command's name, in brackets, may hold brackets and blanks itself.
    _, bracket, rest = stat.rpartition(b")")
    fields = rest.split()
    if not bracket or not fields:
        return GONE, 0.0
    return fields[0].decode("ascii"), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def exit_reason(exit_code: int, signal_number: int) -> str:
    """Return in words how a process ended: `killed by SIGKILL (...)`, `ended with exit code 3`, `ended`."""
    if signal_number:
        hint = _SIGNAL_HINTS.get(signal_number, "")
        return f"killed by {signal_name(signal_number)}" + (f" ({hint})" if hint else "")
    return f"ended with exit code {exit_code}" if exit_code else "ended"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: "by hand, or by the kernel when memory ran out",
    signal.SIGSEGV: "invalid memory access in native code",
    signal.SIGBUS: "memory that cannot be backed, such as a full /dev/shm, or a hardware error",
    signal.SIGABRT: "native code gave up, often with a message above",
    signal.SIGILL: "a machine instruction that this processor lacks",
    signal.SIGFPE: "an arithmetic error in native code",
}


def activity_if_seen(pid: int) -> tuple[str, float]:
    """Return state letter and processor time as `process_activity` does; state `R` for a process that cannot be seen (`pid` is 0).

    Nothing is known of such a process: it counts as at work, so that it is never blamed in haste.
    """
    state, processor_s = process_activity(pid) if pid else (GONE, 0.0)
    return ("R", processor_s) if state == GONE else (state, processor_s)
