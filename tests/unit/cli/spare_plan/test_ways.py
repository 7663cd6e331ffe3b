"""What a failure costs each way to answer it, worked out by hand."""

from __future__ import annotations

import pytest

from torchrelay.cli.spare_plan.causes import Cause, Takes
from torchrelay.cli.spare_plan.trace import ClusterSite, DrawnFailure
from torchrelay.cli.spare_plan.ways import PlayedTrace, Way, WayCosts, checkpoint_interval_s, play

SITE = ClusterSite(gpus=64, gpus_per_node=8, hours_per_failure=1000.0)
COSTS = WayCosts(
    step_s=10.0,
    migrate_s=20.0,
    planned_s=5.0,
    restart_s=600.0,
    checkpoint_s=1e-9,
    checkpoint_every_s=1000.0,
    drop_s=4.0,
    rejoin_s=100.0,
    preempt_s=60.0,
    group_gpus=16,
)
END_S = 100_000.0
GPU = Cause("gpu", 1, Takes.DEVICE)
MAINTENANCE = Cause("maintenance", 1, Takes.NODE, is_announced=True)
BUG = Cause("bug", 1, Takes.NOTHING, is_script=True)
TIMEOUT = Cause("timeout", 1, Takes.NOTHING)


def failure(cause: Cause, gpus: int, at_s: float = 5300.0, repair_s: float = 50_000.0) -> DrawnFailure:
    return DrawnFailure(at_s, cause, gpus, repair_s)


def played(way: Way, *failures: DrawnFailure, spares: int = 8) -> PlayedTrace:
    return play(way, spares, failures, SITE, COSTS, END_S)


@pytest.mark.parametrize("way", Way)
def test_without_failures_all_the_time_is_useful(way: Way) -> None:
    outcome = played(way)
    assert outcome.effective == pytest.approx(1.0)
    assert outcome.goodput == pytest.approx(64 / 72)


@pytest.mark.parametrize(
    ("way", "cause", "gpus", "lost_s"),
    [
        (Way.TORCHRELAY, GPU, 1, 20 + 10),
        (Way.TORCHRELAY, TIMEOUT, 0, 20 + 10),
        (Way.TORCHRELAY, MAINTENANCE, 8, 5),
        (Way.TORCHRELAY, BUG, 0, 600 + 300),
        (Way.CHECKPOINT, GPU, 1, 600 + 300),
        (Way.CHECKPOINT, MAINTENANCE, 8, 600 + 300),
        (Way.CHECKPOINT, BUG, 0, 600 + 300),
        (Way.PREEMPT, GPU, 1, 20 + 60 + 10),
        (Way.PREEMPT, TIMEOUT, 0, 20 + 10),
        (Way.PREEMPT, MAINTENANCE, 8, 5),
        (Way.DROP, BUG, 0, 600 + 300),
    ],
)
def test_one_failure_with_spares_costs_what_it_says(way: Way, cause: Cause, gpus: int, lost_s: float) -> None:
    outcome = played(way, failure(cause, gpus))
    assert outcome.lost_s == pytest.approx(lost_s)
    assert outcome.useful_s == pytest.approx(END_S - lost_s)
    assert outcome.waited_s == 0.0


def test_without_a_spare_the_job_stands_until_what_it_lost_is_repaired() -> None:
    outcome = played(Way.TORCHRELAY, failure(GPU, 1), spares=0)
    assert outcome.waited_s == pytest.approx(50_000.0)
    assert outcome.useful_s == pytest.approx(END_S - 50_000 - 30)


def test_a_device_that_is_repaired_is_the_next_spare() -> None:
    first, second = failure(GPU, 1, 1000.0, 500.0), failure(GPU, 1, 3000.0, 90_000.0)
    assert played(Way.TORCHRELAY, first, second, spares=1).waited_s == 0.0
    late = failure(GPU, 1, 1200.0, 90_000.0)
    assert played(Way.TORCHRELAY, first, late, spares=1).waited_s == pytest.approx(300.0)


def test_what_waits_first_is_served_first() -> None:
    node, device = failure(MAINTENANCE, 8, 1000.0, 9000.0), failure(GPU, 1, 2000.0, 100.0)
    outcome = played(Way.TORCHRELAY, node, device, spares=0)
    assert outcome.waited_s == pytest.approx(9000.0 + 100.0)  # of the first nothing is over for the second


def test_a_group_that_is_dropped_costs_its_share_until_it_takes_part_again() -> None:
    with_spare = played(Way.DROP, failure(GPU, 1))
    assert with_spare.lost_s == pytest.approx(4.0)
    assert with_spare.waited_s == pytest.approx((100 - 4) / 4)
    without = played(Way.DROP, failure(GPU, 1), spares=0)
    assert without.waited_s == pytest.approx((50_000 + 100 - 4) / 4)


def test_a_rack_takes_as_many_groups_as_it_has_devices_of() -> None:
    rack = Cause("rack", 1, Takes.NODE)
    outcome = played(Way.DROP, failure(rack, 32), spares=0)
    assert outcome.waited_s == pytest.approx((50_000 + 100 - 4) / 2)


def test_what_is_taken_from_others_counts_as_paid() -> None:
    outcome = played(Way.PREEMPT, failure(GPU, 4), spares=0)
    assert outcome.taken_gpu_s == pytest.approx(4 * 50_000)
    assert outcome.goodput == pytest.approx((END_S - 90) * 64 / (64 * END_S + 200_000))
    at_the_end = played(Way.PREEMPT, failure(GPU, 4, at_s=END_S - 1000), spares=0)
    assert at_the_end.taken_gpu_s == pytest.approx(4 * 1000)


def test_what_fails_while_nobody_trains_costs_no_second_pause_before_the_first_is_over() -> None:
    first, second = failure(BUG, 0, 5300.0), failure(BUG, 0, 5400.0)
    outcome = played(Way.CHECKPOINT, first, second)
    assert outcome.lost_s == pytest.approx(600 + 300 + 600)


def test_the_interval_is_young_s_by_how_often_a_way_needs_a_checkpoint() -> None:
    costs = WayCosts(checkpoint_s=30.0)
    every_s = checkpoint_interval_s(Way.CHECKPOINT, SITE, costs)
    assert every_s == pytest.approx((2 * 30 * 1000 / 64 * 3600) ** 0.5)
    rarer_s = checkpoint_interval_s(Way.TORCHRELAY, SITE, costs)
    assert rarer_s == pytest.approx(every_s * (419 / 56) ** 0.5)
    assert checkpoint_interval_s(Way.DROP, SITE, COSTS) == 1000.0


def test_no_time_is_counted_twice_or_left_out() -> None:
    failures = [
        failure(c, g, at_s) for at_s, c, g in ((3e3, GPU, 1), (9e3, BUG, 0), (99e3, GPU, 1), (99.9e3, MAINTENANCE, 8))
    ]
    for way in Way:
        outcome = played(way, *failures, spares=2)
        assert outcome.useful_s + outcome.lost_s + outcome.waited_s == pytest.approx(END_S), way
