"""Optimizers in turn in one iteration: a rank is lost between their updates, and nothing is updated twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "turns.py", 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    few(
        1,
        [
            ("gan", "kill:rank=0,step=9,phase=gate"),
            ("gan", "kill:rank=1,step=15,phase=optimizer"),
            ("critic", "kill:rank=0,step=6,phase=forward"),
            ("pair", "kill:rank=1,step=5,phase=optimizer"),
            ("gan", "kill:rank=1,step=6,phase=backward"),
            ("gan", "kill:rank=0,step=12,phase=after-step"),
            ("critic", "kill:rank=1,step=11,phase=gate"),
            ("pair", "kill:rank=0,step=9,phase=backward"),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [fault], 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, ["kill:rank=1,step=3,phase=data", "kill:rank=0,step=2,phase=optimizer"]))
def test_a_rank_is_replaced_that_is_lost_in_the_second_iteration(
    fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The first one was in the step of the loop around, which stood in."""
    run = relay(tmp_path, SCRIPT, "gan", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, "gan", ranks=RANKS), RANKS, [fault], 1)
    assert {done["kind"] for done in run.committed()} == {"unplanned"}, run.told()


@pytest.mark.parametrize(
    ("kind", "fault", "others"),
    [
        ("between", "kill:rank=1,step=5,phase=after-step", "rank 0 finishes step 5; rank 1 goes through step 5"),
        (
            "measured",
            "kill:rank=0,step=9,phase=data",
            "rank 1 goes back and does step 9 again; rank 0 goes through step 8",
        ),
    ],
)
def test_a_rank_is_replaced_that_is_lost_around_a_collective_between_two_updates(
    kind: str, fault: str, others: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The others wait in it, behind the first update, or are through with it, and in the next step."""
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [fault], 1)
    assert f"{others} from its update on" in " ".join(event["text"] for event in run.named("decision")), run.told()


@only_in_long
def test_what_a_loop_within_the_step_has_called_is_answered_in_all_of_its_iterations(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """That loop was the training loop until the generator's update was seen, and cut the record at each of its heads."""
    faults = ["kill:rank=0,step=7,phase=after-step", "kill:rank=1,step=9,phase=optimizer"]
    run = relay(tmp_path, "critic_loop.py", ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed("critic_loop.py", ranks=RANKS), RANKS, faults, 2)


def test_a_rank_is_replaced_that_is_lost_within_the_step_of_an_optimizer_that_communicates(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Its peers have updated some of the parameters by then, and the optimizer before it all of its own."""
    struck = tmp_path / "struck"
    environment = {"STRIKE": "within:1", "STRUCK": str(struck)}
    run = relay(tmp_path, SCRIPT, "together", ranks=RANKS, environment=environment)
    assert struck.exists(), run.told()
    assert_unharmed(run, undisturbed(SCRIPT, "together", ranks=RANKS), RANKS, [], 1)
    assert run.committed()[0]["steps_redone"] == 1


@only_in_long
def test_a_loop_that_is_over_has_the_gate_behind_such_a_step_too(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """The script looks at the count of its steps between the loops: one more, and the new process would not come through."""
    fault = "kill:rank=1,step=9,phase=backward"
    run = relay(tmp_path, SCRIPT, "warm-up", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, "warm-up", ranks=RANKS), RANKS, [fault], 1)


@only_in_long
@pytest.mark.parametrize(
    "faults",
    few(
        1,
        [
            ["kill:rank=0,step=6,phase=backward", "kill:rank=1,step=12,phase=optimizer"],
            ["kill:rank=1,step=3,phase=after-step", "kill:rank=1,step=12,phase=gate"],
        ],
    ),
)
def test_a_loop_over_optimizers_is_not_taken_for_training(
    faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, "together", ranks=RANKS, spares=2, inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, "together", ranks=RANKS), RANKS, faults, 2)
