from __future__ import annotations

import pytest
from support.migration_world import BOUNDARY, World, begin

from torchrelay.controller.migration import events as m
from torchrelay.protocol import messages as msg
from torchrelay.protocol.journals import collective_logs
from torchrelay.protocol.words.phases import DOWNTIME_ROWS, Phase

H, FE, PR, QU, TR = Phase.HEALTHY, Phase.FENCING, Phase.PREPARING, Phase.QUIESCING, Phase.TRANSFERRING
RE, VE, CO, CH, AB = Phase.REBUILDING, Phase.VERIFYING, Phase.COMMITTED, Phase.CHECKPOINTING, Phase.ABANDONED

WALKS = {
    "unplanned": [FE, PR, QU, TR, RE, VE, CO, H],
    "planned": [PR, QU, TR, RE, VE, FE, CO, H],
    "resume": [PR, QU, TR, RE, VE, CO, H],
}


@pytest.mark.parametrize("kind", WALKS)
def test_an_undisturbed_migration_walks_through_its_phases_once(kind: str) -> None:
    world = World(resume=kind == "resume")
    begin(world, kind)
    world.run()
    assert world.phases == WALKS[kind]
    assert world.finished == m.Finished("committed", "every rank has done a step since")
    assert world.state.generation == 5


@pytest.mark.parametrize("kind", WALKS)
def test_a_migration_goes_on_in_another_controller_after_every_single_event(kind: str) -> None:
    world, restarted = World(resume=kind == "resume"), World(resume=kind == "resume")
    restarted.restart_controller = True
    for w in (world, restarted):
        begin(w, kind)
        w.run()
    assert restarted.did == world.did
    assert restarted.finished is not None


def test_survivors_are_interrupted_while_the_lost_worker_is_fenced() -> None:
    world = World()
    did = world.lose(1)
    assert m.FenceWorker("w1", "killed") in did
    assert set(world.orders(msg.Interrupt)) == {"w0", "w2"}


def test_the_joiner_is_chosen_only_when_the_lost_worker_is_gone_and_its_journal_read() -> None:
    world = World()
    world.lose(1)
    world.run(lambda: any(isinstance(i, m.ChooseSpare) for i in world.did))
    fenced = world.did.index(m.ReadJournal(1, "w1"))
    assert "w1" in world.gone
    assert fenced < world.did.index(m.ChooseSpare(1))
    assert world.orders(msg.Assign) == {"s0": msg.Assign(5, 1, 3)}


def test_seconds_of_an_unplanned_migration_come_out_for_every_row_and_add_up() -> None:
    world = World()
    world.silent.add("w1")
    world.feed(m.RankLost(1, "w1", "killed", since_s=world.now_s - 0.5))
    began_s = world.now_s - 0.5
    world.run()
    seconds = world.state.seconds
    assert set(seconds) == set(DOWNTIME_ROWS) - {"checkpoint"}
    assert seconds["detect"] == pytest.approx(0.5)
    assert sum(seconds.values()) == pytest.approx(world.now_s - began_s)
    assert min(seconds[row] for row in ("fence", "prepare", "transfer", "rebuild", "first_step")) > 0


def test_a_planned_migration_stops_training_only_from_the_first_rank_that_stands() -> None:
    world = World()
    begin(world, "planned")
    world.run(lambda: bool(world.state.standings))
    first_stood_s = world.now_s
    assert world.state.seconds["prepare_beside"] > 0
    world.run()
    stopped = sum(world.state.seconds.get(row, 0.0) for row in DOWNTIME_ROWS)
    assert stopped == pytest.approx(world.now_s - first_stood_s)
    assert "prepare" not in world.state.seconds


def test_a_planned_migration_tells_survivors_nothing_before_the_joiner_is_ready() -> None:
    world = World()
    begin(world, "planned")
    world.run_to(Phase.QUIESCING)
    assert not world.orders(msg.Interrupt)
    assert set(world.orders(msg.QuiesceAt)) == {"w0", "w1", "w2"}


