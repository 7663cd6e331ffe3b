from __future__ import annotations

import dataclasses
import io

from rich.console import Console
from support.told_runs import BEGAN_S, begins, record_of

from torchrelay.cli.display.top_view import SIGNS, top_view
from torchrelay.dashboard.view import Seen
from torchrelay.protocol import events as e
from torchrelay.protocol.messages import JobStatus, RankStatus
from torchrelay.protocol.words.phases import DOWNTIME_ROWS

MOVED = e.MigrationFinished(
    migration="m1",
    kind="unplanned",
    outcome="committed",
    rank=1,
    spare="n0.s0",
    ranks=(1,),
    spares=("n0.s0",),
    steps_redone=1,
    downtime_s=dict.fromkeys(DOWNTIME_ROWS, 0.1) | {"checkpoint": 0.0},
    beside_s=0.0,
    transferred_bytes=1,
    generation=1,
    reason="every rank has done a step since",
)


def status(world_size: int, state: str = "running") -> JobStatus:
    ranks = tuple(RankStatus(r, f"n0.w{r}", "n0", 10 + r, 7, "body", state) for r in range(world_size))
    return JobStatus("7e70abbe", world_size, 1, 1, 2, "protected", "", 2.0, 1, "", ranks)


def seen(world_size: int = 4) -> Seen:
    told = [
        *begins(world_size),
        (BEGAN_S + 30, e.MigrationStarted("m1", "unplanned", 1, "was killed by signal 9", 1)),
        (BEGAN_S + 31, MOVED),
        (BEGAN_S + 40, e.ProgressMade(50, 2.5, world_size, 1)),
    ]
    return Seen(record_of(told), BEGAN_S + 50, "torchrelay run train.py", status(world_size))


def shown(*jobs: Seen) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(top_view(jobs))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_top_shows_steps_ranks_spares_and_what_was_moved() -> None:
    text = shown(seen())
    assert "7e70abbe  torchrelay run train.py" in text
    assert "step 50 · 2.5 steps/s · goodput" in text
    assert "4 ranks: 4 running" in text
    assert "2 of 2 spares ready" in text
    assert "migration m1: rank 1, unplanned, committed, 0.80 s of downtime, 20 s ago" in text
    assert "  was killed by signal 9" in text


def test_the_ranks_of_a_large_job_are_one_sign_each() -> None:
    job = seen(1024)
    assert job.status is not None
    job = dataclasses.replace(job, status=status(1024, "lost"))
    text = shown(job)
    assert text.count("✗") == SIGNS
    assert f"and {1024 - SIGNS} more" in text
    assert "n0.w7" not in text


def test_what_is_left_for_a_person_has_its_command() -> None:
    job = seen()
    job.record.take(e.Protection("unprotected", "no spare is there"), BEGAN_S + 60)
    text = shown(job)
    assert text.index("to do: ") < text.index("steps/s") < text.index("migration m1") < text.index("4 ranks: ")


def test_without_a_job_top_says_so_and_waits() -> None:
    assert "no job of this user runs on this machine" in shown()
