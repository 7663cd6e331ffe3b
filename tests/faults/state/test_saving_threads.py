"""A rank is lost while a thread saves a checkpoint: training goes on, and the checkpoint is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import relay
from support.training import differences

SCRIPT, RANKS = "async_save.py", 2
SAVES = "4:7,8:11,12:15"


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            pytest.param(
                ["kill:rank=1,step=6,phase=backward", "kill:rank=0,step=10,phase=forward"], id="between two steps"
            ),
            pytest.param(
                ["kill:rank=1,step=6,phase=backward", "kill:rank=1,step=6,phase=rebuild"], id="as it is carried over"
            ),
            pytest.param(
                ["kill:rank=1,step=4,phase=after-step", "stop:rank=0,step=11,phase=optimizer"], id="as it begins"
            ),
            pytest.param(
                ["kill:rank=0,step=6,phase=backward", "kill:rank=0,step=7,phase=forward"], id="twice in one save"
            ),
        ],
    ),
)
def test_a_checkpoint_that_was_being_saved_is_whole(
    faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, "ddp", SAVES, ranks=RANKS, spares=2, inject=faults)
    assert run.status == 0, run.told()
    assert sorted(run.faults()) == sorted(faults), run.told()
    assert differences(undisturbed(SCRIPT, "ddp", SAVES, ranks=RANKS), run.out, RANKS) == [], run.told()


@only_in_long
def test_a_rank_that_waits_for_a_save_comes_loose_when_another_is_lost(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    struck = tmp_path / "struck"
    surroundings = {"STRIKE": "writing:1", "STRUCK": str(struck)}
    run = relay(tmp_path, SCRIPT, "waits", "4:4,8:8", ranks=RANKS, environment=surroundings)
    assert run.status == 0, run.told()
    assert struck.exists(), run.told()
    assert [m["rank"] for m in run.committed()] == [1], run.told()
    assert differences(undisturbed(SCRIPT, "waits", "4:4,8:8", ranks=RANKS), run.out, RANKS) == [], run.told()


@only_in_long
@pytest.mark.parametrize(
    ("saves", "ranks", "moved"),
    few(
        1,
        [
            pytest.param("4:17:end", 3, 2, id="it waits with others for the one that ends it"),
            pytest.param("4:17", 2, 0, id="all are writing"),
        ],
    ),
)
def test_a_rank_that_moves_takes_its_save_along(
    saves: str, ranks: int, moved: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    planned, slow = [f"planned:rank={moved},step=5"], {"STEP_S": "0.08"}
    run = relay(tmp_path, SCRIPT, "ddp", saves, ranks=ranks, inject=planned, planned_at=[5], environment=slow)
    assert run.status == 0, run.told()
    assert [(m["kind"], m["rank"]) for m in run.committed()] == [("planned", moved)], run.told()
    (stop,) = (found for e in run.named("decision") if (found := re.search(r"stop after step (\d+)", e["text"])))
    assert int(stop[1]) < 17, run.told()
    assert differences(undisturbed(SCRIPT, "ddp", saves, ranks=ranks), run.out, ranks) == [], run.told()


@only_in_long
def test_shards_that_one_rank_alone_was_saving_come_from_its_copy(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "kill:rank=1,step=7,phase=backward"
    run = relay(tmp_path, SCRIPT, "sharded", SAVES, ranks=RANKS, inject=[fault], options=["--buddy-every=2"])
    assert (run.status, run.faults()) == (0, [fault]), run.told()
    assert [m["kind"] for m in run.committed()] == ["rollback"], run.told()
    assert differences(undisturbed(SCRIPT, "sharded", SAVES, ranks=RANKS), run.out, RANKS) == [], run.told()


@only_in_long
@pytest.mark.parametrize(
    "lost", few(1, [pytest.param(0, id="the one that coordinates"), pytest.param(1, id="another one")])
)
def test_plans_that_ranks_have_kept_of_earlier_saves_are_made_anew(
    lost: int, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault, saves = f"kill:rank={lost},step=6,phase=backward", "4:4,8:8,12:12"
    run = relay(tmp_path, SCRIPT, "cached", saves, ranks=RANKS, inject=[fault])
    assert (run.status, run.faults()) == (0, [fault]), run.told()
    assert differences(undisturbed(SCRIPT, "cached", saves, ranks=RANKS), run.out, RANKS) == [], run.told()
