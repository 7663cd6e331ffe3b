"""Every phase's deadline, in every kind of migration that has the phase."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.migration_world import World, begin

from torchrelay.controller.migration import events as m
from torchrelay.controller.migration.table import TABLE
from torchrelay.protocol import messages as msg
from torchrelay.protocol.words.phases import Deadlines, Phase

FE, PR, QU, TR = Phase.FENCING, Phase.PREPARING, Phase.QUIESCING, Phase.TRANSFERRING
RE, VE, CO, CH, AB = Phase.REBUILDING, Phase.VERIFYING, Phase.COMMITTED, Phase.CHECKPOINTING, Phase.ABANDONED


@dataclass(frozen=True)
class Case:
    """`lacking`: the event or report that never comes (of `of`, or of nobody). `moved`: in the end."""

    kind: str
    phase: Phase
    lacking: type
    next_phase: Phase
    outcome: str
    of: str = ""
    moved: tuple[tuple[int, str], ...] = ()
    spares: int = 2

    def __str__(self) -> str:
        return f"{self.kind}-{self.phase.value}-{self.lacking.__name__}-{self.of or 'all'}"


SECOND = ((1, "s1"),)
CASES = [
    Case("unplanned", FE, m.WorkerGone, AB, "abandoned"),
    Case("unplanned", FE, m.JournalRead, AB, "abandoned"),
    Case("unplanned", PR, msg.Prepared, FE, "committed", "s0", SECOND),
    Case("unplanned", PR, msg.Prepared, FE, "checkpoint", "s0", spares=1),
    Case("unplanned", QU, msg.Standing, FE, "committed", "w2", ((1, "s0"), (2, "s1"))),
    Case("unplanned", QU, msg.Standing, FE, "abandoned"),
    Case("unplanned", TR, msg.Serving, FE, "committed", "w0", ((0, "s1"), (1, "s0"))),
    Case("unplanned", TR, msg.Transferred, FE, "committed", "s0", SECOND),
    Case("unplanned", RE, msg.Rebuilt, FE, "committed", "s0", SECOND),
    Case("unplanned", RE, msg.Rebuilt, FE, "committed", "w2", ((1, "s0"), (2, "s1"))),
    Case("unplanned", VE, msg.Verified, FE, "committed", "s0", SECOND),
    Case("unplanned", VE, msg.Verified, FE, "committed", "w0", ((0, "s1"), (1, "s0"))),
    Case("unplanned", CO, msg.FirstStep, Phase.HEALTHY, "committed", "w2", ((1, "s0"),)),
    Case("unplanned", CO, msg.Resumed, Phase.HEALTHY, "committed", "s0", ((1, "s0"),)),
    Case("unplanned", CH, msg.CheckpointSaved, AB, "abandoned", "w2", spares=0),
    Case("planned", PR, msg.Prepared, AB, "abandoned", "s0"),
    Case("planned", QU, msg.QuiesceAnswer, AB, "abandoned", "w2"),
    Case("planned", QU, msg.Standing, AB, "abandoned", "w0"),
    Case("planned", TR, msg.Serving, AB, "abandoned", "w1"),
    Case("planned", TR, msg.Transferred, AB, "abandoned", "s0"),
    Case("planned", RE, msg.Rebuilt, AB, "abandoned", "w2"),
    Case("planned", VE, msg.Verified, AB, "abandoned", "w2"),
    Case("planned", FE, m.WorkerGone, AB, "abandoned"),
    Case("planned", CO, msg.FirstStep, Phase.HEALTHY, "committed", "w2", ((1, "s0"),)),
    Case("resume", PR, msg.Prepared, FE, "committed", "s1", ((0, "s0"), (1, "s9"), (2, "s2"))),
    Case("resume", TR, msg.Transferred, FE, "committed", "s1", ((0, "s0"), (1, "s9"), (2, "s2"))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_happens_when_the_deadline_passes(case: Case) -> None:
    world = World(spares=case.spares, resume=case.kind == "resume")
    world.lacking = {(case.lacking, case.of)}
    begin(world, case.kind)
    world.run()
    assert world.phase is case.phase
    world.pass_deadline()
    assert world.phase is case.next_phase
    if not case.of:
        world.lacking = set()
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == case.outcome
    assert world.state.moved == dict(case.moved)


def test_every_phase_that_can_last_too_long_has_its_deadline_tried_above() -> None:
    tried = {case.phase for case in CASES} | {Phase.SUSPECTED}
    assert tried == {phase for phase, row in TABLE.items() if row.late is not None}
    assert tried == {phase for phase in Phase if Deadlines().of(phase) is not None}


def test_nothing_happens_before_a_deadline() -> None:
    world = World()
    world.lose(1)
    deadline_s = world.state.deadline_s
    world.now_s = deadline_s - 0.001
    assert world.feed(m.TimePassed()) == []
    assert world.phase is FE


def test_a_fence_that_is_not_confirmed_ends_the_job_rather_than_risk_two_holders() -> None:
    world = World()
    world.lacking = {(m.WorkerGone, "w1")}
    world.lose(1)
    world.run()
    world.pass_deadline()
    assert world.finished is not None
    assert world.finished.fatal
    assert "two holders" in world.finished.reason


def test_a_planned_stop_gets_the_time_of_the_steps_that_lie_ahead() -> None:
    world = World()
    begin(world, "planned")
    world.run_to(QU)
    assert world.state.deadline_s == pytest.approx(world.now_s + Deadlines().quiescing_s + 1.0)


def test_spares_that_never_get_ready_end_in_a_checkpoint() -> None:
    world = World(spares=0)
    world.spare_is_starting = True
    world.lose(1)
    world.run()
    world.pass_deadline()
    assert world.phase is QU or world.phase is CH
    world.run()
    assert world.finished is not None
    assert world.finished.outcome == "checkpoint"


def test_too_few_spares_to_resume_with_ends_the_job() -> None:
    world = World(resume=True)
    world.spares, world.spare_is_starting = ["s0"], True
    begin(world, "resume")
    world.run()
    world.pass_deadline()
    assert world.finished == m.Finished("abandoned", "not enough spares got ready in time to resume", True)


def test_a_question_that_stays_open_blames_no_rank() -> None:
    world = World()
    world.lacking = {(m.TargetDecided, "")}
    begin(world, "unplanned")
    world.run()
    world.pass_deadline()
    assert world.finished is not None
    assert world.finished.reason == "all ranks stand, but where they go on from was not known in time"
