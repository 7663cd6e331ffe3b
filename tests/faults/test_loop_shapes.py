"""Training loops of other shapes: each loses a rank in the middle and ends bitwise as if it had not."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay
from support.training import differences

RANKS = 2


@pytest.mark.parametrize(
    ("script", "args", "fault"),
    [
        pytest.param("trainer.py", (), "kill:rank=1,step=20,phase=backward", id="while loop of a trainer class"),
        pytest.param("module_level.py", (), "kill:rank=0,step=16,phase=forward", id="module level with next"),
        pytest.param("accumulation.py", (), "kill:rank=1,step=12,phase=gate", id="accumulation with no_sync"),
        pytest.param("resident.py", ("randint",), "kill:rank=1,step=9,phase=backward", id="randint"),
        pytest.param("resident.py", ("permutation",), "kill:rank=0,step=17,phase=forward", id="randperm"),
        pytest.param("evaluation.py", (), "kill:rank=0,step=14,phase=after-step", id="metrics and copies"),
        pytest.param("generators.py", (), "kill:rank=1,step=13,phase=optimizer", id="generators"),
    ],
)
def test_a_rank_is_replaced_in(
    script: str, args: tuple[str, ...], fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, script, *args, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(script, *args, ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_replaced_in_an_evaluation(rank: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    struck = tmp_path / "struck"
    environment = {"STRIKE": f"evaluation-1:{rank}", "STRUCK": str(struck)}
    run = relay(tmp_path, "evaluation.py", ranks=RANKS, environment=environment)
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed("evaluation.py", ranks=RANKS), RANKS, [], 1)


def test_a_second_training_loop_is_told_and_never_entered_with_wrong_numbers(tmp_path: Path) -> None:
    args = ("randint", "permutation")
    run = relay(tmp_path, "resident.py", *args, ranks=RANKS, inject=["kill:rank=1,step=22,phase=backward"])
    assert run.status == 137, run.told()
    assert not list(run.out.iterdir())
    assert "a second training loop" in run.stderr
    assert run.named("migration_started") == []
    assert "a second training loop" in run.named("job_finished")[0]["reason"]


def test_a_second_training_loop_without_a_loss_is_as_ever(undisturbed: Undisturbed, tmp_path: Path) -> None:
    args = ("randint", "permutation")
    run = relay(tmp_path, "resident.py", *args, ranks=RANKS, spares=0)
    assert run.status == 0, run.told()
    assert differences(undisturbed("resident.py", *args, ranks=RANKS), run.out, RANKS) == []
