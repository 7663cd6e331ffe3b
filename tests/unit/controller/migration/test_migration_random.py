"""Replies in any order, losses and failures at any time: whatever happens, the invariants of the World hold."""

from __future__ import annotations

import random

import pytest
from support.migration_world import World, begin, shuffled_step

from torchrelay.controller.migration import events as m
from torchrelay.protocol import messages as msg

ROUNDS = 60
KINDS = ("planned", "unplanned", "resume", "rollback", "save")


def one_life(seed: int, kind: str) -> World:
    rng = random.Random(f"{kind}-{seed}")
    world = World(world_size=rng.randint(2, 4), spares=rng.randint(0, 4), resume=kind == "resume")
    world.boundary_is_late = rng.choice((0, 0, 1, 9))
    world.restart_controller = rng.random() < 0.2
    world.gives = kind == "rollback" and rng.random() < 0.5
    world.helps = rng.random() < 0.5
    begin(world, kind)
    trouble = rng.choice((0.0, 0.02, 0.1))
    while world.finished is None:
        if rng.random() < trouble:
            make_trouble(world, rng)
        elif world.due:
            shuffled_step(world, rng)
        else:
            world.pass_deadline()
    return world


def make_trouble(world: World, rng: random.Random) -> None:
    s = world.state
    workers = sorted({*s.holders.items(), *((r, j.worker) for r, j in s.joiners.items())})
    if not workers:
        return
    rank, worker = rng.choice(workers)
    kind = rng.randrange(4)
    if kind == 0:
        world.lose(rank, worker)
    elif kind == 1:
        world.feed(m.Said(rank, worker, msg.OrderFailed(s.generation, rng.choice(("x", "Serve")), "y")))
    elif kind == 2:
        world.silent.add(worker)
    else:
        stale = rng.choice(
            (msg.Verified(s.generation - 1), msg.Rebuilt(s.generation + 1, 0.0), msg.Verified(s.generation))
        )
        if stale.generation != s.generation:
            world.feed(m.Said(rank, worker, stale))


@pytest.mark.parametrize("kind", KINDS)
def test_every_life_ends_well_defined_whatever_happens(kind: str) -> None:
    outcomes = set()
    for seed in range(ROUNDS):
        world = one_life(seed, kind)
        assert world.finished is not None
        assert world.finished.outcome in ("committed", "abandoned", "checkpoint", "saved"), f"seed {seed}"
        if world.finished.outcome == "committed":
            assert sorted(world.state.holders) == list(range(world.world_size)), f"seed {seed}"
            assert len(set(world.state.holders.values())) == world.world_size, f"seed {seed}"
        if world.finished.outcome == "abandoned" and not world.finished.fatal:
            fenced = {i.worker for i in world.did if isinstance(i, m.FenceWorker)}
            assert not fenced & set(world.state.holders.values()), f"seed {seed}: a holder of an abandoned move is gone"
        outcomes.add(world.finished.outcome)
    assert len(outcomes) > 1, "the dice were not thrown"