def test_a_planned_leaver_serves_its_own_state_and_is_fenced_after_all_have_verified() -> None:
    world = World()
    begin(world, "planned")
    world.run_to(Phase.FENCING)
    assert set(world.orders(msg.Serve)) == {"w1"}
    assert not world.orders(msg.Serve)["w1"].behind_update, "the joiner enters at a head: it has no use for gradients"
    assert {w: p.action for w, p in world.orders(msg.Plan).items()} == {
        "s0": "enter",
        "w0": "stay",
        "w1": "leave",
        "w2": "stay",
    }
    assert set(world.orders(msg.Rebuild)) == {"w0", "w2", "s0"}
    assert not world.orders(msg.Commit)
    world.run()
    assert set(world.orders(msg.Commit)) == {"w0", "w2", "s0"}
    assert world.state.holders == {0: "w0", 1: "s0", 2: "w2"}


def test_a_boundary_that_was_too_near_is_tried_again_further_away() -> None:
    world = World()
    world.boundary_is_late = 2
    begin(world, "planned")
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "committed"
    decided = [i.order.go for i in world.did if isinstance(i, m.Order) and isinstance(i.order, msg.QuiesceDecided)]
    assert decided == [False] * 6 + [True] * 3
    assert world.state.target == BOUNDARY  # what the world's controller decided


def test_boundaries_that_are_always_too_near_abandon_the_move() -> None:
    world = World()
    world.boundary_is_late = 99
    begin(world, "planned")
    world.run()
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", False)
    assert set(world.orders(msg.Abandon)) == {"w0", "w1", "w2"}


def test_several_lost_ranks_move_in_one_generation_with_a_token_each() -> None:
    world = World(world_size=4, spares=2)
    world.lose(1)
    world.lose(3)
    world.run()
    assert world.state.generation == 6
    assert world.state.moved == {1: "s0", 3: "s1"}
    plans = world.orders(msg.Plan, 6)
    assert (plans["s0"].token, plans["s1"].token) == ("token1", "token3")


@pytest.mark.parametrize("kind", ["planned", "unplanned"])
def test_who_holds_the_same_gives_beside_the_donor(kind: str) -> None:
    world = World()
    world.helps = True
    begin(world, kind)
    world.run()
    donor, helpers = ("w1", {"w0", "w2"}) if kind == "planned" else ("w0", {"w2"})
    assert set(world.orders(msg.Serve)) == {donor} | helpers
    plan = world.orders(msg.Plan)["s0"]
    assert {serve.token for serve in world.orders(msg.Serve).values()} == {plan.token}
    assert (plan.donor_port, plan.more_hosts, plan.more_ports) == (
        99,
        ("donor",) * len(helpers),
        (99,) * len(helpers),
    )
    assert world.finished is not None
    assert world.finished.outcome == "committed"


def test_a_helper_that_cannot_give_is_done_without() -> None:
    world = World()
    world.helps = True
    begin(world, "unplanned")
    world.run_to(Phase.TRANSFERRING)
    world.due = [(w, e) for w, e in world.due if w != "w2"]
    world.feed(m.Said(2, "w2", msg.OrderFailed(world.state.generation, "Serve", "no port")))
    assert world.phase is Phase.TRANSFERRING
    world.run()
    plan = world.orders(msg.Plan)["s0"]
    assert (plan.donor_port, plan.more_ports) == (99, ())
    assert world.finished is not None
    assert (world.finished.outcome, world.state.holders) == ("committed", {0: "w0", 1: "s0", 2: "w2"})


@pytest.mark.parametrize("helps", [True, False])
def test_donors_that_do_not_hold_the_same_are_told_of_and_the_migration_goes_on(helps: bool) -> None:
    world = World()
    world.helps, world.differed = helps, "large.0"
    begin(world, "unplanned")
    world.run()
    (note,) = (i for i in world.did if isinstance(i, m.Noted) and i.warning)
    found = (
        "ranks 0, 2 were taken to hold the same, and do not"
        if helps
        else "rank 0 does not hold what another rank had begun"
    )
    assert note.text.startswith(found)
    assert "(large.0); all of rank 1 is from rank 0" in note.text
    assert world.finished is not None
    assert world.finished.outcome == "committed"


