from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchrelay.agent.health.workers.tasks import Task
from torchrelay.agent.processes import stack_probe as explain
from torchrelay.agent.processes.stack_probe import Explainer, parse_dump
from torchrelay.protocol.messages import Explain, Explained
from torchrelay.protocol.names import WorkerId

WORKER = WorkerId("n0.w1")


class Bench:
    """An explainer with a shim that answers, or does not."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.asked: list[Explain] = []
        self.told: list[Explained] = []
        self.explainer = Explainer(self._ask, lambda worker, report: self.told.append(report), list)

    def _ask(self, worker: WorkerId, order: Explain) -> None:
        self.asked.append(order)
        if self.answers:
            self.explainer.answered(worker, Explained(order.request, ("f (a.py:1)",), "still", "its own process"))


@pytest.mark.parametrize("answers", [True, False])
def test_who_does_not_answer_is_read_from_outside(
    answers: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(explain, "ANSWER_S", 0.05)
    path = tmp_path / "waits.py"
    path.write_text("def wait():\n    print(flush=True)\n    input()\nwait()\n")
    with subprocess.Popen([sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        bench = Bench(answers=answers)
        asyncio.run(bench.explainer.explain(WORKER, child.pid, Explain(7, 0.05)))
        child.kill()
    (report,) = bench.told
    assert [order.request for order in bench.asked] == [7]
    assert report.request == 7
    if answers:
        assert (report.stack, report.motion) == (("f (a.py:1)",), "still")
    else:
        assert report.stack[0].startswith(f"wait ({path}:")
        assert (report.motion, report.source) == ("", "py-spy")


@pytest.mark.parametrize("answers", [True, False])
def test_threads_are_looked_at_until_helpers_are_quiet_unless_the_shim_has_taken_the_time(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper thread works while it is looked at the first times; the main thread sleeps all along."""
    main, helper = Task(True, "S", "futex_do_wait", 7, 3), Task(False, "S", "ep_poll", 1)
    looks = iter([{(1, 1): main, (1, 2): replace(helper, ticks=min(n, 3))} for n in range(10)])
    monkeypatch.setattr(explain, "BETWEEN_LOOKS_S", 0.0)
    monkeypatch.setattr(explain, "ANSWER_S", 0.05)
    monkeypatch.setattr(explain.tasks, "tasks_of", lambda pid: next(looks))
    bench = Bench(answers=answers)
    asyncio.run(bench.explainer.explain(WORKER, os.getpid(), Explain(1, 0.05)))
    assert [report.asleep for report in bench.told] == [answers]


def test_a_stopped_process_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "stops.py"
    path.write_text("import os, signal\ndef halt():\n    os.kill(os.getpid(), signal.SIGSTOP)\nhalt()\n")
    with subprocess.Popen([sys.executable, str(path)]) as child:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        bench = Bench(answers=True)
        asyncio.run(bench.explainer.explain(WORKER, child.pid, Explain(1, 0.05)))
        child.send_signal(signal.SIGKILL)
    assert bench.asked == []
    assert bench.told[0].stack[0] == f"halt ({path}:3)"


def test_a_process_that_is_gone_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    bench = Bench(answers=True)
    asyncio.run(bench.explainer.explain(WORKER, child.pid, Explain(1, 0.05)))
    assert bench.told == []


def test_a_late_answer_is_passed_on_all_the_same() -> None:
    async def late() -> list[Explained]:
        bench = Bench(answers=False)
        bench.explainer.answered(WORKER, Explained(3, (), "circling", "its own process"))
        return bench.told

    assert [report.motion for report in asyncio.run(late())] == ["circling"]


def test_only_the_main_thread_counts_and_our_own_frames_do_not() -> None:
    def frame(name: str, file: str) -> dict[str, object]:
        return {"name": name, "filename": file, "line": 3}

    threads = [
        {"os_thread_id": 9, "frames": [frame("other", "b.py")]},
        {"os_thread_id": 8, "frames": [frame("hook", "/x/torchrelay/shim/engine.py"), frame("main", "train.py")]},
    ]
    assert parse_dump(json.dumps(threads).encode(), 8) == ("main (train.py:3)",)
    for text in (b"", b"[]", b"{}", b'[{"os_thread_id": 8}]', b"Error: no such process"):
        assert parse_dump(text, 8) == ()
