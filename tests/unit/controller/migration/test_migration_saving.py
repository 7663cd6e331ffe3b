"""A just-in-time checkpoint that cannot be written: nobody is lost by that."""

from __future__ import annotations

from support.migration_world import World

from torchrelay.controller.migration import events as m
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import Phase

CH, AB = Phase.CHECKPOINTING, Phase.ABANDONED


def without_spares(world_size: int = 3) -> World:
    world = World(world_size, spares=0)
    world.lose(1)
    return world


def fenced(world: World) -> set[str]:
    return {i.worker for i in world.did if isinstance(i, m.FenceWorker)}


def test_a_rank_that_cannot_write_saves_in_the_next_folder_and_is_not_ended() -> None:
    world = without_spares()
    world.folders, world.cannot_save = ["/jit", "/other"], {("w0", "/jit")}
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.directory) == ("checkpoint", "/other")
    assert {w: order.directory for w, order in world.orders(msg.SaveCheckpoint).items()} == dict.fromkeys(
        ("w0", "w2"), "/other"
    )
    assert fenced(world) == {"w1"}
    assert world.state.generation == 5


def test_where_no_folder_can_be_written_all_who_live_are_left_alone() -> None:
    world = without_spares()
    world.folders, world.cannot_save = ["/jit", "/other"], {("w0", "/jit"), ("w0", "/other")}
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", True)
    assert world.finished.reason == "no spare is left, and no folder is left: /other is full"
    assert fenced(world) == {"w1"}


def test_what_the_controller_cannot_write_goes_elsewhere_with_all_tensors() -> None:
    world = without_spares()
    world.folders = ["/full/jit", "/other"]
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.directory) == ("checkpoint", "/other")
    saves = [i.order.directory for i in world.did if isinstance(i, m.Order) and isinstance(i.order, msg.SaveCheckpoint)]
    assert saves == ["/full/jit", "/full/jit", "/other", "/other"]


def test_the_next_folder_waits_until_nobody_writes_into_the_last_one() -> None:
    world = without_spares()
    world.folders, world.cannot_save = ["/jit", "/other"], {("w0", "/jit")}
    world.run_to(CH)
    world.slow = {"w2"}
    world.run()
    assert {order.directory for order in world.orders(msg.SaveCheckpoint).values()} == {"/jit"}
    world.slow = set()
    world.run()
    assert world.finished is not None
    assert world.finished.directory == "/other"


def test_a_saver_that_dies_before_the_others_move_on_makes_another_one_save() -> None:
    world = without_spares(world_size=4)
    world.folders, world.cannot_save = ["/jit", "/other"], {("w3", "/jit")}
    world.run_to(CH)
    world.slow = {"w2"}
    world.run(lambda: 0 in world.state.saved and 3 in world.state.unsaved)
    world.lose(0)
    world.slow = set()
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.directory) == ("checkpoint", "/other")
    assert world.orders(msg.SaveCheckpoint, 6) == {
        "w2": msg.SaveCheckpoint(6, "/other", True, 7),
        "w3": msg.SaveCheckpoint(6, "/other", False, 7),
    }
    assert fenced(world) == {"w1", "w0"}


def test_another_folder_gets_the_time_that_the_first_one_had() -> None:
    world = without_spares()
    world.folders, world.cannot_save = ["/jit", "/other"], {("w0", "/jit")}
    world.run_to(CH)
    allowed_s = world.state.deadline_s - world.now_s
    world.slow = {"w2"}
    world.run()
    world.now_s += 100.0
    world.slow = set()
    world.run(lambda: world.state.directory == "/other")
    assert world.state.deadline_s == world.now_s + allowed_s


def test_a_rank_whose_state_is_gone_is_lost_while_it_saves_as_ever() -> None:
    world = without_spares()
    world.run_to(CH)
    world.due = [(w, e) for w, e in world.due if w != "w0"]
    world.feed(m.Said(0, "w0", msg.OrderFailed(5, "SaveCheckpoint", "the device is gone")))
    world.run()
    assert fenced(world) == {"w1", "w0"}
    assert set(world.orders(msg.SaveCheckpoint, 6)) == {"w2"}
