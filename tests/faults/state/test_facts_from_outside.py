"""What set-up has learned from outside, a rank that is replaced still knows, and trains on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cells import few
from support.relay_run import Finished, relay

SCRIPT, RANKS = "outside.py", 2
READS = "reads_input.py"
KILL = "kill:rank={},step={},phase=backward"


def assert_knows_the_same(run: Finished) -> None:
    """Each rank has told once what it had learned, and has the same at its end; and all have the same parameters."""
    assert run.status == 0, run.told()
    assert len(run.committed()) == 1, run.told()
    results = [json.loads((run.out / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    for rank, result in enumerate(results):
        (told,) = (run.out / f"learned-{rank}").read_text().splitlines()
        assert result["learned"] == json.loads(told)
        assert len(result["losses"]) == 16
        assert result["environment"] is None
    assert results[0]["parameters"] == results[1]["parameters"]
    assert results[0]["learned"]["data"] != results[1]["learned"]["data"]
    assert results[0]["learned"]["order"] == results[1]["learned"]["order"]


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("rank", few(1, [1, 0]))
def test_a_rank_whose_set_up_was_not_seeded_is_replaced(tmp_path: Path, rank: int) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[KILL.format(rank, 12)])
    assert_knows_the_same(run)


@pytest.fixture
def standard_input(tmp_path: Path) -> Path:
    path = tmp_path / "input"
    path.write_text('{"seed": 42}\nabcdefg of the second line\nthe third line\n')
    return path


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def results_of(run: Finished) -> list[dict[str, Any]]:
    found = [json.loads((run.out / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    assert all(len(result["losses"]) == 16 for result in found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rank", few(1, [1, 0]))
def test_what_set_up_has_read_from_standard_input_is_not_read_again(
    tmp_path: Path, standard_input: Path, rank: int
) -> None:
    undisturbed = relay(folder(tmp_path, "plain"), READS, ranks=RANKS, standard_input=standard_input)
    assert undisturbed.status == 0, undisturbed.told()
    expected = results_of(undisturbed)
    assert expected[0]["told"] == repr([{"seed": 42}, "abc"])
    struck = folder(tmp_path, "struck")
    run = relay(struck, READS, ranks=RANKS, inject=[KILL.format(rank, 9)], standard_input=standard_input)
    assert run.status == 0, run.told()
    assert len(run.committed()) == 1, run.told()
    assert results_of(run) == expected


def test_a_first_step_that_is_done_again_has_what_it_read_before(tmp_path: Path, standard_input: Path) -> None:
    kill = KILL.format(1, 1)
    reads = {"READ_AT": "1"}
    run = relay(tmp_path, READS, ranks=RANKS, inject=[kill], standard_input=standard_input, environment=reads)
    assert run.status == 0, run.told()
    assert len(run.committed()) == 1, run.told()
    assert results_of(run)[0]["read"] == ["defg of the second line\n"]


def test_a_rank_that_is_lost_in_the_first_step_after_it_has_read_does_not_train_on_without(
    tmp_path: Path, standard_input: Path
) -> None:
    kill = KILL.format(0, 1)
    reads = {"READ_AT": "1"}
    run = relay(tmp_path, READS, ranks=RANKS, inject=[kill], standard_input=standard_input, environment=reads)
    assert run.faults() == [kill]
    assert run.status != 0
    assert run.committed() == []
    assert "standard input" in run.stderr, run.told()


def test_training_that_reads_standard_input_gets_it_and_is_not_protected_any_more(
    tmp_path: Path, standard_input: Path
) -> None:
    run = relay(tmp_path, READS, ranks=RANKS, standard_input=standard_input, environment={"READ_AT": "5"})
    assert run.status == 0, run.told()
    assert results_of(run)[0]["read"] == ["defg of the second line\n"]
    assert "no longer protected: training reads standard input" in run.stderr
    assert f"{READS}:28" in run.stderr
