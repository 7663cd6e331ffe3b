"""Could anything from outside wake this process? From what the kernel says of all its threads and those of its children."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

_LOCK = "futex"
_WAITS_WITHIN = (
    _LOCK,
    "pipe_read",
    "anon_pipe_read",
    "poll_schedule",
    "do_poll",
    "do_sys_poll",
    "ep_poll",
    "do_epoll",
)
"""Kernel functions of threads that wait for locks and pipes. The network, disks and clocks have others."""
_WAITS_FOR_CHILD = ("do_wait", "kernel_wait")
_HELPERS_WAIT = ("unix_stream", "do_accept", "inet_csk_accept", "do_sigtimedwait", "hrtimer_nanosleep_restart")
"""Beside the main thread: of the shim's link to the agent, of stores and servers."""
ASKS_AGAIN = 15
"""How often within two looks a thread that waits for the interpreter's lock wakes at least, also on a busy machine."""
_SLEEPS = b"voluntary_ctxt_switches:"


@dataclass(frozen=True)
class Task:
    """One thread.

    `wait`: the kernel function that it sleeps in; empty or `0` where the kernel does not say. `ticks`: of processor time.
    `sleeps`: how often it has begun to wait for something.
    """

    is_main: bool
    state: str
    wait: str
    ticks: int
    sleeps: int = 0


Tasks = dict[tuple[int, int], Task]


def tasks_of(pid: int) -> Tasks:
    """By process and thread, of the process and all below it. Raises psutil.Error if it is gone."""
    found: Tasks = {}
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        folder = f"/proc/{each.pid}/task"
        try:
            for name in os.listdir(folder):
                found[each.pid, int(name)] = _task(f"{folder}/{name}", int(name) == each.pid)
        except OSError:
            continue  # it has ended between two looks
    return found


def _task(folder: str, is_main: bool) -> Task:
    with open(f"{folder}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    with open(f"{folder}/wchan", "rb") as file:
        wait = file.read().decode("ascii", "replace")
    with open(f"{folder}/status", "rb") as file:
        sleeps = next((int(line.split()[1]) for line in file if line.startswith(_SLEEPS)), 0)
    return Task(is_main, fields[0].decode("ascii"), wait, int(fields[11]) + int(fields[12]), sleeps)


_WAKES_BY_ITSELF = ("hrtimer", "do_nanosleep", "wait_woken", "sk_wait", "inet_", "unix_stream", "do_accept")
"""Kernel functions of threads that a clock, the network or another program wakes."""


def wakes_by_itself(looks: Sequence[Tasks], pid: int) -> bool:
    """Say whether the main thread of the process waits for a clock or another program. Pure."""
    main = looks[-1].get((pid, pid))
    return main is not None and main.state == "S" and main.wait.startswith(_WAKES_BY_ITSELF)


def were_asleep(looks: Sequence[Tasks]) -> bool | None:
    """Say whether all threads slept, in waits that only they themselves can end; None: that takes one more look. Pure.

    One pair of looks is enough for helpers: on a busy machine one is often seen at work, or as it ends. A main thread may
    not have woken since the first look.
    """
    first = looks[0]
    before = looks[-2]
    after = looks[-1]
    mains = {key: task for key, task in after.items() if task.is_main}
    if not mains or any(not _slept(first.get(key), task) for key, task in mains.items()):
        return False
    is_quiet = before.keys() == after.keys() and all(
        before[key].ticks == task.ticks and _waits_within(task) for key, task in after.items()
    )
    return True if is_quiet else None


def kept_from_running(looks: Sequence[Tasks], pid: int) -> bool:
    """Say whether the main thread of the process slept throughout, and keeps the interpreter's lock from its other threads. Pure.

    Who waits for that lock wakes after each switch interval of Python's, 5 ms, to ask for it again.
    """
    first = looks[0]
    last = looks[-1]
    main_before = first.get((pid, pid))
    main = last.get((pid, pid))
    if main_before is None or main is None or main.state != "S" or main.sleeps != main_before.sleeps:
        return False
    helpers = {key: task for key, task in last.items() if key[0] == pid and not task.is_main}
    asking = {key: task for key, task in helpers.items() if task.wait.startswith(_LOCK) and key in first}
    woken = [task.sleeps - first[key].sleeps for key, task in asking.items()]
    return main.ticks == main_before.ticks and max(woken, default=0) >= ASKS_AGAIN


def _slept(before: Task | None, after: Task) -> bool:
    return before is not None and before.sleeps == after.sleeps and _waits_within(after)


def _waits_within(task: Task) -> bool:
    if task.state in ("Z", "T"):
        return True  # a child that has ended, or is stopped, wakes nobody
    if task.state != "S":
        return False
    within = _WAITS_WITHIN + _WAITS_FOR_CHILD + (() if task.is_main else _HELPERS_WAIT)
    return task.wait.startswith(within)
