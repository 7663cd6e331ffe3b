"""What the agent has seen of its workers over time, from their records and from the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchrelay.agent.health.workers.process import descendants_processor_s, process_activity
from torchrelay.protocol.journals.journal import ProgressRecord
from torchrelay.protocol.messages import WorkerProgress
from torchrelay.protocol.names import WorkerId
from torchrelay.protocol.transport.telling import STILL_S

ASK_S = 1.0
"""How often the kernel is asked about a worker that waits and moves, or is not in training: its state decides nothing then.

One that has not moved for STILL_S is asked about at each look: it may run in circles in a backward, which counts as waiting."""
PROCESSOR_WINDOW_S = 1.0
PROCESSOR_SHARE = 0.015
"""Share of one processor from which on a worker counts as at work: 15 ms in a second, which is two ticks.

A thread that polls for a dead peer costs less.
"""
DESCENDANTS_SHARE = 0.2
"""The same share for a worker's descendants. A process that only logs beside training needs less."""

_AT_WORK = ("R", "D")
_OUTSIDE_TRAINING = ("set-up", "standing", "finished")
_NOTHING_YET = ProgressRecord(0, -1, 0, "set-up", False, 0, 0.0)


@dataclass
class _Life:
    """What was seen of one worker.

    `processor_s`: processor time of its main thread at `since_s`. `asked_s`: when the kernel was asked last.
    `descendants_s`: processor time of the processes that it has started, None where it was not looked up.
    """

    record: ProgressRecord
    moved_s: float
    busy_s: float
    state: str
    asked_s: float
    processor_s: float
    since_s: float
    descendants_s: float | None = None


class Vitals:
    """All workers of a place, as seen over time. Times are of one monotonic clock.

    `activity_of(pid)`: state and processor seconds of a process; `descendants_of(pid)`: processor seconds of its descendants.
    """

    def __init__(
        self,
        activity_of: Callable[[int], tuple[str, float]] = process_activity,
        descendants_of: Callable[[int], float] = descendants_processor_s,
    ) -> None:
        self._activity_of = activity_of
        self._descendants_of = descendants_of
        self._lives: dict[WorkerId, _Life] = {}

    def see(
        self, worker: WorkerId, pid: int, record: ProgressRecord | None, now_s: float, ask_kernel: bool = False
    ) -> WorkerProgress:
        """Look at one worker. One that has moved is at work: then the kernel is not asked, unless `ask_kernel`."""
        record = record or _NOTHING_YET
        life = self._lives.get(worker)
        if life is None:
            state, processor_s = self._activity_of(pid)
            life = self._lives[worker] = _Life(record, now_s, now_s, state, now_s, processor_s, now_s)
        else:
            moved = record != life.record
            if moved:
                life.record = record
                life.moved_s = now_s
                life.busy_s = now_s
                life.state = "R"
            still = now_s - life.moved_s >= STILL_S and record.phase not in _OUTSIDE_TRAINING
            if ask_kernel or (not moved and (still or _could_hang(record) or now_s - life.asked_s >= ASK_S)):
                self._ask(life, pid, now_s)
        return WorkerProgress(
            worker,
            record.boundary,
            record.gates_passed,
            record.phase,
            _waits(record),
            record.count,
            life.state,
            now_s - life.moved_s,
            now_s - life.busy_s,
            record.waited_s,
        )

    def forget(self, worker: WorkerId) -> None:
        """Drop what was seen of a worker that has ended."""
        self._lives.pop(worker, None)

    def _ask(self, life: _Life, pid: int, now_s: float) -> None:
        life.state, processor_s = self._activity_of(pid)
        life.asked_s = now_s
        worked = False
        if life.moved_s > life.since_s:
            # What it did until it moved last says nothing about what it does since.
            life.processor_s = processor_s
            life.since_s = now_s
            life.descendants_s = None
        elif now_s - life.since_s >= PROCESSOR_WINDOW_S:
            passed_s = now_s - life.since_s
            worked = processor_s - life.processor_s >= PROCESSOR_SHARE * passed_s
            worked |= self._descendants_work(life, pid, passed_s)
            life.processor_s = processor_s
            life.since_s = now_s
        if worked or life.state in _AT_WORK:
            life.busy_s = now_s

    def _descendants_work(self, life: _Life, pid: int, passed_s: float) -> bool:
        """Return whether the worker may be waiting for what the workers of its data loader compute."""
        if not _could_hang(life.record):
            return False
        before_s = life.descendants_s
        life.descendants_s = self._descendants_of(pid)
        return before_s is not None and life.descendants_s - before_s >= DESCENDANTS_SHARE * passed_s


def _waits(record: ProgressRecord) -> bool:
    """Return whether the rank waits for other ranks: in a collective, or for its device, on which a collective waits."""
    return record.waiting or record.device_wait_s > 0.0


def _could_hang(record: ProgressRecord) -> bool:
    return not _waits(record) and record.phase not in _OUTSIDE_TRAINING
