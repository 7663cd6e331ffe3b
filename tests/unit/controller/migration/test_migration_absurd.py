"""Whatever members of a migration say, at whatever moment: it is noted, ignored, or ends the migration. It is never an error."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.migration_world import World, begin, shuffled_step

from torchrelay.controller.migration import events as m
from torchrelay.protocol import messages as msg
from torchrelay.protocol.transport.incoming import MOST_STEPS
from torchrelay.protocol.words.phases import Phase
from torchrelay.protocol.words.positions import StandingPosition

ROUNDS = 60
KINDS = ("planned", "unplanned", "resume", "rollback", "save")


def absurd(rng: random.Random, generation: int) -> Any:
    step = rng.choice((-1, 0, 1, 5, MOST_STEPS))
    return rng.choice(
        (
            msg.Standing(generation, step, step, rng.choice(list(StandingPosition)).value, "", "h", 1),
            msg.QuiesceAnswer(rng.choice((generation * 1000, step)), rng.random() < 0.5, step),
            msg.Prepared(generation, "h", 1),
            msg.Serving(generation, "h", 1),
            msg.Transferred(generation, step, step, 0.0, rng.choice(("", "w"))),
            msg.Rebuilt(generation, 0.0),
            msg.Verified(generation),
            msg.Resumed(generation, 1),
            msg.FirstStep(generation, step),
            msg.OrderFailed(
                generation, rng.choice(("Serve", "Plan", "SaveCheckpoint", "x")), "why", rng.random() < 0.5
            ),
            msg.CheckpointSaved(generation, 1),
        )
    )


def absurd_life(seed: int, kind: str) -> set[tuple[Phase, str]]:
    """Which report was said in which phase."""
    rng, said = random.Random(f"{kind}-{seed}"), set()
    world = World(world_size=rng.randint(2, 4), spares=rng.randint(0, 3), resume=kind == "resume")
    begin(world, kind)
    while world.finished is None:
        s = world.state
        workers = sorted({*s.holders.items(), *((r, j.worker) for r, j in s.joiners.items())})
        if workers and rng.random() < 0.3:
            rank, worker = rng.choice(workers)
            report = absurd(rng, s.generation)
            said.add((s.phase, type(report).__name__))
            world.feed(m.Said(rank, worker, report))
        elif world.due:
            shuffled_step(world, rng)
        else:
            world.pass_deadline()
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_no_report_is_an_error_in_any_phase(kind: str) -> None:
    said = set().union(*(absurd_life(seed, kind) for seed in range(ROUNDS)))
    assert len(said) > 20, "hardly anything was said"


def test_a_rank_that_stands_before_anybody_was_told_to_does_not_end_a_planned_move() -> None:
    world = World(world_size=2, spares=1)
    begin(world, "planned")
    assert world.state.phase is Phase.PREPARING
    holder = world.state.holders[0]
    world.feed(m.Said(0, holder, msg.Standing(world.state.generation, 7, 7, "after", "", "h", 1)))
    assert (world.finished, world.state.phase) == (None, Phase.PREPARING)