def test_whoever_helped_in_a_round_that_is_over_is_not_counted_on_in_the_next() -> None:
    world = World(world_size=4)
    world.helps = True
    begin(world, "unplanned")
    world.run_to(Phase.TRANSFERRING)
    world.run(lambda: bool(world.orders(msg.Plan)))
    assert world.orders(msg.Plan)["s0"].more_ports == (99, 99)
    world.lose(3)
    world.helps = False
    world.run()
    last = world.state.generation
    assert set(world.orders(msg.Serve, last)) == {"w0"}
    assert world.orders(msg.Plan, last)["s0"].more_ports == ()
    assert world.finished is not None
    assert world.finished.outcome == "committed"


def test_the_new_store_is_on_the_lowest_survivor() -> None:
    world = World()
    world.lose(0)
    world.run()
    assert {(r.store_host, r.store_port) for r in world.orders(msg.Rebuild).values()} == {("w1.host", 1001)}


def test_without_survivors_the_store_is_on_the_lowest_joiner() -> None:
    world = World(resume=True)
    begin(world, "resume")
    world.run()
    assert {r.store_host for r in world.orders(msg.Rebuild).values()} == {"s0.host"}


def test_no_spare_ends_in_a_checkpoint_of_what_survivors_hold() -> None:
    world = World(spares=0)
    world.lose(1)
    world.run()
    assert world.phases == [FE, PR, QU, CH, H]
    assert world.finished == m.Finished(
        "checkpoint", "no spare is left; a just-in-time checkpoint is in /jit", True, "/jit"
    )
    saves = world.orders(msg.SaveCheckpoint)
    assert {w: s.save_tensors for w, s in saves.items()} == {"w0": True, "w2": False}
    assert not world.orders(msg.Plan)


def test_a_spare_that_is_still_starting_is_waited_for() -> None:
    world = World(spares=0)
    world.spare_is_starting = True
    world.lose(1)
    world.run()
    assert world.phase is Phase.PREPARING
    world.spares, world.spare_is_starting = ["s0"], False
    world.feed(m.SpareWarm())
    assert world.orders(msg.Assign) == {"s0": msg.Assign(5, 1, 3)}
    world.run()
    assert world.state.moved == {1: "s0"}


def test_offline_skips_communicators_that_nobody_needs() -> None:
    world = World(offline=True)
    world.lose(1)
    world.run()
    assert world.phases == [FE, PR, QU, TR, CO, H]
    assert all(plan.offline for plan in world.orders(msg.Plan).values())
    assert not world.orders(msg.Rebuild)


def test_a_suspicion_that_does_not_hold_touches_nobody() -> None:
    world = World()
    world.feed(m.SuspicionRaised(1, "silent", world.now_s - 6))
    assert world.phase is Phase.SUSPECTED
    did = world.feed(m.SuspicionCleared(1))
    assert world.finished == m.Finished("cleared", "rank 1 moves again")
    assert not [i for i in did if isinstance(i, (m.Order, m.FenceWorker))]
    assert world.state.generation == 4


def test_a_suspicion_that_stands_becomes_a_loss_and_counts_as_detection() -> None:
    world = World()
    world.feed(m.SuspicionRaised(1, "silent", world.now_s - 6))
    world.pass_deadline()
    assert world.phase is Phase.FENCING
    world.run()
    assert world.state.moved == {1: "s0"}
    assert world.state.seconds["detect"] == pytest.approx(6 + world.migration.deadlines.suspected_s)


def test_a_death_explains_a_suspicion_of_another_rank() -> None:
    world = World()
    world.feed(m.SuspicionRaised(1, "silent", world.now_s - 6))
    world.lose(2)
    assert world.state.seconds["detect"] == 0.0
    world.run()
    assert world.state.moved == {2: "s0"}
    assert world.state.holders[1] == "w1"


@pytest.mark.parametrize(
    "report", [msg.Standing(4, 7, 7, "head", "", "h", 1), msg.Standing(6, 7, 7, "head", "", "h", 1)]
)
def test_messages_of_another_generation_change_nothing(report: msg.Standing) -> None:
    world = World()
    world.lose(1)
    did = world.feed(m.Said(0, "w0", report))
    assert did == [m.Ignored(f"Standing of w0 (rank 0) is of generation {report.generation}, not 5")]
    assert not world.state.standings


