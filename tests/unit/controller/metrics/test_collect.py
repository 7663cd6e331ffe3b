"""A job's state and events as figures, in the same world in which the core is tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.metrics.collect import job_samples, rank_protection, total_samples
from torchrelay.controller.metrics.facts import job_facts
from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.protocol import events as e
from torchrelay.protocol.messages import RankGap
from torchrelay.protocol.metrics import table as t
from torchrelay.protocol.metrics.samples import Histogram, Sample

LABELS = ("team", "job")


def gap(effect: str, *ranks: int) -> RankGap:
    return RankGap(ranks, "kind", effect, "text", "", 0)


def figures(job: FakeJob, tally: JobTally | None = None) -> dict[tuple[str, ...], float | Histogram]:
    facts = job_facts(job.core, 2, job.now_s)
    samples = [*job_samples(LABELS, facts, tally or JobTally(Totals()), job.now_s)]
    return {(s.metric.name, *s.labels[2:]): s.value for s in samples}


def test_each_rank_counts_once_by_the_worst_of_what_it_lacks() -> None:
    gaps = (gap("left", 0, 1), gap("alone", 1, 2), gap("bars-later", 2))
    assert rank_protection("partly", gaps, 4) == {"left": 1, "alone": 1, "bars-later": 1, "any-moment": 1}
    assert rank_protection("unprotected", gaps, 4) == {"nothing": 4}
    assert rank_protection("armed", (), 4) == {"pending": 4}


def test_a_migration_is_seen_in_every_figure_that_it_concerns(tmp_path: Path) -> None:
    job, totals = FakeJob(tmp_path, spares=1), Totals()
    tally = JobTally(totals)
    job.train()
    before = figures(job, tally)
    assert before["torchrelay_job_ranks", "running"] == 3
    assert (before["torchrelay_job_spares", "ready"], before["torchrelay_job_spares_wanted",]) == (1, 1)
    assert before["torchrelay_job_restarts",] == 2
    job.die("n0.w1")
    assert figures(job, tally)["torchrelay_job_ranks", "lost"] == 1
    job.settle()
    for event in job.events:
        tally.take(event, 1.0)
    after = figures(job, tally)
    assert after["torchrelay_job_migrations_total", "committed"] == 1
    assert after["torchrelay_job_ranks", "running"] == 3
    assert after["torchrelay_job_spares", "ready"] == 0
    told = {(s.metric.name, *s.labels): s.value for s in total_samples(totals)}
    assert told["torchrelay_migrations_total", "unplanned", "committed", "process"] == 1
    assert sum(v for k, v in told.items() if k[0] == "torchrelay_migrations_total") == 1
    stops = told["torchrelay_migration_downtime_seconds", "unplanned"]
    assert isinstance(stops, Histogram)
    assert sum(stops.counts) == 1
    finished = next(f for f in job.events if isinstance(f, e.MigrationFinished))
    assert stops.total == pytest.approx(sum(finished.downtime_s.values()))


def test_every_series_of_a_job_is_there_from_the_beginning(tmp_path: Path) -> None:
    names = {metric.name for metric in t.METRICS if t.JOB[0] in metric.labels}
    first = figures(FakeJob(tmp_path, 2))
    assert {key[0] for key in first} == names
    assert len(first) == 59, "docs/metrics.md says how many there are"


def test_a_job_in_which_something_of_ours_failed_says_so(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, 2)
    job.train()
    job.core.set_aside("a fault", job.now_s)
    found = figures(job)
    assert found["torchrelay_job_protection_level", "unprotected"] == 1
    assert found["torchrelay_job_protection_cause", "fault"] == 1
    assert found["torchrelay_job_ranks_by_protection", "nothing"] == 2


def test_what_is_told_of_health_and_rehearsals_is_counted_and_a_cleared_suspicion_is_no_migration() -> None:
    totals = Totals()
    tally = JobTally(totals)
    verdict = e.HealthVerdict("migrate", "xid", "n0", "GPU-1", (1,), "observed", "device", "xid 79")
    cleared = e.MigrationFinished("m1", "unplanned", "cleared", 1, "", (1,), (), 0, {"detect": 1.0}, 0.0, 0, 1, "moves")
    rehearsed = e.RehearsalFinished(0, 2, 5, "n0.s0", "same", "", (), 1.0)
    for event in (verdict, cleared, rehearsed, e.MoveNotMade("", 1, "a", "b"), e.IncidentKept("m2", "", "", "", "")):
        tally.hear(e.to_job_event(event, 1.0))
    told = {(s.metric.name, *s.labels): s.value for s in total_samples(totals)}
    assert told["torchrelay_health_verdicts_total", "migrate", "observed"] == 1
    assert told["torchrelay_rehearsals_total", "same"] == 1
    assert sum(v for k, v in told.items() if k[0] == "torchrelay_migrations_total") == 0
    assert (tally.incidents, tally.moves_not_made) == (1, 1)


def test_a_sample_keeps_to_the_table() -> None:
    with pytest.raises(ValueError, match="level cannot be 'half'"):
        Sample(t.JOB_PROTECTION, (*LABELS, "half"), 1.0)
