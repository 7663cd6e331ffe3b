from __future__ import annotations

import dataclasses

import pytest

from torchrelay.protocol.events import JobFinished, JobStarted, MigrationFinished, MigrationStarted, ProgressMade
from torchrelay.protocol.metrics.account import Account
from torchrelay.protocol.metrics.table import REDONE, SET_UP, STOPPED, USEFUL

STARTED = JobStarted("run", 2, 1, ("n0",))
FINISHED = MigrationFinished("m1", "unplanned", "committed", 1, "n0.s0", (1,), ("n0.s0",), 0, {}, 0.0, 0, 1, "")


def at(boundary: int) -> ProgressMade:
    return ProgressMade(boundary, 1.0, 2, 1)


def moved(redone: int, stopped_s: float, outcome: str = "committed") -> MigrationFinished:
    return dataclasses.replace(
        FINISHED, steps_redone=redone, downtime_s={"detect": stopped_s / 2, "prepare": stopped_s / 2}, outcome=outcome
    )


def account(*told: tuple[float, object]) -> Account:
    made = Account()
    for time_s, event in told:
        made.take(event, time_s)  # type: ignore[arg-type]
    return made


BEGIN = MigrationStarted("m1", "unplanned", 1, "killed", 1)


def test_set_up_ends_at_the_first_boundary_and_steps_are_useful() -> None:
    a = account((100.0, STARTED), (110.0, at(0)), (115.0, at(10)), (120.0, at(20)))
    assert a.seconds == {SET_UP: 10.0, USEFUL: 10.0, REDONE: 0.0, STOPPED: 0.0}
    assert a.steps == 20
    assert a.goodput(120.0) == pytest.approx(0.5)


def test_a_migration_counts_as_it_was_measured_and_the_steps_after_it_as_redone() -> None:
    a = account((0.0, STARTED), (10.0, at(0)), (20.0, at(10)), (21.0, BEGIN), (25.0, moved(2, 3.0)), (30.0, at(14)))
    # 20 to 30: 3 s stopped, then 4 steps in 7 s, half of them for the second time
    assert a.seconds == pytest.approx({SET_UP: 10.0, STOPPED: 3.0, REDONE: 3.5, USEFUL: 13.5})
    assert (a.steps, a.steps_redone) == (14, 2)


def test_nothing_counts_while_a_migration_is_under_way() -> None:
    a = account((0.0, STARTED), (0.0, at(0)), (10.0, at(10)), (11.0, BEGIN), (18.0, at(11)))
    assert a.seconds[USEFUL] == 10.0
    a.take(moved(1, 5.0), 19.0)
    assert a.seconds == pytest.approx({SET_UP: 0.0, STOPPED: 5.0, REDONE: 4.0, USEFUL: 10.0})


def test_ranks_that_go_back_to_copies_do_steps_again_until_they_are_where_they_were() -> None:
    a = account((0.0, STARTED), (0.0, at(0)), (10.0, at(10)), (11.0, BEGIN), (13.0, at(6)), (14.0, moved(4, 4.0)))
    assert a.boundary == 6
    a.take(at(11), 19.0)
    assert a.seconds == pytest.approx({SET_UP: 0.0, STOPPED: 4.0, REDONE: 4.0, USEFUL: 11.0})
    assert a.steps == 11


@pytest.mark.parametrize("outcome", ["committed", "abandoned", "checkpoint", "cleared"])
def test_no_moment_counts_twice_and_no_number_falls(outcome: str) -> None:
    a, before = Account(), dict.fromkeys((USEFUL, REDONE, STOPPED, SET_UP), 0.0)
    told = [(0.0, STARTED), (5.0, at(0)), (9.0, at(4)), (9.5, BEGIN), (9.7, at(3)), (12.0, moved(1, 50.0, outcome))]
    for time_s, event in [*told, (12.5, at(4)), (14.0, at(9)), (13.0, at(10)), (20.0, JobFinished(0, ""))]:
        a.take(event, time_s)  # type: ignore[arg-type]
        assert all(a.seconds[use] >= before[use] for use in before)
        assert sum(a.seconds.values()) == pytest.approx(a.until_s)
        assert sum(a.seconds.values()) <= time_s + 1.0  # the clock was set back by a second
        before = dict(a.seconds)


def test_a_job_that_hangs_loses_goodput_and_one_that_is_over_keeps_it() -> None:
    a = account((0.0, STARTED), (0.0, at(0)), (10.0, at(10)))
    assert (a.goodput(10.0), a.goodput(20.0)) == (1.0, 0.5)
    a.take(JobFinished(0, ""), 20.0)
    assert a.goodput(1000.0) == 0.5


def test_before_anything_happened_there_is_no_goodput() -> None:
    assert Account().goodput(5.0) == 0.0
