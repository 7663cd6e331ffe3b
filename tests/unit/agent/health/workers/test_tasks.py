from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from torchrelay.agent.health.workers.tasks import (
    ASKS_AGAIN,
    Task,
    Tasks,
    kept_from_running,
    tasks_of,
    wakes_by_itself,
    were_asleep,
)

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


@pytest.mark.parametrize(
    ("wait", "wakes"),
    [("hrtimer_nanosleep", True), ("wait_woken", True), ("unix_stream_read_generic", True), ("futex_do_wait", False)],
)
def test_a_main_thread_that_waits_for_a_clock_or_another_program_wakes_by_itself(wait: str, wakes: bool) -> None:
    assert wakes_by_itself([ALL, ALL | {(1, 1): replace(MAIN, wait=wait)}], 1) is wakes
    assert not wakes_by_itself([ALL, ALL | {(1, 2): replace(THREAD, wait="hrtimer_nanosleep")}], 1), "a helper's clock"


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


LOCKS = """
import ctypes
threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)], daemon=True).start()
print(flush=True)
{library}(None).pause()
"""


@pytest.mark.skipif(not os.access("/proc/self/wchan", os.R_OK), reason="this kernel does not say where threads sleep")
@pytest.mark.parametrize(
    ("library", "keeps"),
    [pytest.param("ctypes.PyDLL", True, id="kept"), pytest.param("ctypes.CDLL", False, id="given back")],
)
def test_the_kernel_tells_who_sleeps_and_keeps_the_interpreter_s_lock_from_who_waits_without_it(
    library: str, keeps: bool
) -> None:
    with process(LOCKS.format(library=library)) as pid:
        while "pause" not in tasks_of(pid)[pid, pid].wait:
            os.sched_yield()
        first = last = tasks_of(pid)
        told = False
        # On a busy machine the thread that asks may be about to run at one look, and wait at the next one.
        while not told and max(task.sleeps - first[key].sleeps for key, task in last.items()) < 8 * ASKS_AGAIN:
            last = tasks_of(pid)
            told = kept_from_running([first, last], pid)
    assert told is keeps
