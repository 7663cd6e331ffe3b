from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from torchrelay.agent.health.workers.tasks import Task, Tasks, speaks_to_others, tasks_of, were_asleep

MAIN = Task(True, "S", "futex_do_wait", 7)
WORKER = Task(True, "S", "pipe_read", 3)
THREAD = Task(False, "S", "poll_schedule_timeout.constprop.0", 1)
ALL = {(1, 1): MAIN, (1, 2): THREAD, (5, 5): WORKER}


def test_who_waits_for_locks_and_pipes_alone_wakes_nobody() -> None:
    assert were_asleep([ALL, ALL])


@pytest.mark.parametrize(
    "change",
    [
        {(5, 5): replace(WORKER, state="R")},
        {(5, 5): replace(WORKER, state="D", wait="io_schedule")},
        {(5, 5): replace(WORKER, wait="hrtimer_nanosleep")},  # it will wake by itself
        {(5, 5): replace(WORKER, wait="wait_woken")},  # the network
        {(5, 5): replace(WORKER, sleeps=1)},  # it has woken and waits for the next thing
        {(1, 1): replace(MAIN, wait="unix_stream_read_generic")},  # a service of this machine
        {(1, 1): replace(MAIN, wait="0")},  # the kernel does not say
        {(6, 6): WORKER},  # a process has come
    ],
)
def test_who_can_still_be_woken_is_not_asleep(change: Tasks) -> None:
    assert were_asleep([ALL, ALL | change]) is False
    assert were_asleep([ALL, ALL | change, ALL | change]) is False


@pytest.mark.parametrize(
    "change",
    [
        {(1, 2): replace(THREAD, ticks=2)},  # it has used processor time
        {(1, 2): replace(THREAD, state="R", wait="0")},
        {(1, 3): THREAD},  # it has come, and ends
    ],
)
def test_a_helper_that_was_seen_at_work_is_looked_at_once_more(change: Tasks) -> None:
    assert were_asleep([ALL, ALL | change]) is None
    assert were_asleep([ALL | change, ALL, ALL]) is True


def test_where_nothing_was_seen_nobody_is_asleep() -> None:
    assert were_asleep([{}, {}]) is False


@contextmanager
def process(code: str) -> Iterator[int]:
    text = f"import sys, threading, time\n{code}"
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


def _settled(pid: int, wait: str) -> Tasks:
    """A look that begins once the main thread waits there: one in whose midst it falls asleep shows it at work, too."""
    while not tasks_of(pid)[pid, pid].wait.startswith(wait):
        os.sched_yield()
    return tasks_of(pid)


@pytest.mark.skipif(not os.access("/proc/self/wchan", os.R_OK), reason="this kernel does not say where threads sleep")
@pytest.mark.parametrize(
    ("code", "wait", "asleep"),
    [
        ("print(flush=True); lock = threading.Lock(); lock.acquire(); lock.acquire()", "futex", True),
        ("print(flush=True); time.sleep(60)", "hrtimer", False),
    ],
)
def test_the_kernel_tells_a_deadlock_from_a_nap(code: str, wait: str, asleep: bool) -> None:
    with process(code) as pid:
        before = _settled(pid, wait)
        assert were_asleep([before, tasks_of(pid)]) is asleep


def test_connections_within_the_machine_are_not_others() -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); "
    with process(code + "print(flush=True); time.sleep(60)") as pid:
        assert not speaks_to_others(pid)
