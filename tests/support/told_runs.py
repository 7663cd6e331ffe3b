"""Events of runs as a controller tells them: of a small one with each kind of migration, and of a day of 10,000 ranks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol import events as e
from torchrelay.protocol.words.phases import DOWNTIME_ROWS

BEGAN_S = 1_790_000_000.0
GPU = "GPU-5f1c9f0e-7f2b"
Told = tuple[float, e.Occurrence]
_COVERAGE = {
    "level": "protected",
    "reason": "any rank can be replaced, at any moment of a step",
    "file": "/home/me/train.py",
    "line": 216,
    "against": [
        {"what": "a process that dies", "answer": "yes", "how": "a spare takes over; the step is done again"},
        {"what": "a rank that hangs", "answer": "yes", "how": "it is ended, then the same"},
        {"what": "the loss of a machine", "answer": "no", "how": "there is only one"},
    ],
    "gaps": [],
    "rehearsed": ["rehearsed at step 111: rank 1 of 4, bitwise"],
    "notes": [],
    **dict.fromkeys(("step_s", "head_s", "gate_s", "barrier_s"), 0.0),
    **dict.fromkeys(("journal_bytes", "memory_bytes", "device_state_bytes", "tensors"), 0),
}


def record_of(told: Iterable[Told], run_id: str = "") -> RunRecord:
    """What they come to."""
    record = RunRecord(run_id)
    for time_s, what in told:
        record.take(what, time_s)
    return record


def write(told: Iterable[Told], path: Path) -> Path:
    """As `torchrelay run --events` writes them."""
    with open(path, "w") as file:
        for time_s, what in told:
            file.write(json.dumps({"time_s": time_s, "name": e.NAMES[type(what)], **dataclasses.asdict(what)}) + "\n")
    return path


def begins(world_size: int = 4, nodes: tuple[str, ...] = ("n0",), run_id: str = "7e70abbe") -> list[Told]:
    """Until the first steps, with two spares ready; the first step is done 20 s after the start."""
    each = world_size // len(nodes)
    holders = tuple(f"{node}.w{place}" for node in nodes for place in range(each))
    return [
        (BEGAN_S, e.JobStarted(run_id, world_size, 2, nodes, holders)),
        (BEGAN_S + 0.1, e.SparesChanged(2, 0, 2, "")),
        (BEGAN_S + 10, e.SparesChanged(2, 2, 0, "")),
        (BEGAN_S + 20, e.ProgressMade(0, 0.0, world_size, 2)),
        (BEGAN_S + 20, e.Protection("protected", "any rank can be replaced, at any moment of a step")),
        (BEGAN_S + 20, e.CoverageKnown(dict(_COVERAGE))),
    ]


def progress(from_s: float, to_s: float, first: int, steps_per_s: float, world_size: int = 4) -> Iterator[Told]:
    """Steps between two times, in seconds since the run began, told each half second."""
    for half in range(int((to_s - from_s) * 2) + 1):
        at_s = from_s + half / 2
        yield BEGAN_S + at_s, e.ProgressMade(first + int(steps_per_s * half / 2), steps_per_s, world_size, 2)


def kill(at_s: float, name: str = "m1", rank: int = 0, worker: str = "n0.w0", spare: str = "n0.s0") -> list[Told]:
    """A process is killed and replaced within 1.58 s; one step is done again."""
    t, g = BEGAN_S + at_s, int(name[1:])
    reason = f"rank {rank} ({worker}) was killed by SIGKILL"
    told: list[Told] = [
        (t - 0.001, e.WorkerEnded(worker, rank, 137, 9, False)),
        (t, e.MigrationStarted(name, "unplanned", rank, reason, g)),
        (t, e.Decision(name, f"generation {g}: {reason}")),
        (t, e.PhaseChanged(name, "fence", 0.0)),
        (t + 0.06, e.PhaseChanged(name, "prepare", 0.06)),
        (t + 0.06, e.Decision(name, f"spare {spare} takes over rank {rank}, on the same node; 1 left after that")),
        (t + 0.83, e.PhaseChanged(name, "quiesce", 0.77)),
        (t + 0.83, e.Decision(name, "all meet after step 119: ranks 1, 2, 3 go back and do step 120 again")),
        (t + 0.83, e.PhaseChanged(name, "transfer", 0.0)),
        (t + 1.03, e.PhaseChanged(name, "rebuild", 0.20)),
        (t + 1.13, e.PhaseChanged(name, "verify", 0.11)),
        (t + 1.22, e.PhaseChanged(name, "first_step", 0.08)),
    ]
    return [*told, (t + 1.51, finished(name, "unplanned", "committed", rank, spare, redone=1))]


def finished(
    name: str, kind: str, outcome: str, rank: int, spare: str, redone: int = 0, beside_s: float = 0.0, reason: str = ""
) -> e.MigrationFinished:
    """1.58 s of downtime where a rank was lost, 0.6 s in a planned move."""
    lost = (0.07, 0.06, 0.77, 0.0, 0.20, 0.11, 0.08, 0.29)
    planned = (0.0, 0.04, 0.0, 0.03, 0.15, 0.05, 0.06, 0.27)
    rows = dict(zip(DOWNTIME_ROWS, planned if kind == "planned" else lost))
    why = reason or "every rank has done a step since"
    spares = (spare,) if spare else ()
    return e.MigrationFinished(
        name, kind, outcome, rank, spare, (rank,), spares, redone, rows, beside_s, 7316132, int(name[1:]), why
    )


def move(at_s: float, name: str, rank: int, worker: str, spare: str, reason: str) -> list[Told]:
    """A planned one, with 1.4 s of preparation beside training."""
    t = BEGAN_S + at_s
    return [
        (t, e.MigrationStarted(name, "planned", rank, reason, int(name[1:]))),
        (t, e.PhaseChanged(name, "prepare", 0.0)),
        (t + 0.1, e.Decision(name, f"spare {spare} takes over rank {rank}, on the same node; 1 left after that")),
        (t + 1.4, e.PhaseChanged(name, "quiesce", 1.4)),
        (t + 1.4, e.Decision(name, "all are to stop after step 48, 4 steps ahead of the fastest rank")),
        (t + 1.5, e.PhaseChanged(name, "transfer", 0.1)),
        (t + 1.6, e.PhaseChanged(name, "rebuild", 0.1)),
        (t + 1.7, e.PhaseChanged(name, "verify", 0.1)),
        (t + 1.8, e.PhaseChanged(name, "fence", 0.1)),
        (t + 1.8, e.WorkerEnded(worker, rank, 137, 9, True)),
        (t + 1.8, e.PhaseChanged(name, "first_step", 0.0)),
        (t + 2.0, finished(name, "planned", "committed", rank, spare, beside_s=1.4)),
    ]


def bad_gpu(at_s: float, rank: int, node: str = "n0", gpu: str = GPU, outcome: str = "done") -> list[Told]:
    """An error of a device for which its rank is to be moved."""
    reason = f"{gpu} on {node}: XID 94: contained memory error, the process that was hit is lost"
    return [(BEGAN_S + at_s, e.HealthVerdict("migrate", "xid-94", node, gpu, (rank,), outcome, "device", reason))]


def small_run() -> list[Told]:
    """Four ranks: a kill, a GPU that is not well any more and whose rank is moved, and training goes on."""
    told = [*begins(), *progress(20, 60, 0, 3.0), *kill(60), *progress(61.5, 90, 120, 3.0)]
    told += bad_gpu(89.9, 2)
    told += move(90, "m2", 2, "n0.w2", "n0.s1", f"{GPU}: XID 94: contained memory error")
    told += [(BEGAN_S + 92.1, e.SparesChanged(2, 1, 1, ""))]
    told += [(BEGAN_S + 92.2, e.SpareMade("n0.s2", "n0", "n0.w0"))]
    return [*told, *progress(92.5, 140, 205, 3.0)]


def large_run(hours: float = 24.0, world_size: int = 10_000, every_s: float = 1500.0) -> Iterator[Told]:
    """A long day of a large job, ranks of which are lost or moved every so often; at its end one is being replaced."""
    nodes = tuple(f"node-{n:04d}" for n in range(world_size // 8))
    yield from begins(world_size, nodes, "b2f0c4d1")
    number, at_s, end_s = 0, 20.0, hours * 3600
    while at_s + every_s < end_s:
        yield from progress(at_s, at_s + every_s, int(at_s * 0.4), 0.4, world_size)
        at_s += every_s
        number += 1
        rank = (number * 2741) % world_size
        node = nodes[rank // 8]
        worker, spare, name = f"{node}.w{rank % 8}", f"{nodes[number % 20]}.s{number}", f"m{number}"
        if number % 3:
            yield from kill(at_s, name, rank, worker, spare)
        else:
            gpu = f"GPU-{number:04x}-{rank:04x}"
            yield from bad_gpu(at_s - 0.1, rank, node, gpu)
            yield from move(at_s, name, rank, worker, spare, f"{gpu}: XID 94: contained memory error")
            if number % 6:
                yield BEGAN_S + at_s + 1.9, e.QuarantineCleared(gpu, "by hand: repaired")
        at_s += 2.0
    rank = 7342
    yield from kill(at_s, f"m{number + 1}", rank, f"{nodes[rank // 8]}.w{rank % 8}", f"{nodes[3]}.s99")[:6]
