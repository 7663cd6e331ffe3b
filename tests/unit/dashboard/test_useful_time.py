"""Useful time divided by wall time."""

from __future__ import annotations

import pytest
from support import told_runs as t

from torchrelay.protocol import events as e


def test_time_is_split_into_training_set_up_standstill_and_steps_done_again() -> None:
    told = [*t.begins(), *t.progress(20, 60, 0, 3.0), *t.kill(60), *t.progress(61.6, 120, 120, 3.0)]
    spent = t.record_of(told).useful_time(t.BEGAN_S + 120)
    assert spent.wall_s == 120.0
    assert spent.set_up_s == 20.0
    assert spent.standstill_s == pytest.approx(1.51)  # of 1.58 s, 0.07 s lie before the last step that was told
    assert spent.redone_s == pytest.approx(0.59)  # until the next boundary that was told
    assert spent.useful_s == pytest.approx(120 - 20 - 1.51 - 0.59 - 0.4)
    assert spent.open_s == pytest.approx(0.4)  # since the latest boundary
    assert spent.share_since_first_step == pytest.approx(spent.useful_s / 100)


def test_a_standstill_that_goes_on_counts_already() -> None:
    spent = t.record_of([*t.begins(), *t.kill(60)[:5]]).useful_time(t.BEGAN_S + 70)
    assert spent.standstill_s == pytest.approx(10.0)


def test_preparing_beside_training_is_no_standstill() -> None:
    moving = t.move(60, "m1", 2, "n0.w2", "n0.s0", "fan")[:3]
    assert t.record_of([*t.begins(), *moving]).useful_time(t.BEGAN_S + 61).standstill_s == 0.0


def test_nothing_counts_behind_the_end() -> None:
    record = t.record_of([*t.begins(), (t.BEGAN_S + 80, e.JobFinished(0, ""))])
    assert record.useful_time(t.BEGAN_S + 5000).wall_s == 80.0


def test_a_restart_costs_the_time_until_all_trained_again_and_the_steps_before() -> None:
    told = [
        *t.begins(),
        *t.progress(20, 60, 0, 3.0),
        (t.BEGAN_S + 60, e.JobFell(1, 75, "no spare", 120, False, "", -1, "")),
        (t.BEGAN_S + 61, e.JobRestarted(1, "script", "", -1, 120, "no spare", ())),
    ]
    assert t.record_of(told).useful_time(t.BEGAN_S + 75).restart_s == pytest.approx(15.0)
    told += [(t.BEGAN_S + 80, e.RestartDone(1, 20.0)), *t.progress(80, 120, 0, 3.0)]
    spent = t.record_of(told).useful_time(t.BEGAN_S + 120)
    assert spent.restart_s == 20.0
    assert spent.redone_s == pytest.approx(40.0)
    assert spent.useful_s == pytest.approx(40.0)


def test_before_the_job_begins_there_is_no_share() -> None:
    assert t.record_of([]).useful_time(5.0).share == 0.0
