"""What a job's events say, as its Migration and TrainingJob resources."""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.kube.status.losses import Losses
from torchrelay.controller.kube.status.status_builder import StatusBuilder, pod_of
from torchrelay.controller.kube.status.time_used import TimeUsed
from torchrelay.controller.kube.status.training_job_status import job_status
from torchrelay.controller.status import JobSummary, RankState
from torchrelay.protocol import events as e

HOLDERS = {0: "train-0:aa.1", 1: "train-1:bb.1"}
STARTED = e.MigrationStarted("m1", "unplanned", 1, "rank 1 was killed by SIGKILL", 1)


def finished(outcome: str, reason: str, kind: str = "unplanned") -> e.MigrationFinished:
    down = {"detect": 0.25, "transfer": 0.5}
    return e.MigrationFinished("m1", kind, outcome, 1, "spare:cc.1", (1,), ("spare:cc.1",), 1, down, 0.0, 10, 1, reason)


class Told:
    def __init__(self) -> None:
        self.story = StatusBuilder(
            "train", "train-ab12", lambda: HOLDERS, lambda rank: (40, "no spare is left"), Losses()
        )
        self.time_s = 1000.0

    def __call__(self, *what: e.Occurrence) -> StatusBuilder:
        for occurrence in what:
            self.story.take(e.to_job_event(occurrence, self.time_s))
            self.time_s += 0.5
        return self.story


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_migration_is_made_with_its_reason_and_who_it_is_about(told: Told) -> None:
    (migration,) = told(STARTED).migrations
    assert migration.name == "train-ab12-m1"
    assert migration.spec == {"job": "train", "rank": 1, "reason": STARTED.reason}
    assert not migration.exists
    assert (migration.status["fromPod"], migration.status["startedAt"]) == ("train-1", "1970-01-01T00:16:40Z")


def test_phases_have_their_times_and_how_long_they_took(told: Told) -> None:
    phases = [
        e.PhaseChanged("m1", "fence", 0.0),
        e.PhaseChanged("m1", "prepare", 0.125),
        e.PhaseChanged("m1", "over", 0.5),
    ]
    (migration,) = told(STARTED, *phases).migrations
    assert [(p["phase"], p["seconds"]) for p in migration.status["phases"]] == [("fence", 0.125), ("prepare", 0.5)]
    assert migration.status["phase"] == "over"


def test_what_is_committed_keeps_why_it_began(told: Told) -> None:
    (migration,) = told(STARTED, finished("committed", "all ranks have verified")).migrations
    s = migration.status
    assert (s["reason"], s["decisions"]) == (STARTED.reason, ["all ranks have verified"])
    assert (s["outcome"], s["toPod"], s["downtimeSeconds"]) == ("committed", "spare", 0.75)
    assert s["conditions"][0]["status"] == "True"


def test_what_is_abandoned_says_why(told: Told) -> None:
    (migration,) = told(STARTED, finished("abandoned", "no spare is left for rank 1")).migrations
    assert migration.status["reason"] == "no spare is left for rank 1"
    assert migration.status["conditions"][0]["status"] == "False"


def test_who_was_replaced_is_handed_over_once_it_is_committed(told: Told) -> None:
    (left,) = told(STARTED, finished("committed", "done")).left
    assert (left.worker, left.rank, left.planned) == ("train-1:bb.1", 1, False)


def test_a_pod_whose_rank_stays_in_it_is_not_handed_over(told: Told) -> None:
    done = dataclasses.replace(
        finished("committed", "done", "rollback"), ranks=(0, 1), spares=("train-0:aa.2", "spare:cc.1")
    )
    assert [left.worker for left in told(STARTED, done).left] == ["train-1:bb.1"]


def test_a_migration_of_several_ranks_names_all_and_one_of_a_single_rank_that_one(told: Told) -> None:
    both = dataclasses.replace(finished("committed", "done"), ranks=(1, 2))
    assert told(STARTED, both).migrations[0].status["ranks"] == [1, 2]
    assert "ranks" not in Told()(STARTED, finished("committed", "done")).migrations[0].status


def test_nobody_was_replaced_by_what_came_to_nothing(told: Told) -> None:
    assert told(STARTED, finished("abandoned", "no")).left == []


def test_a_migration_that_a_person_asked_for_keeps_its_name(told: Told) -> None:
    told.story.adopt("m1", "wish")
    (migration,) = told(STARTED).migrations
    assert (migration.name, migration.exists) == ("wish", True)


def test_the_name_may_come_after_the_beginning(told: Told) -> None:
    told(STARTED).adopt("m1", "wish")
    (migration,) = told.story.migrations
    assert (migration.name, migration.exists, migration.status["rank"]) == ("wish", True, 1)


def test_a_refusal_is_an_end(told: Told) -> None:
    told.story.refuse("wish", "planned", "there is no rank 7", 1000.0)
    (migration,) = told.story.migrations
    assert migration.is_over
    assert migration.status["reason"] == "there is no rank 7"


def test_a_job_says_where_its_ranks_are(told: Told) -> None:
    ranks = tuple(RankState(r, w, "running") for r, w in HOLDERS.items())
    status = JobSummary(2, 3, 5, 1, 1, "protected", "any rank can be replaced", 2, "m2", 0.25, {"running": 2}, ranks)
    told(STARTED)
    used = TimeUsed(12.34, 0.5)
    written = job_status(status, told.story, {"train-0": "n1", "train-1": "n2"}.__getitem__, (), "", used=used)
    assert (written["stepSeconds"], written["usefulSeconds"], written["redoneSeconds"]) == (0.25, 12.3, 0.5)
    assert [(r["pod"], r["node"]) for r in written["ranks"]] == [("train-0", "n1"), ("train-1", "n2")]
    assert (written["phase"], written["step"], written["protection"]) == ("Migrating", 5, "protected")


def test_a_worker_names_its_pod() -> None:
    assert pod_of("train-1:0a1b2c3d.1") == "train-1"


def test_a_checkpoint_that_was_asked_for_names_no_rank_and_costs_no_loss(told: Told) -> None:
    began = e.MigrationStarted("m1", "save", -1, "before the maintenance", 1, "asked")
    done = e.MigrationFinished(
        "m1", "save", "saved", -1, "", (), (), 0, {"checkpoint": 0.5}, 0.0, 0, 1, "it is in /jit"
    )
    (migration,) = told(began, done).migrations
    assert "rank" not in migration.status
    assert (migration.status["kind"], migration.status["outcome"], migration.status["reason"]) == (
        "save",
        "saved",
        "it is in /jit",
    )
    assert migration.status["conditions"][0]["status"] == "True"
    assert told.story.losses.as_status() == []
