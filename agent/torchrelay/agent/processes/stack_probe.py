"""Finds where a rank stands that makes no progress. Its own shim is asked first; if it cannot answer, it is read from outside."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from torchrelay.agent.health.workers import tasks
from torchrelay.agent.health.workers.connections import speaks_outside
from torchrelay.agent.health.workers.process import process_state, uses_device, waits_for_lock
from torchrelay.protocol.machine.process_states import CANNOT_GO_ON
from torchrelay.protocol.messages import Explain, Explained
from torchrelay.protocol.names import WorkerId

log = logging.getLogger(__name__)

ANSWER_S = 2.0
"""How much longer than it watches a shim may take. One that does not answer then is kept by C code, or stopped."""
BETWEEN_LOOKS_S = 0.3
MOST_LOOKS = 6
LOOKS_LATE = 2
"""The number of looks at its threads. A shim that did not answer has taken most of the time for which a verdict waits."""
READER_S = 5.0
_READER = "py-spy"
_OURS = "torchrelay/shim/"
_FAULTS = "fault_injection.py"
"""Frames that are left out, as the shim does."""


@dataclass
class _Question:
    order: Explain
    answer: asyncio.Future[Explained] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Explainer:
    """Asks where ranks stand. `ask(worker, order)` passes an order to the shim; `tell(worker, report)` tells the controller.

    `job()`: returns the processes of the job on this machine.
    """

    def __init__(
        self,
        ask: Callable[[WorkerId, Explain], None],
        tell: Callable[[WorkerId, Explained], None],
        job: Callable[[], Iterable[int]],
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._job = job
        self._open: dict[WorkerId, _Question] = {}

    async def explain(self, worker: WorkerId, pid: int, order: Explain) -> None:
        """Answer the controller's question, if the process lives. Each worker has one question at a time."""
        if worker in self._open:
            return
        question = self._open[worker] = _Question(order)
        try:
            inside = await self._from_inside(worker, pid, question)
            report = inside or await _from_outside(pid, order.request)
            looks = await _looks_at_threads(pid, MOST_LOOKS if inside is not None else LOOKS_LATE)
            outside = report.may_be_woken or speaks_outside(pid, report.own_sockets, self._job())
            keeps = inside is None and process_state(pid) not in CANNOT_GO_ON and tasks.kept_from_running(looks, pid)
            seen = replace(
                report,
                own_sockets=(),
                asleep=not outside and bool(tasks.were_asleep(looks)),
                may_be_woken=(outside and inside is not None) or tasks.wakes_by_itself(looks, pid),
                keeps_lock=keeps,
                locked=waits_for_lock(pid) and not uses_device(pid),
            )
            self._tell(worker, seen)
        except psutil.Error:
            log.debug("%s is gone before it could be looked at", worker)
        finally:
            del self._open[worker]

    def answered(self, worker: WorkerId, report: Explained) -> None:
        """Take the shim's answer. One that is late is passed on: it is better than what was seen from outside."""
        question = self._open.get(worker)
        if question is None or question.order.request != report.request or question.answer.done():
            self._tell(worker, replace(report, own_sockets=()))
        else:
            question.answer.set_result(report)

    async def _from_inside(self, worker: WorkerId, pid: int, question: _Question) -> Explained | None:
        if process_state(pid) in CANNOT_GO_ON:
            return None
        self._ask(worker, question.order)
        try:
            return await asyncio.wait_for(question.answer, question.order.watch_s + ANSWER_S)
        except asyncio.TimeoutError:
            return None


async def _looks_at_threads(pid: int, most_looks: int) -> list[tasks.Tasks]:
    """Look until it is known whether the process is asleep. Raises psutil.Error if it is gone."""
    looks = [tasks.tasks_of(pid)]
    while len(looks) < most_looks and (len(looks) == 1 or tasks.were_asleep(looks) is None):
        await asyncio.sleep(BETWEEN_LOOKS_S)
        looks.append(tasks.tasks_of(pid))
    return looks


async def _from_outside(pid: int, request: int) -> Explained:
    """Read the memory of the process from outside, while it stands or runs. The process takes no part in that."""
    stack = parse_dump(await _dump(pid), pid)
    if stack:
        return Explained(request, stack, "", _READER)
    return Explained(request, (), "", "nobody: its memory cannot be read")


async def _dump(pid: int) -> bytes:
    beside = Path(sys.executable).with_name(_READER)
    reader = str(beside) if beside.exists() else shutil.which(_READER)
    if reader is None:
        return b""
    process = await asyncio.create_subprocess_exec(
        reader,
        *("dump", "--nonblocking", "--json", "--pid", str(pid)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        return (await asyncio.wait_for(process.communicate(), READER_S))[0]
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        return b""


def parse_dump(text: bytes, pid: int) -> tuple[str, ...]:
    """Return the main thread's calls, innermost first, from what py-spy prints; empty for anything else."""
    try:
        threads = json.loads(text)
        main = next(t for t in threads if t["os_thread_id"] == pid)
        frames = [f for f in main["frames"] if _OURS not in f["filename"] or f["filename"].endswith(_FAULTS)]
        return tuple(f"{f['name']} ({f['filename']}:{f['line']})" for f in frames)
    except (ValueError, KeyError, TypeError, StopIteration):
        return ()