def test_a_report_of_a_worker_without_part_in_it_changes_nothing() -> None:
    world = World()
    world.lose(1)
    world.run_to(Phase.REBUILDING)
    before = set(world.state.rebuilt)
    world.feed(m.Said(1, "w1", msg.Rebuilt(5, 0.1)))
    assert world.state.rebuilt == before


def test_the_records_of_collectives_of_all_who_passed_the_gate_go_to_who_has_to_catch_up() -> None:
    world = World()
    world.lacking.add((msg.Standing, ""))
    world.lose(1)
    world.run()
    base = {"boundary": 6, "position": "after", "detail": "", "store_host": "h", "store_port": 1}
    world.feed(m.Said(0, "w0", msg.Standing(5, gates_passed=7, collective_log=b"ab", log_length=2, **base)))
    answers = m.TargetDecided(
        7,
        "",
        {0: "forward", 2: "forward"},
        {1: "shadow"},
        {1: 0},
        {1: "t"},
        {1: "h"},
        left="train.py:3#1",
    )
    world._decide = lambda: answers  # type: ignore[method-assign]  # in its place for this test
    world.feed(m.Said(2, "w2", msg.Standing(5, gates_passed=6, collective_log=b"abc", log_length=3, **base)))
    world.run(lambda: bool(world.orders(msg.Plan)))
    logs = {w: collective_logs.split(p.collective_log) for w, p in world.orders(msg.Plan).items()}
    assert logs == {"s0": [b"ab"], "w0": [b"ab"], "w2": [b"ab"]}
    assert world.orders(msg.Serve)["w0"].behind_update
    assert {w: p.left for w, p in world.orders(msg.Plan).items()} == {"s0": "train.py:3#1", "w0": "", "w2": ""}


def test_who_stands_at_a_gate_that_others_have_passed_goes_past_it_before_anybody_gives_anything() -> None:
    world = World(4)
    world.at_gate = {0, 3}
    world.lose(1)
    world.run_to(TR)
    assert world.orders(msg.PassGate) == {"w0": msg.PassGate(5), "w3": msg.PassGate(5)}
    assert sum(isinstance(i, m.DecideTarget) for i in world.did) == 2
    assert m.Noted("others have passed it") in world.did
    assert world.state.standings[0].position == "after"
    world.run()
    assert world.finished == m.Finished("committed", "every rank has done a step since")


def test_who_does_not_stand_again_behind_the_gate_is_lost_too() -> None:
    world = World(4)
    world.at_gate = {0}
    world.lose(1)
    world.run(lambda: bool(world.orders(msg.PassGate)))
    world.silent.add("w0")
    world.run()
    assert world.phase is QU
    world.pass_deadline()
    assert world.state.lost == {0: "w0", 1: "w1"}
    world.run()
    assert world.finished == m.Finished("committed", "every rank has done a step since")


def test_a_rank_that_finishes_its_script_counts_as_resumed() -> None:
    world = World()
    world.lacking |= {(msg.Resumed, ""), (msg.FirstStep, "")}
    world.lose(1)
    world.run()
    assert world.phase is Phase.COMMITTED
    for rank in range(3):
        world.feed(m.RankFinished(rank))
    assert world.finished is not None
    assert world.finished.outcome == "committed"


def test_a_planned_move_is_off_when_the_training_ends_before() -> None:
    world = World()
    world.lacking.add((msg.Prepared, ""))
    begin(world, "planned")
    world.run()
    world.feed(m.RankFinished(0))
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", False)
    assert m.FenceWorker("s0", f"its migration is given up: {world.finished.reason}") in world.did


@pytest.mark.parametrize(("boundary", "position"), [(BOUNDARY, "body"), (BOUNDARY + 1, "head"), (BOUNDARY, "finished")])
def test_a_planned_move_is_off_if_a_rank_stands_anywhere_but_where_it_was_agreed(boundary: int, position: str) -> None:
    world = World()
    world.lacking = {(msg.Standing, "w0")}
    begin(world, "planned")
    world.run()
    world.feed(m.Said(0, "w0", msg.Standing(5, boundary, boundary, position, "", "h", 1)))
    assert world.finished is not None
    assert (world.finished.outcome, world.finished.fatal) == ("abandoned", False)
    assert f"rank 0 stands after step {boundary} ({position})" in world.finished.reason
