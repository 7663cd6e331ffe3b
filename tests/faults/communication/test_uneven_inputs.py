"""Ranks with unlike numbers of batches: those that are through wait in `join()`, which torch makes for that, and not at a gate."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay
from support.training import differences

SCRIPT, RANKS = "joined.py", 2


@pytest.mark.slow
def test_the_job_comes_to_its_end_as_with_torchrun_and_says_that_it_is_not_protected(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS)
    assert run.status == 0, run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()
    assert run.committed() == [], run.told()
    assert "ranks train on unlike numbers of batches" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", few(1, ["average", "end"]))
def test_ranks_with_unlike_numbers_of_updates_do_not_wait_for_each_other_for_ever(
    how: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, "unlike_updates.py", how, ranks=RANKS)
    assert run.status == 0, run.told()
    assert differences(undisturbed("unlike_updates.py", how, ranks=RANKS), run.out, RANKS) == [], run.told()
    assert run.committed() == [], run.told()
    assert "this rank is no longer protected: ranks make unlike numbers of updates: rank 0 went on" in run.stderr


def test_a_rank_that_leaves_an_update_out_is_replaced_once_and_nobody_waits_for_it_then(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, "unlike_updates.py", "skip", ranks=RANKS)
    assert run.status == 0, run.told()
    assert differences(undisturbed("unlike_updates.py", "skip", ranks=RANKS), run.out, RANKS) == [], run.told()
    assert [m["rank"] for m in run.committed()] == [0], run.told()
    assert "this rank is no longer protected: ranks make unlike numbers of updates: rank 0 went on" in run.stderr


def test_a_rank_that_hangs_in_front_of_its_update_is_replaced_and_the_job_stays_protected(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    struck = tmp_path / "struck"
    run = relay(tmp_path, "unlike_updates.py", "hang", ranks=RANKS, environment={"IN_VAIN": str(struck)})
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed("unlike_updates.py", "hang", ranks=RANKS), RANKS, [], 1)
    assert "no longer protected" not in run.stderr
