"""What the time of a job was used for, by all controllers that have led it."""

from __future__ import annotations

import pytest

from torchrelay.controller.kube.jobs.remembered import recall
from torchrelay.controller.kube.status.time_used import TimeUsed, read_time_used
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.events import JobRestarted, ProgressMade, RestartDone
from torchrelay.protocol.metrics.account import Account


def watched(*boundaries: int) -> Account:
    """By a controller that is told of a boundary each second."""
    account = Account()
    for second, boundary in enumerate(boundaries):
        account.take(ProgressMade(boundary, 1.0, 2, 1), float(second))
    return account


def test_a_controller_goes_on_counting_where_the_one_before_it_ended() -> None:
    first = TimeUsed().plus(watched(0, 1, 2, 3))
    assert first == TimeUsed(3.0, 0.0)
    then = recall(first.as_status()).used.plus(watched(5, 6))
    assert then == TimeUsed(4.0, 0.0)


def test_steps_that_a_restart_has_taken_back_are_not_of_use_a_second_time() -> None:
    account = Account()
    account.take(JobRestarted(1, "jit-checkpoint", "/jit", 4, 2, "rank 1 was lost", ()), 100.0)
    account.take(ProgressMade(5, 1.0, 2, 1), 111.0)
    account.take(RestartDone(1, 10.0), 111.0)
    for boundary in (6, 7, 8):
        account.take(ProgressMade(boundary, 1.0, 2, 1), 106.0 + boundary)
    assert TimeUsed(6.0, 0.0).plus(account) == TimeUsed(8.0, 2.0)


def test_an_older_controller_has_said_nothing_and_nonsense_is_refused() -> None:
    assert read_time_used({}) == TimeUsed()
    with pytest.raises(FatalError):
        recall({"usefulSeconds": "much"})
