"""The kernel's word on processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchrelay.agent.health.workers import process
from torchrelay.agent.health.workers.process import (
    GONE,
    descendants_processor_s,
    exit_reason,
    process_activity,
    process_state,
)


def test_the_state_of_a_process_is_read_until_it_is_gone() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert process_state(process.pid) == "T"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_state(process.pid) == "Z"
    assert process_state(process.pid) == GONE


def test_processor_time_is_the_main_threads() -> None:
    state, before_s = process_activity(os.getpid())
    assert state == "R"
    end_s = time.thread_time() + 0.05
    while time.thread_time() < end_s:
        pass
    assert process_activity(os.getpid())[1] - before_s >= 0.03
    assert process_activity(os.getpid())[1] <= time.process_time() + 0.02


def test_processor_time_of_descendants_is_that_of_children_and_theirs() -> None:
    """A shell starts one that computes, and waits for it."""
    program = "import time\nprint('begins', flush=True)\nwhile True: time.process_time()"
    command = ["sh", "-c", f'"{sys.executable}" -c "{program}" & wait']
    before_s = descendants_processor_s(os.getpid())
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as shell:
        try:
            assert shell.stdout is not None
            assert shell.stdout.readline() == b"begins\n"
            while descendants_processor_s(os.getpid()) - before_s < 0.1:
                pass
            assert descendants_processor_s(shell.pid) >= 0.1
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert descendants_processor_s(shell.pid) == 0.0


def test_a_name_with_brackets_does_not_confuse(tmp_path: Path) -> None:
    odd = tmp_path / "a) T (b"
    odd.write_text("#!/bin/sh\nread line\n")
    odd.chmod(0o700)
    with subprocess.Popen([str(odd)], stdin=subprocess.PIPE) as process:
        assert process_state(process.pid) in ("R", "S", "D")
        process.kill()


@pytest.mark.parametrize(
    ("exit_code", "number", "words"),
    [
        (0, 0, "ended"),
        (3, 0, "ended with exit code 3"),
        (143, signal.SIGTERM, "killed by SIGTERM"),
        (137, signal.SIGKILL, "killed by SIGKILL (by hand, or by the kernel when memory ran out)"),
        (128 + 99, 99, "killed by signal 99"),
    ],
)
def test_an_end_is_told_in_words(exit_code: int, number: int, words: str) -> None:
    assert exit_reason(exit_code, number) == words


def test_a_process_that_has_a_gpu_open_may_wait_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not process.uses_device(os.getpid())
    assert not process.uses_device(2**22 + 1), "it is gone"
    device = tmp_path / "nvidia0"
    monkeypatch.setattr(process, "_DEVICE_FILES", (str(tmp_path / "nvidia"),))
    with open(device, "w"):
        assert process.uses_device(os.getpid())
    assert not process.uses_device(os.getpid())


WAITS = "import threading; lock = threading.Lock(); lock.acquire(); print(flush=True); {}"


@pytest.mark.skipif(
    not os.access(f"/proc/{os.getpid()}/syscall", os.R_OK), reason="this kernel does not say what threads wait for"
)
@pytest.mark.parametrize(
    ("wait", "for_lock"), [("lock.acquire()", True), ("lock.acquire(timeout=60)", False), ("input()", False)]
)
def test_the_kernel_tells_a_wait_without_a_limit_from_others(wait: str, for_lock: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS.format(wait)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while process_state(child.pid) != "S":
            os.sched_yield()
        seen = process.waits_for_lock(child.pid)
        child.kill()
    assert seen is for_lock
