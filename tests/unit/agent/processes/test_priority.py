"""Real processes at idle priority, and back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from torchrelay.agent.processes import priority
from torchrelay.agent.processes.priority import Priorities, can_return

_STARTS = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
_WHEN_TOLD = "import os; os.read(0, 1)"
_WITH_A_THREAD = f"{_WHEN_TOLD}; import threading, sys; {_STARTS}; print(flush=True); sys.stdin.read()"
_STARTS_ONE = f"{_WHEN_TOLD}; import subprocess, sys; subprocess.run([sys.executable, '-c', {_WITH_A_THREAD!r}])"


@pytest.fixture(params=[_WITH_A_THREAD, _STARTS_ONE], ids=["itself", "through a wrapper"])
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", request.param], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.communicate(b"")


def let_it_start_a_thread(process: subprocess.Popen[bytes]) -> None:
    """Return once the thread is there."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"12")  # a byte for the wrapper, and one for what it starts
    process.stdin.flush()
    process.stdout.readline()


def policies(pid: int) -> set[int]:
    """Of all threads of the process and of what it has started."""
    found = set()
    for process in priority._tree(pid):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended since: this process has threads of other tests
                found.add(os.sched_getscheduler(int(thread)))
    return found


@pytest.mark.skipif(not can_return(), reason="nobody may take an idle priority back here")
def test_all_threads_give_way_and_all_of_them_return(process: subprocess.Popen[bytes]) -> None:
    priorities = Priorities()
    priorities.lower(process.pid)
    let_it_start_a_thread(process)
    assert policies(process.pid) == {os.SCHED_IDLE}
    priorities.raise_(process.pid)
    assert policies(process.pid) == {os.SCHED_OTHER}


def test_where_nobody_may_take_it_back_processes_keep_their_priority(
    monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(priority, "can_return", lambda: False)
    Priorities().lower(process.pid)
    let_it_start_a_thread(process)
    assert policies(process.pid) == {os.SCHED_OTHER}


def test_trying_it_leaves_this_process_as_it_was() -> None:
    before = set(threading.enumerate())  # those that other tests have left may end meanwhile
    can_return()
    assert set(threading.enumerate()) <= before
    assert policies(os.getpid()) == {os.SCHED_OTHER}


def test_a_process_that_has_ended_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    Priorities().lower(process.pid)
    Priorities().raise_(process.pid)
