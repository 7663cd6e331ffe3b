"""What is read of a run of a program of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wild.programs import Program

from bench import wild_cost


def written(folder: Path, rank: int, steps_s: list[float]) -> None:
    at_s, lines = 100.0, [{"process": 1, "number": 1, "unix_s": 100.0, "thread_s": 50.0}]
    for number, step_s in enumerate(steps_s, 2):
        at_s += step_s
        lines.append({"process": 1, "number": number, "unix_s": at_s, "thread_s": 50 + (at_s - 100) / 2})
    lines.append({"process": 1, "end": {}})
    (folder / f"rank-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_latter_half_of_the_slowest_ranks_steps_counts(tmp_path: Path) -> None:
    written(tmp_path, 0, [9.0] * 10 + [1.0] * 10)
    written(tmp_path, 1, [9.0] * 10 + [2.0] * 9 + [4.0])
    steps = wild_cost.steps_of(tmp_path)
    assert (steps.count, steps.wall_s, steps.wall_p95_s, steps.thread_s) == (21, 2.0, 4.0, 1.0)


@pytest.mark.parametrize("steps", [[], [1.0] * 6])
def test_too_few_steps_are_told(steps: list[float], tmp_path: Path) -> None:
    if steps:
        written(tmp_path, 0, steps)
    with pytest.raises(wild_cost.NoSteps, match="fewer than 8"):
        wild_cost.steps_of(tmp_path)


def test_whole_words_are_replaced_for_a_longer_run() -> None:
    program = Program("p", "", ("train.py", "--steps", "24", "--width=24"), "e", longer=(("24", "240"),))
    assert wild_cost.command(program) == ["train.py", "--steps", "240", "--width=24"]
