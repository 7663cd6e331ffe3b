"""Lets a process that nobody needs yet give way to training, and lets it run as any other once somebody does.

Leans on Linux: SCHED_IDLE (sched(7)) and ioprio_set(2), both for single threads. Seen on Linux 6.18. To leave SCHED_IDLE again
takes CAP_SYS_NICE or a high RLIMIT_NICE: where neither is there, only the reading of files gives way.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import threading
from contextlib import suppress

log = logging.getLogger(__name__)

_libc = ctypes.CDLL(None, use_errno=True)
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IO_IDLE = 3 << 13
_IO_AS_OTHERS = 0
_ROUNDS = 5
"""A process that starts threads may have started one more than was seen; those inherit what their starter has."""


class Priorities:
    def __init__(self) -> None:
        self._can_return: bool | None = None

    def lower(self, pid: int) -> None:
        """To be called right after the start: what the process starts inherits it."""
        if self._can_return is None:
            self._can_return = can_return()
            if not self._can_return:
                log.info(
                    "spares are made at the priority of training: it takes CAP_SYS_NICE or RLIMIT_NICE to raise one again"
                )
        if self._can_return:
            _schedule(pid, os.SCHED_IDLE)
        _set_io(pid, _IO_IDLE)

    def raise_(self, *pids: int) -> None:
        """Of these processes, what they have started, and all their threads."""
        raised: set[int] = set()
        for _ in range(_ROUNDS):
            threads = {tid for pid in pids for process in _tree(pid) for tid in _numbers(f"/proc/{process}/task")}
            if threads <= raised:
                return
            for tid in threads - raised:
                _set_io(tid, _IO_AS_OTHERS)
                if self._can_return:
                    _schedule(tid, os.SCHED_OTHER)
            raised |= threads


def can_return() -> bool:
    """Whether this process may take an idle priority back, tried by a thread that ends with it."""
    found: list[bool] = []

    def attempt() -> None:
        try:
            for policy in (os.SCHED_IDLE, os.SCHED_OTHER):
                os.sched_setscheduler(0, policy, os.sched_param(0))
            found.append(True)
        except OSError:
            found.append(False)

    thread = threading.Thread(target=attempt, name="priority")
    thread.start()
    thread.join()
    return found[0]


def _schedule(tid: int, policy: int) -> None:
    try:
        os.sched_setscheduler(tid, policy, os.sched_param(0))
    except ProcessLookupError:
        log.debug("thread %d has ended", tid)
    except OSError as e:
        log.warning("the priority of %d cannot be changed: %s", tid, e)


def _set_io(tid: int, priority: int) -> None:
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None and _libc.syscall(number, _IOPRIO_WHO_PROCESS, tid, priority):
        log.debug("the I/O priority of %d cannot be changed: %s", tid, os.strerror(ctypes.get_errno()))


def _tree(pid: int) -> set[int]:
    found = set[int]()
    new = {pid}
    while new:
        found |= new
        new = {child for p in new for tid in _numbers(f"/proc/{p}/task") for child in _children(p, tid)} - found
    return found


def _numbers(folder: str) -> list[int]:
    with suppress(OSError):  # it has ended
        return [int(name) for name in os.listdir(folder)]
    return []


def _children(pid: int, tid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{tid}/children") as file:
        return [int(child) for child in file.read().split()]
    return []
