"""Failures that are drawn: as many as the rate says, of the causes in their shares, the same for a seed."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest

from torchrelay.cli.spare_plan.causes import CAUSES, GPU_HOURS, Takes
from torchrelay.cli.spare_plan.trace import HOUR_S, ClusterSite, draw_trace

SITE = ClusterSite(gpus=1000, gpus_per_node=8, hours_per_failure=10_000.0)
YEAR_S = 365 * 86_400.0


def test_the_causes_are_those_of_the_published_run() -> None:
    assert sum(cause.count for cause in CAUSES) == 419
    assert round(GPU_HOURS / 419) == 50_677


def test_a_seed_draws_the_same() -> None:
    assert draw_trace(SITE, YEAR_S, 3) == draw_trace(SITE, YEAR_S, 3) != draw_trace(SITE, YEAR_S, 4)


def test_failures_come_in_order_at_their_rate() -> None:
    trace = draw_trace(SITE, YEAR_S, 0)
    assert len(trace) == pytest.approx(876, rel=0.1)  # one every ten hours
    assert [f.at_s for f in trace] == sorted(f.at_s for f in trace)
    assert trace[-1].at_s < YEAR_S
    repairs = [f.repair_s for f in trace]
    assert statistics.fmean(repairs) == pytest.approx(24 * HOUR_S, rel=0.15)


def test_each_cause_takes_what_it_takes_and_racks_go_together() -> None:
    trace = draw_trace(SITE, 20 * YEAR_S, 0)
    seen = Counter(f.cause.name for f in trace)
    assert seen["faulty GPU"] / len(trace) == pytest.approx(148 / 419, rel=0.05)
    taken = {takes: {f.gpus for f in trace if f.cause.takes is takes} for takes in Takes}
    assert taken == {Takes.DEVICE: {1}, Takes.NODE: {8, 32}, Takes.NOTHING: {0}}
    nodes = [f for f in trace if f.cause.takes is Takes.NODE and not f.cause.is_announced]
    assert sum(f.gpus == 32 for f in nodes) / len(nodes) == pytest.approx(0.05, rel=0.3)
    assert {f.gpus for f in trace if f.cause.name == "host maintenance"} == {8}
