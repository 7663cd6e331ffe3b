"""How often the agent looks and tells, on virtual time."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.agent.connections.cadence import CALM_LOOK_S, CLOSE_LOOK_S, Cadence
from torchrelay.protocol.messages import WorkerProgress
from torchrelay.protocol.transport.telling import IDLE_S, MOST_TELL_S, STILL_S, TELL_S

RANK = WorkerProgress("n0.w0", 12, 12, "body", False, 99, "R")
SPARE = WorkerProgress("n0.s0", -1, 0, "set-up", False, 0, "S", 60.0, 60.0)


def changed(**fields: object) -> WorkerProgress:
    return dataclasses.replace(RANK, **fields)  # type: ignore[arg-type]  # of any of its fields


@pytest.fixture
def told() -> Cadence:
    """Has told of RANK and SPARE at 10 s."""
    cadence = Cadence()
    assert cadence.is_to_be_told([RANK, SPARE], 10.0)
    return cadence


def test_steps_are_told_once_a_second(told: Cadence) -> None:
    at_s = [
        10.0 + i * CALM_LOOK_S
        for i in range(1, 121)
        if told.is_to_be_told([changed(boundary=12 + i, count=99 + i), SPARE], 10.0 + i * CALM_LOOK_S)
    ]
    assert at_s == [11.0 + i * TELL_S for i in range(60)]


@pytest.mark.parametrize(
    "news",
    [
        changed(phase="finished"),
        changed(phase="standing"),
        changed(process_state="T"),
        changed(still_s=STILL_S),
        changed(idle_s=IDLE_S),
    ],
)
def test_what_a_verdict_could_hang_on_is_told_at_once_and_once(told: Cadence, news: WorkerProgress) -> None:
    assert told.is_to_be_told([news, SPARE], 10.1)
    assert not told.is_to_be_told([news, SPARE], 10.2)
    assert told.is_to_be_told([RANK, SPARE], 10.3)  # and that it is over


def test_the_first_step_and_the_end_of_a_process_are_told_at_once() -> None:
    cadence = Cadence()
    assert cadence.is_to_be_told([changed(boundary=-1, phase="set-up"), SPARE], 10.0)
    assert cadence.is_to_be_told([changed(boundary=0, phase="after"), SPARE], 10.1)
    assert cadence.is_to_be_told([SPARE], 10.2)


def test_a_controller_with_thousands_of_agents_hears_less_of_ranks_that_move_and_as_much_of_others(
    told: Cadence,
) -> None:
    told.take_pace(3.0)
    assert not told.is_to_be_told([changed(count=200), SPARE], 12.9)
    assert told.is_to_be_told([changed(count=200), SPARE], 13.0)
    still = changed(still_s=STILL_S)
    assert told.is_to_be_told([still, SPARE], 13.1)
    assert told.is_to_be_told([still, SPARE], 13.1 + TELL_S)
    told.take_pace(1e6)
    assert told.is_to_be_told([RANK, SPARE], 15.0)
    assert told.is_to_be_told([RANK, SPARE], 15.0 + MOST_TELL_S)


def test_in_a_migration_every_change_is_looked_for_and_told(told: Cadence) -> None:
    assert told.pause_s([RANK, SPARE]) == CALM_LOOK_S
    told.closely = True
    assert told.pause_s([RANK, SPARE]) == CLOSE_LOOK_S
    assert told.is_to_be_told([RANK, SPARE], 10.01)
    assert not told.is_to_be_told([dataclasses.replace(RANK, still_s=0.05), SPARE], 10.05)
    assert told.is_to_be_told([changed(count=100), SPARE], 10.1)
    assert told.is_to_be_told([changed(count=100, waiting=True), SPARE], 10.15)
    told.closely = False
    assert told.pause_s([RANK, SPARE]) == CALM_LOOK_S


def test_beside_a_stopped_process_its_peers_are_looked_at_closely(told: Cadence) -> None:
    peer = dataclasses.replace(RANK, worker="n0.w1")
    stopped = changed(process_state="T")
    assert told.is_to_be_told([stopped, peer], 10.1)
    assert told.pause_s([stopped, peer]) == CLOSE_LOOK_S
    assert told.is_to_be_told([stopped, dataclasses.replace(peer, waiting=True)], 10.15)
