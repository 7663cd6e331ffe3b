"""A script that fails beside others in its pod waits for the verdict; alone it does not."""

from __future__ import annotations

import threading

import pytest

from torchrelay.protocol.errors import StateMismatchError, UserError
from torchrelay.protocol.messages import ScriptFailed
from torchrelay.shim.bootstrap.failed_script import await_verdict, tell

SEVERAL = {"LOCAL_WORLD_SIZE": "2"}


class Link:
    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, report: object) -> None:
        self.sent.append(report)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ValueError("bad"), ScriptFailed("ValueError", "bad", 1, 7)),
        (SystemExit(3), ScriptFailed("SystemExit", "3", 3, 7)),
        (SystemExit("words"), ScriptFailed("SystemExit", "words", 1, 7)),
        (StateMismatchError("unlike"), ScriptFailed("StateMismatchError", "unlike", 1, 7, ours=True)),
        (UserError("no such option"), ScriptFailed("UserError", "no such option", 1, 7)),
    ],
)
def test_the_agent_is_told_how_the_script_failed(failure: BaseException, told: ScriptFailed) -> None:
    link = Link()
    tell(link, failure, 7)  # type: ignore[arg-type]  # a stand-in
    assert link.sent == [told]


def test_who_is_alone_in_its_pod_waits_for_nobody() -> None:
    await_verdict({}, threading.Event(), 1e9)
    await_verdict({"LOCAL_WORLD_SIZE": "1"}, threading.Event(), 1e9)


def test_beside_others_the_verdict_is_awaited_and_not_for_ever() -> None:
    verdict = threading.Event()
    done = threading.Event()

    def fail() -> None:
        await_verdict(SEVERAL, verdict, 1e3)
        done.set()

    threading.Thread(target=fail, daemon=True).start()
    assert not done.wait(0.2)
    verdict.set()
    assert done.wait(10.0)
    await_verdict(SEVERAL, threading.Event(), 0.01)
