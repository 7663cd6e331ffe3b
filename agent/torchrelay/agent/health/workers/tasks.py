"""Could anything from outside wake this process? From what the kernel says of all its threads and those of its children."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

_LOOPBACK = ("127.", "::1", "::ffff:127.")
_WAITS_WITHIN = (
    "futex",
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


def speaks_to_others(pid: int) -> bool:
    """Whether the process or a child has a connection to another machine, which may answer at any time."""
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        try:
            peers = [c.raddr.ip for c in each.net_connections(kind="inet") if c.raddr]
        except psutil.Error:
            return True  # nobody knows
        if any(not ip.startswith(_LOOPBACK) for ip in peers):
            return True
    return False


def were_asleep(looks: Sequence[Tasks]) -> bool | None:
    """Say whether all threads slept, in waits that only they themselves can end; None: that takes one more look. Pure.

    One pair of looks is enough for helpers: on a busy machine one is often seen at work, or as it ends. A main thread may
    not have woken since the first look.
    """
    first, before, after = looks[0], looks[-2], looks[-1]
    mains = {key: task for key, task in after.items() if task.is_main}
    if not mains or any(not _slept(first.get(key), task) for key, task in mains.items()):
        return False
    is_quiet = before.keys() == after.keys() and all(
        before[key].ticks == task.ticks and _waits_within(task) for key, task in after.items()
    )
    return True if is_quiet else None


def _slept(before: Task | None, after: Task) -> bool:
    return before is not None and before.sleeps == after.sleeps and _waits_within(after)


def _waits_within(task: Task) -> bool:
    if task.state in ("Z", "T"):
        return True  # a child that has ended, or is stopped, wakes nobody
    if task.state != "S":
        return False
    within = _WAITS_WITHIN + _WAITS_FOR_CHILD + (() if task.is_main else _HELPERS_WAIT)
    return task.wait.startswith(within)
