"""A second failure in every phase, of everybody who takes part, in migrations of both kinds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.migration_world import World, begin

from torchrelay.controller.migration import events as m
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import Phase

FE, PR, QU, TR = Phase.FENCING, Phase.PREPARING, Phase.QUIESCING, Phase.TRANSFERRING
RE, VE, CO, CH = Phase.REBUILDING, Phase.VERIFYING, Phase.COMMITTED, Phase.CHECKPOINTING


@dataclass(frozen=True)
class Case:
    """`victim`: worker that dies in `phase`. `next_phase`: right after; `moved`: rank -> worker in the end."""

    kind: str
    phase: Phase
    victim: str
    next_phase: Phase
    moved: dict[int, str]
    generation: int
    outcome: str = "committed"
    next_losses: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}-{self.phase.value}-{self.victim}"


def unplanned(phase: Phase, victim: str, moved: dict[int, str]) -> Case:
    return Case("unplanned", phase, victim, FE, moved, 6)


BOTH = {1: "s0", 2: "s1"}
AGAIN = {1: "s1"}
CASES = [
    Case("unplanned", Phase.SUSPECTED, "w2", FE, {2: "s0"}, 5),
    unplanned(FE, "w2", {1: "s0", 2: "s1"}),
    unplanned(PR, "w2", BOTH),
    unplanned(PR, "s0", AGAIN),
    unplanned(QU, "w2", BOTH),
    unplanned(QU, "s0", AGAIN),
    unplanned(TR, "w0", {0: "s1", 1: "s0"}),
    unplanned(TR, "w2", BOTH),
    unplanned(TR, "s0", AGAIN),
    unplanned(RE, "w2", BOTH),
    unplanned(RE, "s0", AGAIN),
    unplanned(VE, "w2", BOTH),
    unplanned(VE, "s0", AGAIN),
    Case("unplanned", CO, "w2", Phase.HEALTHY, {1: "s0"}, 5, next_losses=("w2",)),
    Case("unplanned", CO, "s0", Phase.HEALTHY, {1: "s0"}, 5, next_losses=("s0",)),
    Case("planned", PR, "w1", FE, {1: "s0"}, 6),
    Case("planned", PR, "w2", FE, {2: "s1"}, 6),
    Case("planned", PR, "s0", PR, {1: "s1"}, 6),
    *(Case("planned", phase, "w1", FE, {1: "s0"}, 6) for phase in (QU, TR, RE, VE)),
    *(Case("planned", phase, "w2", FE, {2: "s1"}, 6) for phase in (QU, TR, RE, VE)),
    *(Case("planned", phase, "s0", Phase.ABANDONED, {}, 5, "abandoned") for phase in (QU, TR, RE, VE)),
    Case("planned", FE, "w1", FE, {1: "s0"}, 5),
    Case("planned", FE, "w2", FE, {1: "s0"}, 5, next_losses=("w2",)),
    Case("planned", FE, "s0", FE, {1: "s0"}, 5, next_losses=("s0",)),
    Case("planned", CO, "w2", Phase.HEALTHY, {1: "s0"}, 5, next_losses=("w2",)),
]


def rank_of(world: World, victim: str) -> int:
    return int(victim[1:]) if victim.startswith("w") else 1


def bring_to(case: Case, spares: int = 2) -> World:
    world = World(spares=spares)
    if case.phase is Phase.SUSPECTED:
        world.feed(m.SuspicionRaised(1, "silent", world.now_s - 6))
    else:
        begin(world, case.kind)
        if case.kind == "unplanned" and case.phase is QU:
            world.slow = {"w0"}  # else everybody stands by then
        world.run_to(case.phase)
        world.slow = set()
        if case.phase is PR:
            world.run(lambda: bool(world.state.joiners))
    return world


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_second_loss(case: Case) -> None:
    world = bring_to(case)
    world.lose(rank_of(world, case.victim), case.victim)
    assert world.phase is case.next_phase
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == case.outcome
    assert world.state.moved == case.moved
    assert world.state.generation == case.generation
    assert tuple(lost.worker for lost in world.next_losses) == case.next_losses


@pytest.mark.parametrize("case", [c for c in CASES if c.generation == 6 and c.next_phase is FE], ids=str)
def test_a_second_loss_interrupts_everybody_who_is_left_for_the_new_generation(case: Case) -> None:
    world = bring_to(case)
    left = set(world.state.members.values()) - {case.victim}
    world.lose(rank_of(world, case.victim), case.victim)
    assert set(world.orders(msg.Interrupt, 6)) == left - set(world.state.fencing) | set(world.state.members.values())
    assert case.victim in world.state.fencing


@pytest.mark.parametrize("phase", [FE, PR, QU, TR, RE, VE])
def test_a_second_loss_without_another_spare_ends_in_a_checkpoint(phase: Phase) -> None:
    world = bring_to(Case("unplanned", phase, "w2", FE, {}, 6), spares=1)
    world.lose(2)
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "checkpoint"
    assert set(world.orders(msg.SaveCheckpoint)) == {"w0"}


@pytest.mark.parametrize("phase", [PR, QU, TR, RE, VE])
def test_a_joiner_that_fails_is_fenced_and_the_next_spare_is_tried(phase: Phase) -> None:
    world = bring_to(Case("unplanned", phase, "s0", FE, {}, 6))
    failed = msg.OrderFailed(5, "Plan", "out of memory")
    did = world.feed(m.Said(1, "s0", failed))
    assert m.FenceWorker("s0", "s0 could not go on as rank 1: out of memory") in did
    world.run()
    assert world.state.moved == {1: "s1"}


@pytest.mark.parametrize("phase", [FE, PR, QU, TR, RE, VE])
def test_a_survivor_that_cannot_follow_is_lost_too(phase: Phase) -> None:
    world = bring_to(Case("unplanned", phase, "w2", FE, {}, 6))
    world.feed(m.Said(2, "w2", msg.OrderFailed(5, "Rebuild", "no route")))
    world.run()
    assert world.state.moved == {1: "s0", 2: "s1"}


@pytest.mark.parametrize("phase", [QU, TR, RE, VE])
@pytest.mark.parametrize("worker", ["w0", "w1", "s0"])
def test_whatever_fails_in_a_planned_move_before_the_fence_lets_everybody_go_on(phase: Phase, worker: str) -> None:
    world = bring_to(Case("planned", phase, worker, FE, {}, 6))
    if phase is QU:
        world.run(lambda: world.state.survivors_told)
    world.feed(m.Said(rank_of(world, worker), worker, msg.OrderFailed(5, "x", "y")))
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", False)
    assert set(world.orders(msg.Abandon, 5)) == {"w0", "w1", "w2"}
    assert [i for i in world.did if isinstance(i, m.FenceWorker)] == [
        m.FenceWorker("s0", f"its migration is given up: {world.finished.reason}")
    ]
    assert world.state.holders == {0: "w0", 1: "w1", 2: "w2"}


def test_a_loss_while_a_move_is_agreed_upon_first_lets_go_then_interrupts() -> None:
    world = bring_to(Case("planned", TR, "w2", FE, {}, 6))
    world.lose(2)
    told = [(i.worker, type(i.order)) for i in world.did if isinstance(i, m.Order) and i.worker == "w0"]
    assert told[-2:] == [("w0", msg.Abandon), ("w0", msg.Interrupt)]
    assert "w2" not in world.orders(msg.Abandon)


def test_a_dead_rank_that_has_saved_its_part_does_not_spoil_the_checkpoint() -> None:
    world = World(spares=0)
    world.lose(1)
    world.run_to(CH)
    world.lose(2)
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "checkpoint"
    assert world.state.generation == 5


def test_a_dead_rank_that_was_to_save_the_tensors_makes_another_one_do_it() -> None:
    world = World(spares=0)
    world.lose(1)
    world.run_to(CH)
    world.lose(0)
    assert world.phase is FE
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "checkpoint"
    assert world.orders(msg.SaveCheckpoint, 6) == {"w2": msg.SaveCheckpoint(6, "/jit", True, 7)}


def test_who_died_while_saving_is_not_waited_for_in_the_next_round() -> None:
    world = World(world_size=4, spares=0)
    world.lose(1)
    world.run_to(CH)
    world.lose(2)
    world.lose(0)
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "checkpoint"
    assert world.orders(msg.SaveCheckpoint, 6) == {"w3": msg.SaveCheckpoint(6, "/jit", True, 7)}


def test_when_nobody_is_left_the_job_cannot_go_on() -> None:
    world = World()
    for rank in range(3):
        world.lose(rank)
    world.run()
    assert world.finished == m.Finished("abandoned", "nobody is left", True)


def test_losses_after_the_last_one_that_is_known_are_not_counted_twice() -> None:
    world = World()
    world.lose(1)
    assert world.feed(m.RankLost(1, "w1", "its agent says so again", world.now_s)) == []
    assert world.state.generation == 5
