"""Events for `kubectl describe`."""

from __future__ import annotations

from support.kube_world import World, in_world

from torchrelay.controller.kube.client.api import EVENTS
from torchrelay.controller.kube.decide.ladder import REFUSED, TAKEN, Tried
from torchrelay.controller.kube.status.kube_events import MOST_BYTES, Telling, event, tell, tell_rungs
from torchrelay.protocol import events as e

STARTED = e.MigrationStarted("m1", "unplanned", 1, "killed", 1)


def test_losses_and_failures_are_warnings_and_plans_are_not() -> None:
    planned = e.MigrationStarted("m1", "planned", 1, "a fan", 1)
    assert [t.warning for t in (tell(STARTED, 1.0), tell(planned, 1.0)) if t] == [True, False]
    assert [t.warning for code in (0, 1) if (t := tell(e.JobFinished(code, "why"), 1.0))] == [False, True]
    assert tell(e.Log("info", "x"), 1.0) is None


def test_each_rung_is_told_with_its_reason() -> None:
    told = tell_rungs([Tried("next-spare", REFUSED, "none"), Tried("checkpoint", TAKEN, "/c/20")], "m1", 1.0)
    assert [(t.warning, t.reason, t.message) for t in told] == [
        (True, "RungRefused", "next-spare: none"),
        (False, "RungTaken", "checkpoint: /c/20"),
    ]


def test_a_message_is_as_long_as_the_api_server_takes_it() -> None:
    made = event(Telling(True, "R", "\u00e9" * MOST_BYTES, 0.0), "Migration", "ns", "m", "u")
    assert len(made["message"].encode()) == MOST_BYTES


def test_job_and_migration_are_told_once_and_decisions_only_to_the_migration() -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        for occurrence in (STARTED, e.Decision("m1", "spare s takes over")):
            w.run.story.take(e.to_job_event(occurrence, 1000.0))
        for _ in range(2):
            await w.scribe.write(w.run)
        told = [
            (o["involvedObject"]["kind"], o["reason"])
            for o in w.api.all(EVENTS)
            if o["reason"] not in ("Armed", "Protected")
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
        await w.scribe.write(w.run)
        assert w.run.story.tellings == []

    in_world(test)
