"""A second failure in each phase of a migration: the joiner is lost, or a rank that stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

from torchrelay.protocol.faults import MIGRATION_PHASES

SCRIPT, RANKS = "ddp.py", 3
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
