"""What the dashboard beside the controller is told, and that no job is concerned by it."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import time
from pathlib import Path

import pytest
from support.kube_world import KEY, LAUNCH, World, in_world

from torchrelay.controller.kube import event_feed
from torchrelay.controller.kube.event_feed import EventFeed, FeedListener, feed_served
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol.kube import job_feed as f
from torchrelay.protocol.kube.annotations import PodAnnotations as Asked
from torchrelay.protocol.messages import JobEvent

LEADS = f.FeedLeader("c-1", "c-1")


def news(listener: FeedListener, world: World | None) -> list[f.FeedLine]:
    lines = b"".join(listener.news(LEADS, world.ledger if world is not None else None))
    return [f.parse(line) for line in lines.splitlines()]


def named(lines: list[f.FeedLine]) -> list[str]:
    return [line.event.name for line in lines if isinstance(line, f.JobTold)]


def say(run: JobRun, name: str, n: int = 0) -> None:
    run.relay.told.add(JobEvent(float(n), name, "{}"))


def test_a_listener_hears_who_leads_which_jobs_there_are_and_what_they_tell_each_once() -> None:
    async def test(w: World) -> None:
        listener = FeedListener()
        say(w.run, "spares")
        say(w.run, "progress")
        first = news(listener, w)
        assert first[:3] == [LEADS, f.Barred(()), f.JobSeen("team", "llama", w.run.told_as, "", False)]
        assert named(first) == ["spares", "progress"]
        assert news(listener, w) == []
        say(w.run, "phase")
        say(w.run, "progress", 1)
        say(w.run, "progress", 2)
        assert named(news(listener, w)) == ["phase", "progress"]  # of what passes the newest alone

    in_world(test)


def test_what_is_long_or_for_the_dashboard_alone_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(w: World) -> None:
        listener = FeedListener()
        with caplog.at_level(logging.INFO):
            for name in ("devices_used", "phase"):
                w.run._hear(JobEvent(1.0, name, "{}"))
                say(w.run, name)
        assert [r.getMessage() for r in caplog.records if "{}" in r.getMessage()] == ["team/llama: phase {}"]
        assert named(news(listener, w)) == ["devices_used", "phase"]

    in_world(test)


def test_a_replica_that_waits_tells_who_leads_and_nothing_else() -> None:
    assert [*FeedListener().news(f.FeedLeader("c-2", "c-1"), None)] == [f.pack(f.FeedLeader("c-2", "c-1"))]


def test_the_feed_says_now_and_then_that_it_is_there() -> None:
    now_s = [0.0]
    listener = FeedListener(lambda: now_s[0])
    assert news(listener, None) == [LEADS]
    now_s[0] = f.STILL_THERE_S - 0.1
    assert news(listener, None) == []
    now_s[0] = f.STILL_THERE_S
    assert news(listener, None) == [LEADS]


def test_the_end_of_a_job_is_heard_also_where_it_is_forgotten_at_once() -> None:
    async def test(w: World) -> None:
        listener = FeedListener()
        news(listener, w)
        say(w.run, "job_finished")
        del w.ledger.runs[KEY]
        last = news(listener, w)
        assert named(last) == ["job_finished"]
        assert last[-1] == f.JobGone("team", "llama")
        assert news(listener, w) == []
        w.ledger.enter(w.run)
        say(w.run, "spares")
        assert isinstance(news(listener, w)[0], f.JobSeen)

    in_world(test)


def test_a_job_that_begins_again_is_told_to_its_end_and_then_goes_on_as_the_same() -> None:
    async def test(w: World) -> None:
        listener = FeedListener()
        news(listener, w)
        say(w.run, "job_fell")
        again = w.ledger.begin_again(w.run, RestartPlan({}, directory="/jit", step=3), "so", "jit-checkpoint")
        again.relay.end(1, "enough")  # what was put into the outbox is told with it
        told = news(listener, w)
        assert named(told)[0] == "job_fell"
        assert [line.lineage for line in told if isinstance(line, f.JobSeen)] == [w.run.told_as]
        restarted = next(
            line.event for line in told if isinstance(line, f.JobTold) and line.event.name == "job_restarted"
        )
        fields = json.loads(restarted.fields_json)
        assert (fields["rung"], fields["directory"], fields["boundary"]) == ("jit-checkpoint", "/jit", 3)

    in_world(test)


def test_all_ranks_train_again_once_they_are_beyond_the_checkpoint() -> None:
    async def test(w: World) -> None:
        again = w.ledger.begin_again(w.run, RestartPlan({}, directory="/jit", step=3), "so", "jit-checkpoint")
        for step in (3, 4, 5):
            fields = json.dumps({"steps": step, "steps_per_s": 1.0, "ranks": 2, "spares": 0})
            again._hear(JobEvent(time.time() + 1000 * step, "progress", fields))
        again.relay.end(1, "enough")
        (done,) = (event for event in again.relay.told if event.name == "restart_done")
        assert json.loads(done.fields_json)["elapsed_s"] == pytest.approx(4000, abs=100)  # at step 3 they only enter

    in_world(test)


def test_what_people_have_barred_is_told_when_it_changes() -> None:
    async def test(w: World) -> None:
        listener = FeedListener()
        news(listener, w)
        found = {"metadata": {"name": "q"}, "spec": {"node": "gpu-1", "reason": "the fan is loud"}}
        w.ledger.quarantine_changed(found, deleted=False)
        assert news(listener, w) == [f.Barred((f.BarredSubject("q", "gpu-1", "", "the fan is loud"),))]
        w.ledger.quarantine_changed(found, deleted=True)
        assert news(listener, w) == [f.Barred(())]

    in_world(test)


def test_a_thousand_jobs_are_told_in_short_pieces() -> None:
    async def test(w: World) -> None:
        for n in range(50):
            say(w.run, "log", n)
        for n in range(1000):
            run = JobRun(KEY._replace(name=f"j{n}"), 2, LAUNCH, Asked())
            w.ledger.runs[run.key] = run
        pieces = [*FeedListener().news(LEADS, w.ledger)]
        assert sum(piece.count(b'"kind":"JobSeen"') for piece in pieces) == 1001
        assert max(piece.count(b"\n") for piece in pieces) == event_feed.EVENTS_AT_ONCE

    in_world(test)


async def lines_of(reader: asyncio.StreamReader, number: int) -> list[f.FeedLine]:
    return [f.parse(await asyncio.wait_for(reader.readline(), 10)) for _ in range(number)]


def test_the_socket_is_this_users_alone_and_one_listener_takes_the_place_of_another(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        path = tmp_path / "events.sock"
        path.touch()  # left by the container before this one
        feed = EventFeed("c-1", lambda: "c-1")
        feed.lead(w.ledger)
        async with feed_served(str(path), feed):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            first, first_writer = await asyncio.open_unix_connection(path)
            assert (await lines_of(first, 1)) == [LEADS]
            second, second_writer = await asyncio.open_unix_connection(path)
            assert (await lines_of(second, 1)) == [LEADS]
            await asyncio.wait_for(first.read(), 10)
            assert first.at_eof()
        await asyncio.wait_for(second.read(), 10)
        for writer in (first_writer, second_writer):
            writer.close()

    in_world(test)


def test_a_listener_that_reads_nothing_holds_up_nobody_and_holds_little(tmp_path: Path) -> None:
    async def test(w: World) -> None:
        feed = EventFeed("c-1", lambda: "c-1")
        feed.lead(w.ledger)
        for n in range(2000):
            w.run.relay.told.add(JobEvent(float(n), "log", json.dumps({"text": "x" * 5000})))
        async with feed_served(str(tmp_path / "s"), feed):
            _, writer = await asyncio.open_unix_connection(tmp_path / "s", limit=1024)
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a reading one
            for _ in range(1000):
                await asyncio.sleep(0)  # the loop is others' all the while
            (task,) = (t for t in asyncio.all_tasks() if "EventFeed.tell" in repr(t))
            assert not task.done()
            writer.close()

    in_world(test)


def test_a_fault_of_the_feed_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(w: World) -> None:
        feed = EventFeed("c-1", lambda: "c-1")
        feed.lead(w.ledger)

        def fails(*_: object) -> None:
            raise ValueError("a bug")

        async with feed_served(str(tmp_path / "s"), feed):
            with monkeypatch.context() as m:
                m.setattr(event_feed, "_barred", fails)
                reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
                assert (await lines_of(reader, 1)) == [LEADS]
                assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()
            assert w.run.failure == ""
            assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
                "the dashboard is not told any more, until it asks again"
            ]
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            assert len(await lines_of(reader, 3)) == 3
            writer.close()

    in_world(test)


def test_where_there_can_be_no_socket_the_controller_works_without(tmp_path: Path) -> None:
    async def test() -> bool:
        async with feed_served(str(tmp_path / "not" / "there"), EventFeed("c-1", lambda: "")):
            return True

    assert asyncio.run(test())
