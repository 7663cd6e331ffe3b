"""Notices: which events are worth one, what is posted, and what happens where nobody takes it."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import json
import threading
from collections.abc import Iterator

import httpx2
import pytest
from support import told_runs

from torchrelay.cli.display.summary import RunSummary, fold
from torchrelay.protocol import events
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.notify.notices import JobCommands, JobNotice, NoticeKind, ToldOfJob, ending, notice
from torchrelay.protocol.notify.target import BodyForm, NotifyTarget, TargetNames, read_target
from torchrelay.protocol.notify.webhook import NotifiedJob, NotifyWebhook, body

JOB = NotifiedJob("7e70abbe", "pretrain", "node7")
MOVED = JobNotice(NoticeKind.MIGRATED, 'Rank 1 moved to "n0.s0"', "torchrelay explain m1 --run 7e70abbe")
URL = "http://hook.test/x"
COMMANDS = JobCommands("torchrelay status --run ab", "torchrelay explain {} --run ab")


def told(occurrences: list[tuple[float, events.Occurrence]]) -> list[JobNotice]:
    """As for who keeps nothing else of the events, and as for the command, whose summary knows more: both say the same."""
    known, found = ToldOfJob(), []
    summary, of_command = RunSummary(), []
    for time_s, what in occurrences:
        if isinstance(what, events.CoverageKnown):  # of the dashboard's runs: not whole
            continue
        found.append(notice(known, what, COMMANDS))
        of_command.append(notice(summary, what, COMMANDS))
        known, summary = known.told(what), fold(summary, what, time_s)
    assert found == of_command
    return [each for each in found if each is not None]


def test_a_small_run_is_worth_two_notices() -> None:
    assert [(n.kind, n.text) for n in told(told_runs.small_run())] == [
        (NoticeKind.MIGRATED, "Rank 0 moved to n0.s0: 1.6 s of standstill, 1 step done again"),
        (NoticeKind.MIGRATED, "Rank 2 moved to n0.s1: 0.6 s of standstill, no step lost"),
    ]
    assert told(told_runs.small_run())[0].hint == "torchrelay explain m1 --run ab"


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        (
            events.SparesChanged(2, 0, 0, "no place is free"),
            NoticeKind.SPARES_LOW,
            "There is no spare: no place is free",
        ),
        (events.SparesChanged(2, 0, 0, ""), NoticeKind.SPARES_LOW, "There is no spare: none is being made"),
        (events.Protection("unprotected", "no spare"), NoticeKind.UNPROTECTED, "The job is not protected: no spare"),
        (
            events.HealthVerdict("migrate", "xid-94", "n0", "GPU-1", (1,), "refused", "device", "too many moves"),
            NoticeKind.NEEDS_PERSON,
            "Something is wrong, and nothing is done about it: too many moves",
        ),
        (
            events.IncidentKept("m3", "/inc", "protected", "", "no such file"),
            NoticeKind.NEEDS_PERSON,
            "A promise was not kept: no such file",
        ),
        (
            events.MoveNotMade("", 2, "a fan", "no spare"),
            NoticeKind.NOT_MIGRATED,
            "Rank 2 was to move (a fan) and did not: no spare",
        ),
        (
            told_runs.finished("m3", "unplanned", "abandoned", 1, "", reason="nobody holds it"),
            NoticeKind.NOT_MIGRATED,
            "Rank 1 did not move (abandoned): nobody holds it",
        ),
    ],
)
def test_what_a_person_wants_to_hear(what: events.Occurrence, kind: NoticeKind, said: str) -> None:
    *_, newest = told([*told_runs.begins(), (told_runs.BEGAN_S + 30, what)])
    assert (newest.kind, newest.text) == (kind, said)


@pytest.mark.parametrize(
    "what",
    [
        events.SparesChanged(0, 0, 0, ""),
        events.SparesChanged(2, 0, 1, ""),
        events.Protection("protected", "any rank"),
        events.ProgressMade(3, 1.0, 4, 2),
        events.MoveNotMade("m1", 2, "a fan", "told by its migration"),
    ],
)
def test_what_nobody_is_woken_for(what: events.Occurrence) -> None:
    assert told([*told_runs.begins(), (told_runs.BEGAN_S + 30, what)]) == []


def test_a_notice_is_posted_in_the_form_that_was_asked_for() -> None:
    assert json.loads(body(MOVED, JOB, NotifyTarget(URL))) == {
        "kind": "migrated",
        "text": MOVED.text,
        "hint": MOVED.hint,
        "job": "7e70abbe",
        "name": "pretrain",
        "host": "node7",
    }
    slack = json.loads(body(MOVED, JOB, NotifyTarget(URL, form=BodyForm.SLACK)))
    assert slack == {"text": f"*pretrain* (7e70abbe on node7): {MOVED.text}\n`{MOVED.hint}`"}
    loud = dataclasses.replace(MOVED, text="Rank 1 did not move: <!channel> R&D", hint="")
    called = json.loads(body(loud, JOB, NotifyTarget(URL, form=BodyForm.SLACK)))
    assert called["text"].endswith("did not move: &lt;!channel&gt; R&amp;D")  # to Slack it would call everybody
    own = json.loads(body(MOVED, JOB, NotifyTarget(URL, template='{"msg": "$name: $text", "left": "$unknown"}')))
    assert own == {"msg": f"pretrain: {MOVED.text}", "left": "$unknown"}


def posted(
    answers: list[int | Exception], notices: list[JobNotice], target: NotifyTarget
) -> tuple[list[str], list[str]]:
    """Return the texts that arrived, and what was said. `answers`: of one try after the other; 200 after these."""
    arrived: list[str] = []
    said: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        reply = answers.pop(0) if answers else 200
        if isinstance(reply, Exception):
            raise reply
        if reply == 200:
            arrived.append(json.loads(request.content)["text"])
        return httpx2.Response(reply, text="so it is")

    async def run() -> None:
        webhook = NotifyWebhook(target, said.append, httpx2.MockTransport(answer), waits_s=(0.0, 0.0))
        for each in notices:
            webhook.post(each, JOB)
        await webhook.close()

    asyncio.run(run())
    return arrived, said


@pytest.mark.parametrize("first", [503, 429, httpx2.ConnectError("refused")])
def test_a_notice_that_is_not_taken_is_posted_again_and_keeps_its_place(first: int | Exception) -> None:
    later = JobNotice(NoticeKind.ENDED, "Finished")
    assert posted([first, first], [MOVED, later], NotifyTarget(URL)) == ([MOVED.text, "Finished"], [])


def test_a_notice_that_is_refused_is_said_once_and_the_next_one_is_posted() -> None:
    later = JobNotice(NoticeKind.ENDED, "Finished")
    arrived, said = posted([404, 404], [MOVED, MOVED, later], NotifyTarget(URL))
    assert arrived == ["Finished"]
    assert said == ["notices do not arrive (HTTP status 404: so it is); jobs go on"]


@pytest.mark.parametrize("unforeseen", [RuntimeError(f"no way to {URL}"), KeyError(URL), RecursionError()])
def test_an_unforeseen_error_is_said_without_the_url_and_the_next_notice_is_posted(unforeseen: Exception) -> None:
    """Not tried again: what it is that is wrong nobody knows. Its text may name the URL, which may be a secret."""
    later = JobNotice(NoticeKind.ENDED, "Finished")
    arrived, said = posted([unforeseen], [MOVED, later], NotifyTarget(URL))
    assert arrived == ["Finished"]
    assert said == [f"notices do not arrive ({type(unforeseen).__name__}); jobs go on"]


def test_only_what_was_asked_for_is_posted() -> None:
    later = ending(7, 137, "rank 1 was killed", "torchrelay run --resume x")
    assert posted([], [MOVED, later], NotifyTarget(URL, kinds=(NoticeKind.ENDED,)))[0] == [
        "Ended with exit code 137 after 7 steps: rank 1 was killed"
    ]


class _Hook(http.server.BaseHTTPRequestHandler):
    arrived: list[bytes]

    def do_POST(self) -> None:
        self.arrived.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[tuple[str, list[bytes]]]:
    """A real server: its URL, and what has arrived."""
    arrived: list[bytes] = []
    server = http.server.HTTPServer(("127.0.0.1", 0), type("Hook", (_Hook,), {"arrived": arrived}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", arrived
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_notice_arrives_at_a_real_server(hook: tuple[str, list[bytes]]) -> None:
    url, arrived = hook

    async def run() -> None:
        webhook = NotifyWebhook(NotifyTarget(url), pytest.fail)
        webhook.post(MOVED, JOB)
        await webhook.close()

    asyncio.run(run())
    assert [json.loads(content)["text"] for content in arrived] == [MOVED.text]


def test_that_notices_do_not_arrive_is_said_again_once_they_had_arrived() -> None:
    later = JobNotice(NoticeKind.ENDED, "Finished")
    arrived, said = posted([404, 200, 404], [MOVED, later, MOVED], NotifyTarget(URL))
    assert arrived == ["Finished"]
    assert len(said) == 2


def test_what_is_no_url_is_said_without_it() -> None:
    assert posted([], [MOVED], NotifyTarget("https://hooks.example.com:secret/x")) == (
        [],
        ["notices do not arrive (the URL is none); jobs go on"],
    )


def test_a_target_is_read_from_what_is_given() -> None:
    names = TargetNames("the URL", "--on", "--form")
    assert read_target(names, URL, "ended, migrated", "slack", "") == NotifyTarget(
        URL, (NoticeKind.ENDED, NoticeKind.MIGRATED), BodyForm.SLACK
    )
    assert read_target(names, URL, "", "json", "$text") == NotifyTarget(URL, template="$text")
    for url, kinds, form, said in (
        ("ftp://x", "", "json", "^the URL: give the URL"),
        (URL, "migrated,lunch", "json", "^--on lunch: there is no such kind; give some of migrated,"),
        (URL, "", "xml", "^--form xml: give json or slack"),
    ):
        with pytest.raises(UserError, match=said):
            read_target(names, url, kinds, form, "")
