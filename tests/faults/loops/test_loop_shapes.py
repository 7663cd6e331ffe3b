"""Training loops of other shapes: each loses a rank in the middle and ends bitwise as if it had not."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

RANKS = 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "args", "fault"),
    few(
        1,
        [
            pytest.param("module_level.py", (), "kill:rank=0,step=16,phase=forward", id="module level with next"),
            pytest.param("accumulation.py", (), "kill:rank=1,step=12,phase=gate", id="accumulation with no_sync"),
            pytest.param("resident.py", ("permutation",), "kill:rank=0,step=17,phase=forward", id="randperm"),
            pytest.param("evaluation.py", (), "kill:rank=0,step=14,phase=after-step", id="metrics and copies"),
            pytest.param("generators.py", (), "kill:rank=1,step=13,phase=optimizer", id="generators"),
            pytest.param("trainer.py", (), "kill:rank=1,step=20,phase=backward", id="while loop of a trainer class"),
            pytest.param("resident.py", ("randint",), "kill:rank=1,step=9,phase=backward", id="randint"),
        ],
    ),
)
def test_a_rank_is_replaced_in(
    script: str, args: tuple[str, ...], fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, script, *args, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(script, *args, ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "start"), few(1, [("steps", "fork"), ("epochs", "spawn"), ("epochs", "fork")]))
def test_ranks_are_replaced_in_every_epoch_of_kept_workers(
    shape: str, start: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """In the first step, at the first batch of a later epoch, and behind an update.

    After the first loss the other ranks begin the first epoch again; after the second one, the third, where steps begin epochs.
    """
    steps = [(0, 1, "backward"), (1, 13, "backward"), (0, 21, "after-step")]
    script, faults = "kept_workers.py", [f"kill:rank={rank},step={step},phase={phase}" for rank, step, phase in steps]
    run = relay(tmp_path, script, shape, start, ranks=RANKS, spares=3, inject=faults)
    assert_unharmed(run, undisturbed(script, shape, start, ranks=RANKS), RANKS, faults, 3)


@pytest.mark.slow
@pytest.mark.parametrize("shape", few(1, ["epochs", "early"]))
def test_ranks_are_replaced_in_later_epochs_of_kept_pipelines(
    shape: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    script, faults = "kept_pipelines.py", ["kill:rank=0,step=9,phase=backward", "kill:rank=1,step=13,phase=after-step"]
    run = relay(tmp_path, script, shape, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(script, shape, ranks=RANKS), RANKS, faults, 2)


@only_in_long
def test_state_that_only_functions_classes_and_methods_lead_to_is_carried(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    script, faults = "behind_code.py", ["kill:rank=1,step=9,phase=backward", "kill:rank=0,step=20,phase=optimizer"]
    run = relay(tmp_path, script, ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(script, ranks=RANKS), RANKS, faults, 2)


@pytest.mark.slow
@pytest.mark.parametrize("rank", few(1, [1, 0]))
def test_a_rank_is_replaced_in_an_evaluation(rank: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    struck = tmp_path / "struck"
    environment = {"STRIKE": f"evaluation-1:{rank}", "STRUCK": str(struck)}
    run = relay(tmp_path, "evaluation.py", ranks=RANKS, environment=environment)
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed("evaluation.py", ranks=RANKS), RANKS, [], 1)
