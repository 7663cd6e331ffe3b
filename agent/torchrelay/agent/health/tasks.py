"""Could anything from outside wake this process? From what the kernel says of all its threads and those of its children."""

from __future__ import annotations

import os
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


@dataclass(frozen=True)
class Task:
    """One thread. `wait`: the kernel function that it sleeps in; empty or `0` where the kernel does not say."""

    is_main: bool
    state: str
    wait: str
    ticks: int


def tasks_of(pid: int) -> dict[tuple[int, int], Task]:
    """By process and thread, of the process and all below it. Raises psutil.Error if it is gone."""
    found: dict[tuple[int, int], Task] = {}
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
    return Task(is_main, fields[0].decode("ascii"), wait, int(fields[11]) + int(fields[12]))


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


def is_asleep(before: dict[tuple[int, int], Task], after: dict[tuple[int, int], Task]) -> bool:
    """Whether all threads slept from one look to the other, in waits that only they themselves can end. Pure."""
    if before.keys() != after.keys() or not after:
        return False
    return all(before[key].ticks == task.ticks and _waits_within(task) for key, task in after.items())


def _waits_within(task: Task) -> bool:
    if task.state in ("Z", "T"):
        return True  # a child that has ended, or is stopped, wakes nobody
    if task.state != "S":
        return False
    within = _WAITS_WITHIN + _WAITS_FOR_CHILD + (() if task.is_main else _HELPERS_WAIT)
    return task.wait.startswith(within)
