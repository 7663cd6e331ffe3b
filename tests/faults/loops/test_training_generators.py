"""Generators that train: one that trains in a single draw is entered in the middle; one that yields its steps is refused before."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "training_generators.py", 2
FAULTS = ("kill:rank=0,step=5,phase=after-step", "kill:rank=1,step=13,phase=backward")


@pytest.mark.core
def test_ranks_are_replaced_inside_of_a_generator_that_trains(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "inside", ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, "inside", ranks=RANKS), RANKS, list(FAULTS), 2)


@only_in_long
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("told", "is made while a loop draws its next item from a generator"),
        ("asked", "is made while a loop draws its next item from a generator"),
        ("delegated", "is made while a loop draws its next item from a generator"),
        ("epochs", "is made while a loop draws its next item from a generator"),
        ("rounds", "a generator that trains has yielded"),
    ],
)
def test_no_rank_is_promised_to_be_replaced_in(
    kind: str, reason: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [], 0)
    assert reason in run.named("protection")[-1]["reason"], run.told()
