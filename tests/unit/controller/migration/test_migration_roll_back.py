from __future__ import annotations

from support.migration_world import BOUNDARY, World, begin

from torchrelay.controller.migration import events as m
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import Phase


def rolled_back(world_size: int = 3, spares: int = 6) -> World:
    world = World(world_size, spares)
    begin(world, "rollback")
    return world


def test_survivors_end_and_every_rank_enters_anew() -> None:
    world = rolled_back()
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "committed"
    assert {i.worker for i in world.did if isinstance(i, m.FenceWorker)} == {"w0", "w1", "w2"}
    assert {plan.action for plan in world.orders(msg.Plan).values()} == {"enter"}
    assert world.orders(msg.Serve) == {}
    assert sorted(world.state.moved) == [0, 1, 2]
    assert world.state.kind == "rollback"


def test_nobody_is_told_to_enter_before_all_survivors_are_gone() -> None:
    world = rolled_back()
    world.run(lambda: world.state.kind == "rollback")
    assert world.phase is Phase.FENCING
    world.slow = {"w0"}
    world.run()
    assert world.phase is Phase.FENCING
    assert not world.orders(msg.Plan)
    world.slow.clear()
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "committed"


def test_the_joiner_that_was_ready_goes_back_with_the_others() -> None:
    world = rolled_back()
    world.run()
    assert world.state.moved[1] == "s0", "it was not started anew"
    assert {p.target for p in world.orders(msg.Plan).values()} == {BOUNDARY}


def test_who_enters_without_a_copy_is_served_by_another_joiner_before_anybody_has_a_plan() -> None:
    world = rolled_back()
    world.gives = True
    world.run(lambda: bool(world.orders(msg.Serve)))
    giver = world.state.joiners[0].worker
    assert {w: (o.token, o.peer_host) for w, o in world.orders(msg.Serve).items()} == {giver: ("token1", "host")}
    assert not world.orders(msg.Plan)
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "committed"
    plans = {worker: (p.token, p.donor_host) for worker, p in world.orders(msg.Plan).items()}
    moved = world.state.moved
    assert plans == {moved[0]: ("token0", ""), moved[1]: ("token1", "donor"), moved[2]: ("token2", "")}


def test_a_joiner_that_does_not_serve_in_time_is_lost_and_another_one_does() -> None:
    world = rolled_back()
    world.gives = True
    world.run(lambda: world.state.kind == "rollback" and world.phase is Phase.TRANSFERRING)
    first = world.state.joiners[0].worker
    world.slow = {first}
    world.run()
    world.pass_deadline()
    assert first in world.state.fencing
    world.slow.clear()
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "committed"
    assert world.state.moved[0] != first


def test_a_joiner_that_has_come_too_far_is_replaced() -> None:
    world = World(3, 6)
    begin(world, "unplanned")
    world.run_to(Phase.PREPARING)
    world.migration.state.phase = Phase.QUIESCING
    world.feed(m.RollBackDecided(3, 4, "nobody holds it", stale=(1,)))
    assert "s0" in world.state.fencing
    assert 1 not in world.state.joiners


def test_the_steps_that_are_done_again_are_those_since_the_copies() -> None:
    world = rolled_back()
    world.run()
    assert world.state.steps_redone == 4


def test_a_second_loss_on_the_way_back_starts_over_with_another_process() -> None:
    world = rolled_back()
    world.run(lambda: world.state.kind == "rollback" and world.phase is Phase.TRANSFERRING)
    world.lose(2, world.state.joiners[2].worker)
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "committed"
    assert world.state.rounds == 3


def test_without_a_process_for_a_rank_the_job_ends() -> None:
    world = rolled_back(spares=2)
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", True)
