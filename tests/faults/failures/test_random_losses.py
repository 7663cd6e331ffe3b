"""The loop that proves it: random rank, step, phase and kind, every loss and the whole final state of every rank bitwise.

TORCHRELAY_TEST_ROUNDS: how many (1 if not set); TORCHRELAY_TEST_SEED: repeats a series; each round's test has it in its name.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

from torchrelay.protocol.options.faults import INJECT_PHASES

SCRIPT, RANKS, STEPS = "ddp.py", 3, 66
LAST_PLANNED = 12
"""A planned migration stops a few tenths of a second ahead, twice that in its second try: there must be as many steps left."""

ROUNDS = int(os.environ.get("TORCHRELAY_TEST_ROUNDS", "1"))
SEED = int(os.environ["TORCHRELAY_TEST_SEED"])


@dataclass(frozen=True)
class Round:
    kind: str
    rank: int
    step: int
    phase: str

    @property
    def fault(self) -> str:
        return f"{self.kind}:rank={self.rank},step={self.step},phase={self.phase}"


def make_round(seed: int, number: int) -> Round:
    """The first rounds of a series have one fault of each kind; every third one is in the first or the last step."""
    chance = random.Random(f"{seed}/{number}")
    kind = ("kill", "planned", "stop")[number] if number < 3 else chance.choice(["kill", "kill", "planned", "stop"])
    step = chance.choice([1, STEPS]) if chance.random() < 1 / 3 else chance.randint(1, STEPS)
    if kind == "planned":
        step = 1 + (step - 1) % LAST_PLANNED
    return Round(kind, chance.randrange(RANKS), step, chance.choice(INJECT_PHASES))


@pytest.mark.core
def test_rounds_reach_every_kind_phase_and_rank_and_both_ends() -> None:
    rounds = [make_round(SEED, number) for number in range(400)]
    assert {r.kind for r in rounds} == {"kill", "planned", "stop"}
    assert {r.phase for r in rounds} == set(INJECT_PHASES)
    assert {r.rank for r in rounds} == set(range(RANKS))
    assert {1, STEPS} <= {r.step for r in rounds if r.kind == "kill"}
    assert all(r.step <= LAST_PLANNED for r in rounds if r.kind == "planned")


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS), ids=lambda n: f"seed {SEED} round {n} {make_round(SEED, n).fault}")
def test_any_loss_ends_bitwise_as_no_loss(number: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    chosen = make_round(SEED, number)
    print(f"\nTORCHRELAY_TEST_SEED={SEED} round {number}: {chosen.fault}", flush=True)
    planned = [chosen.step] if chosen.kind == "planned" else []
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[chosen.fault], planned_at=planned)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [chosen.fault], 1)
    assert run.committed()[0]["ranks"] == [chosen.rank]
