"""A second failure in each phase of a migration: the joiner is lost, or a rank that stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import differences

from torchrelay.protocol.options.faults import MIGRATION_PHASES

SCRIPT, RANKS = "ddp.py", 3
GOES_ON_S = 30.0
"""After a move that was given up; communicators that nobody comes to are waited for twice as long."""
STEPS = dict(zip(MIGRATION_PHASES, (10, 22, 34, 46)))


def faults(first_phase: str, second: dict[str, int]) -> list[str]:
    """In each of STEPS rank 1 is killed, and in the migration of that a further one, `second`: phase -> rank."""
    found = []
    for phase, step in STEPS.items():
        found += [
            f"kill:rank=1,step={step},phase={first_phase}",
            f"kill:rank={second[phase]},step={step},phase={phase}",
        ]
    return found


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("first_phase", few(1, ["backward", "after-step"]))
def test_a_joiner_that_is_lost_is_replaced_in_the_same_migration(
    first_phase: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    struck = faults(first_phase, dict.fromkeys(MIGRATION_PHASES, 1))
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(struck), inject=struck)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, struck, len(STEPS))
    assert [m["ranks"] for m in run.committed()] == [[1]] * len(STEPS), run.told()


def test_a_rank_that_is_lost_while_another_one_is_replaced_costs_no_further_spare(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    struck = faults("backward", {"prepare": 2, "transfer": 0, "rebuild": 2, "verify": 0})
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(struck), inject=struck)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, struck, len(STEPS))
    assert [m["ranks"] for m in run.committed()] == [[1, 2], [0, 1], [1, 2], [0, 1]], run.told()


@only_in_long
def test_a_planned_move_whose_joiner_is_lost_is_given_up_and_training_goes_on_at_once(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    struck = ["planned:rank=1,step=5,phase=forward", "kill:rank=1,step=5,phase=rebuild"]
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=1, inject=struck, planned_at=[5])
    assert run.status == 76, f"a planned move that was not made is told: {run.told()}"
    assert sorted(run.faults()) == sorted(struck), run.told()
    (given_up,) = run.named("migration_finished")
    assert (given_up["kind"], given_up["outcome"]) == ("planned", "abandoned"), run.told()
    next_s = min(e["time_s"] for e in run.named("progress") if e["time_s"] > given_up["time_s"])
    assert next_s - given_up["time_s"] < GOES_ON_S, run.told()
    assert not any("OrderFailed" in e["text"] for e in run.named("log")), run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()
