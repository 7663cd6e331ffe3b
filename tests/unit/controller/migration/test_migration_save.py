"""A checkpoint that was asked for: all save at a boundary ahead, and go on in the generation that they are in."""

from __future__ import annotations

import random

import pytest
from support.migration_world import BOUNDARY, World, begin, shuffled_step

from torchrelay.controller.migration import events as m
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import DOWNTIME_ROWS, Phase

QU, CH, H = Phase.QUIESCING, Phase.CHECKPOINTING, Phase.HEALTHY


def saving(world_size: int = 3, spares: int = 0) -> World:
    world = World(world_size, spares=spares)
    begin(world, "save")
    return world


def goes_on(world: World) -> set[str]:
    return set(world.orders(msg.Abandon, world.state.generation))


def test_all_save_at_the_same_boundary_and_go_on_in_their_generation() -> None:
    world = saving()
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal, world.finished.directory) == ("saved", False, "/jit")
    assert world.phases == [QU, CH, H]
    assert {w: o.boundary for w, o in world.orders(msg.QuiesceAt).items()} == dict.fromkeys(
        ("w0", "w1", "w2"), BOUNDARY
    )
    assert {w: o.save_tensors for w, o in world.orders(msg.SaveCheckpoint).items()} == {
        "w0": True,
        "w1": False,
        "w2": False,
    }
    assert {i.rank for i in world.did if isinstance(i, m.ReadJournal)} == {0, 1, 2}
    assert goes_on(world) == {"w0", "w1", "w2"}
    assert not any(isinstance(i, m.FenceWorker) for i in world.did)
    assert not world.orders(msg.Interrupt)
    assert not world.orders(msg.Plan)


@pytest.mark.parametrize("seed", range(20))
def test_a_save_ends_in_whatever_order_ranks_answer(seed: int) -> None:
    world, rng = saving(), random.Random(seed)
    while world.due:
        shuffled_step(world, rng)
    assert world.finished is not None
    assert world.finished.outcome == "saved"


def test_nobody_goes_on_before_every_file_is_written() -> None:
    world = saving()
    world.lacking = {(msg.CheckpointSaved, "w2")}
    world.run()
    assert world.phase is CH
    assert not goes_on(world)
    assert not any(isinstance(i, m.WriteCheckpoint) for i in world.did)


def test_the_time_that_training_stood_is_counted_from_the_first_rank_that_stands() -> None:
    world = saving()
    world.run()
    rows = {row: world.state.seconds.get(row, 0.0) for row in DOWNTIME_ROWS}
    assert {row for row, seconds in rows.items() if seconds > 0} == {"quiesce", "checkpoint"}


def test_a_rank_that_was_past_the_boundary_makes_all_agree_on_a_later_one() -> None:
    world = World()
    world.boundary_is_late = 1
    begin(world, "save")
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "saved"
    assert world.state.quiesce_boundary == BOUNDARY + 1


def test_a_folder_that_is_full_costs_the_checkpoint_and_nothing_else() -> None:
    world = saving()
    world.cannot_save = {("w0", "/jit")}
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", False)
    assert world.finished.reason == "no folder is left: /jit is full"
    assert goes_on(world) == {"w0", "w1", "w2"}
    assert not any(isinstance(i, m.FenceWorker) for i in world.did)


def test_what_a_rank_cannot_save_for_another_reason_costs_the_checkpoint_and_nothing_else() -> None:
    world = saving()
    world.run_to(CH)
    world.feed(m.Said(0, "w0", msg.OrderFailed(world.state.generation, "SaveCheckpoint", "a kernel failed")))
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", False)
    assert "a kernel failed" in world.finished.reason
    assert goes_on(world) == {"w0", "w1", "w2"}


@pytest.mark.parametrize("phase", [QU, CH])
def test_one_that_takes_too_long_is_given_up_and_all_go_on(phase: Phase) -> None:
    world = saving()
    world.lacking = {(msg.Standing if phase is QU else msg.CheckpointSaved, "w2")}
    world.run()
    assert world.phase is phase
    world.pass_deadline()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", False)
    assert goes_on(world) == {"w0", "w1", "w2"}


@pytest.mark.parametrize("phase", [QU, CH])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_dies_meanwhile_is_replaced_as_always(phase: Phase, rank: int) -> None:
    world = saving(spares=1)
    world.run_to(phase)
    world.lose(rank)
    assert world.state.kind == "unplanned"
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("committed", False)
    assert world.state.holders[rank] == "s0"


def test_a_rank_at_the_end_of_its_script_leaves_nothing_to_save() -> None:
    world = saving()
    world.feed(m.RankFinished(1))
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", False)
    assert "nothing left to save" in world.finished.reason


def test_another_controller_goes_on_from_its_snapshot() -> None:
    world = saving()
    world.restart_controller = True
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "saved"
