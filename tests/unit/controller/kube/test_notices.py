"""Notices of a cluster's jobs: what is posted of which job, and to where."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import httpx2
import pytest
from support import told_runs
from support.kube_world import World, in_world

from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.notices import ClusterNotices, notices_posted, read_notify_target
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol import events as e
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.notify.notices import JobNotice, NoticeKind
from torchrelay.protocol.notify.target import BodyForm, NotifyTarget
from torchrelay.protocol.notify.webhook import NotifiedJob, NotifyWebhook

URL = "https://hooks.example.com/T0"
LLAMA = NotifiedJob("team/llama", "llama", "blue")


def listening(w: World) -> list[tuple[JobNotice, NotifiedJob]]:
    posted: list[tuple[JobNotice, NotifiedJob]] = []
    w.ledger.listens = ClusterNotices(lambda notice, job: posted.append((notice, job)), "blue").hear
    return posted


def say(run: JobRun, what: e.Occurrence) -> None:
    run._hear(e.to_job_event(what, 1000.0))


def settings(folder: Path, **more: str) -> ClusterSettings:
    return ClusterSettings.from_environ({kube.ENV_NOTIFY_FOLDER: str(folder), **more})


def test_what_a_person_wants_to_hear_is_posted_with_the_job_and_what_to_type() -> None:
    async def test(w: World) -> None:
        posted = listening(w)
        lost = told_runs.finished("m1", "unplanned", "committed", 1, "llama-spare-0")
        pool = [e.SparesChanged(1, 1, 0, ""), e.SparesChanged(1, 0, 0, "no node has room")]
        levels = [e.Protection("protected", "all ranks"), e.Protection("unprotected", "the loop has changed")]
        for what in (*pool, *levels, lost, e.ProgressMade(7, 1.0, 2, 1)):
            say(w.run, what)
        say(w.run, e.JobFinished(1, "the script has failed"))
        assert {job for _, job in posted} == {LLAMA}
        assert [(n.kind, n.hint) for n, _ in posted] == [
            (NoticeKind.SPARES_LOW, ""),
            (NoticeKind.UNPROTECTED, "kubectl torchrelay status llama -n team"),
            (NoticeKind.MIGRATED, "kubectl torchrelay history llama -n team"),
            (NoticeKind.ENDED, "kubectl torchrelay status llama -n team"),
        ]
        assert posted[-1][0].text.endswith("exit code 1: the script has failed")

    in_world(test)


def test_a_job_that_begins_again_has_not_ended() -> None:
    async def test(w: World) -> None:
        posted = listening(w)
        say(w.run, e.Protection("protected", "all ranks"))
        again = w.ledger.begin_again(w.run, RestartPlan({}, directory="/jit", step=3), "no spare", "jit-checkpoint")
        again.relay.end(0, "enough")
        assert [n.kind for n, _ in posted][:: len(posted) - 1] == [NoticeKind.RESTARTED, NoticeKind.ENDED]
        assert again.told_of.was_protected

    in_world(test)


def test_an_unforeseen_error_in_a_notice_is_logged_and_leaves_the_job_protected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def test(w: World) -> None:
        posted = listening(w)
        with monkeypatch.context() as patch:
            patch.setattr("torchrelay.controller.kube.notices.notice", broken)
            say(w.run, e.Protection("protected", "all ranks"))
        assert (w.run.failure, w.run.core.aside) == ("", None)
        say(w.run, e.JobFinished(0, ""))
        assert [n.kind for n, _ in posted] == [NoticeKind.ENDED]

    in_world(test)
    assert "team/llama: nobody is notified of protection" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text


def test_the_url_is_a_secret_in_a_folder_and_what_is_posted_is_as_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{URL}\n")
    assert read_notify_target(settings(tmp_path)) == NotifyTarget(URL)
    (tmp_path / "template").write_text('{"m": "$text"}')
    chosen = settings(tmp_path, TORCHRELAY_NOTIFY_ON="ended,migrated", TORCHRELAY_NOTIFY_FORMAT="slack")
    assert read_notify_target(chosen) == NotifyTarget(
        URL, (NoticeKind.ENDED, NoticeKind.MIGRATED), BodyForm.SLACK, '{"m": "$text"}'
    )
    assert read_notify_target(ClusterSettings.from_environ({})) is None


@pytest.mark.parametrize(
    ("url", "on", "said"),
    [
        (None, "", "nobody is notified: .*it is a Secret with the key url"),
        ("secret-word", "", "nobody is notified: the key url of .*give the URL"),
        (URL, "lunch", "nobody is notified: TORCHRELAY_NOTIFY_ON lunch"),
    ],
)
def test_a_target_that_is_wrong_is_said_without_the_url_and_jobs_are_looked_after(
    url: str | None, on: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if url is not None:
        (tmp_path / "url").write_text(url)

    async def test(w: World) -> None:
        async with notices_posted(settings(tmp_path, TORCHRELAY_NOTIFY_ON=on)) as listens:
            w.ledger.listens = listens
            say(w.run, e.Protection("protected", "all ranks"))
        assert w.run.failure == ""

    with caplog.at_level(logging.WARNING, "torchrelay.controller.kube.notices"):
        in_world(test)
    (record,) = (r for r in caplog.records if r.name == "torchrelay.controller.kube.notices")
    assert re.match(said, record.getMessage())
    assert "secret-word" not in caplog.text


def test_what_is_posted_arrives_before_the_controller_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        arrived.append(request.content)
        return httpx2.Response(200)

    def to_us(target: NotifyTarget, say: object) -> NotifyWebhook:
        return NotifyWebhook(target, pytest.fail, httpx2.MockTransport(answer))

    monkeypatch.setattr("torchrelay.controller.kube.notices.NotifyWebhook", to_us)
    (tmp_path / "url").write_text(URL)

    async def test(w: World) -> None:
        async with notices_posted(settings(tmp_path, TORCHRELAY_NOTIFY_CLUSTER="blue")) as listens:
            w.ledger.listens = listens
            say(w.run, e.JobFinished(0, ""))
        assert [b'"kind": "ended"' in content and b'"host": "blue"' in content for content in arrived] == [True]

    in_world(test)
