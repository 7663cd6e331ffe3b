"""What a job's resource says of the ranks that were lost, and what another controller reads there."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.kube_world import KEY, LAUNCH, World, in_world

from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.status.losses import KEPT, Loss, Losses, read_losses
from torchrelay.protocol.kube.annotations import PodAnnotations as Asked

KILLED = Loss(1, 40, 1000.0, "rank 1 was killed")


def test_what_was_written_is_read_again() -> None:
    losses = Losses([KILLED, Loss(0, 41, 1010.0, "stopped", "respawn", 2.5, 1)])
    assert read_losses(losses.as_status()) == tuple(losses.known)


def test_a_loss_after_which_all_begin_again_tells_its_cost_once_they_have() -> None:
    losses = Losses()
    losses.add(KILLED)
    assert set(losses.rungs.values()) == {0}
    assert losses.goes_on(1003.0, 41) is None
    losses.begins_again("checkpoint")
    loss = losses.goes_on(1007.0, 20)
    assert loss is not None
    assert (loss.rung, loss.seconds, loss.steps_redone) == ("checkpoint", 7.0, 21)
    assert losses.rungs == {"next-spare": 0, "respawn": 0, "jit-checkpoint": 0, "checkpoint": 1}


def test_a_rung_that_was_taken_stays() -> None:
    losses = Losses([Loss(1, 40, 1000.0, "", "respawn")])
    losses.begins_again("jit-checkpoint")
    assert losses.rungs == {"next-spare": 0, "respawn": 1, "jit-checkpoint": 0, "checkpoint": 0}


LATER = Loss(1, 40, 1020.0, "a joiner failed")


@pytest.mark.parametrize(
    ("known", "began"),
    [
        ((), ""),
        ((KILLED,), ""),
        ((replace(KILLED, rung="jit-checkpoint"),), "rank 1 was killed"),
        ((replace(KILLED, rung="jit-checkpoint"), LATER), "rank 1 was killed"),
        ((replace(KILLED, rung="jit-checkpoint"), replace(LATER, rung="checkpoint")), "rank 1 was killed"),
        ((replace(KILLED, rung="jit-checkpoint", seconds=7.0), LATER), ""),
        ((replace(KILLED, rung="jit-checkpoint"), replace(LATER, rung="respawn"), LATER), ""),
    ],
)
def test_a_job_that_never_came_to_train_again_began_with_the_loss_before_that(
    known: tuple[Loss, ...], began: str
) -> None:
    assert Losses(known).began_with == began


def test_the_oldest_are_forgotten() -> None:
    losses = Losses()
    for step in range(KEPT + 1):
        losses.add(Loss(1, step, 1000.0, ""))
    assert [loss.step for loss in losses.known] == list(range(1, KEPT + 1))


def test_losses_before_this_controller_count_for_the_limit_and_for_the_step() -> None:
    async def test(w: World) -> None:
        now_s = time.time()
        before = [
            Loss(1, 40, now_s - 7200.0, "", "respawn"),
            Loss(1, 40, now_s - 60.0, "", "respawn"),
            Loss(1, 40, now_s - 30.0, "", "next-spare"),
        ]
        w.run.task.cancel()
        w.run = w.ledger.runs[KEY] = JobRun(KEY, 2, LAUNCH, Asked(respawn_limit=1), losses=before)
        respawns = w.run.core.driver.spares.respawns
        assert respawns.losses_at_step(1) == 3
        assert respawns.number(1, time.monotonic()) == "2 of 1 within the hour"

    in_world(test)
