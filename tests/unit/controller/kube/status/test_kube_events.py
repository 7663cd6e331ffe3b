"""Events for `kubectl describe`."""

from __future__ import annotations

import pytest
from support.kube_world import World, in_world

from torchrelay.controller.kube.client.api import EVENTS
from torchrelay.controller.kube.decide.ladder import REFUSED, TAKEN, Tried
from torchrelay.controller.kube.status.kube_events import (
    MOST_BYTES,
    KubeEvent,
    SparesEvents,
    event,
    events_of_rungs,
    tell,
)
from torchrelay.protocol import events as e

STARTED = e.MigrationStarted("m1", "unplanned", 1, "killed", 1)


def test_losses_and_failures_are_warnings_and_plans_are_not() -> None:
    planned = e.MigrationStarted("m1", "planned", 1, "a fan", 1)
    assert [t.warning for t in (tell(STARTED, 1.0), tell(planned, 1.0)) if t] == [True, False]
    assert [t.warning for code in (0, 1) if (t := tell(e.JobFinished(code, "why"), 1.0))] == [False, True]
    assert tell(e.Log("info", "x"), 1.0) is None


def test_each_rung_is_told_with_its_reason() -> None:
    told = events_of_rungs([Tried("next-spare", REFUSED, "none"), Tried("checkpoint", TAKEN, "/c/20")], "m1", 1.0)
    assert [(t.warning, t.reason, t.message) for t in told] == [
        (True, "RungRefused", "next-spare: none"),
        (False, "RungTaken", "checkpoint: /c/20"),
    ]


def test_a_message_is_as_long_as_the_api_server_takes_it() -> None:
    made = event(KubeEvent(True, "R", "\u00e9" * MOST_BYTES, 0.0), "Migration", "ns", "m", "u")
    assert len(made["message"].encode()) == MOST_BYTES


def test_job_and_migration_are_told_once_and_decisions_only_to_the_migration() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        for occurrence in (STARTED, e.Decision("m1", "spare s takes over")):
            w.run.story.take(e.to_job_event(occurrence, 1000.0))
        for _ in range(2):
            await w.status_writer.write(w.run)
        told = [
            (o["involvedObject"]["kind"], o["reason"])
            for o in w.api.all(EVENTS)
            if o["reason"] not in ("Armed", "Protected", "SparesReady", "NoSpare")
        ]
        assert sorted(told) == [
            ("Migration", "Decision"),
            ("Migration", "MigrationStarted"),
            ("TrainingJob", "MigrationStarted"),
        ]
        assert all(o["involvedObject"]["uid"] for o in w.api.all(EVENTS))

    in_world(test)


def test_an_api_server_that_refuses_events_holds_nothing_up() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        w.api.refused["Event"] = "events are full"
        w.run.story.take(e.to_job_event(STARTED, 1000.0))
        await w.status_writer.write(w.run)
        assert w.run.story.kube_events == []

    in_world(test)


def verdict(outcome: str, quarantine: str = "no", ranks: tuple[int, ...] = (1,)) -> e.HealthVerdict:
    return e.HealthVerdict("migrate", "xid-79", "gpu-7", "GPU-5d0a", ranks, outcome, quarantine, "XID 79")


@pytest.mark.parametrize(
    ("what", "reason", "says"),
    [
        (verdict("observed"), "Observed", "would migrate rank 1: XID 79"),
        (verdict("refused"), "VerdictRefused", "migrate rank 1: XID 79"),
        (verdict("refused", "node", ()), "VerdictRefused", "migrate: XID 79; gpu-7 is given no rank any more"),
        (verdict("done", "device"), "Quarantined", "GPU-5d0a is given no rank any more: XID 79"),
        (verdict("done", "node"), "Quarantined", "gpu-7 is given no rank any more: XID 79"),
        (
            e.IncidentKept("m1", "", "protected", "all ranks are armed", "no spare could join"),
            "PromiseNotKept",
            "the job was protected (all ranks are armed), and yet: no spare could join",
        ),
    ],
)
def test_what_needs_a_person_is_a_warning(what: e.Occurrence, reason: str, says: str) -> None:
    told = tell(what, 1.0)
    assert told is not None
    assert (told.warning, told.reason, told.message, told.for_job) == (True, reason, says, True)


def test_what_a_migration_tells_by_itself_and_what_is_only_watched_is_not_told_twice() -> None:
    assert tell(verdict("done"), 1.0) is None
    assert tell(verdict("told"), 1.0) is None


def test_the_end_of_a_quarantine_is_told_with_who_has_cleared_it() -> None:
    told = tell(e.QuarantineCleared("gpu-7", "new fan", "alice"), 1.0)
    assert told == KubeEvent(False, "QuarantineCleared", "gpu-7 may be used again: new fan (cleared by alice)", 1.0)


def test_that_spares_are_there_or_used_up_is_told_once_each_time() -> None:
    teller = SparesEvents()
    changes = [(1, 0, 1), (1, 1, 0), (1, 1, 0), (1, 0, 0), (1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 1), (0, 0, 0)]
    told = [teller.tell(e.SparesChanged(*numbers, "no node has room"), float(n)) for n, numbers in enumerate(changes)]
    assert [(n, t.warning, t.reason) for n, t in enumerate(told) if t is not None] == [
        (1, False, "SparesReady"),
        (3, True, "NoSpare"),
        (6, False, "SparesReady"),
    ]
    assert told[3] is not None
    assert told[3].message == "no spare is ready: no node has room; a rank that is lost now cannot move to one"


def test_the_story_of_a_job_tells_of_its_spares_and_of_promises() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.run.story.kube_events.clear()
        incident = e.IncidentKept("m1", "", "protected", "armed", "no spare could join")
        for occurrence in (e.SparesChanged(3, 0, 0, "no room"), incident):
            w.run.story.take(e.to_job_event(occurrence, 1000.0))
        assert [t.reason for t in w.run.story.kube_events] == ["NoSpare", "PromiseNotKept"]

    in_world(test)


@pytest.mark.parametrize(
    ("count", "by", "words"),
    [
        (2, "alice", "there are to be 3 spares from now on, 2 more, asked for by alice"),
        (-1, "", "there are to be 3 spares from now on, 1 fewer"),
    ],
)
def test_who_has_asked_for_more_or_fewer_spares_is_told(count: int, by: str, words: str) -> None:
    told = tell(e.SparesAsked(count, "", 3, by), 1.0)
    assert told is not None
    assert (told.reason, told.message, told.warning) == ("SparesAsked", words, False)
