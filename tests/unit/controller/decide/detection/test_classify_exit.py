from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.detection.classify_exit import DONE, IGNORE, REPLACE, STOP, Exit, classify_exit

KILLED = Exit("n0.w1", 1, 137, 9, False)
FAILED = Exit("n0.w1", 1, 3, 0, False)
ENDED = Exit("n0.w1", 1, 0, 0, False)


@pytest.mark.parametrize(
    ("exit_", "changes", "action", "code"),
    [
        (KILLED, {}, REPLACE, 0),
        (KILLED, {"fenced": True}, IGNORE, 0),
        (KILLED, {"unprotected_because": "off"}, STOP, 137),
        (KILLED, {"finishing": True}, DONE, 0),
        (KILLED, {"script_failed": True}, STOP, 137),
        (KILLED, {"in_migration": True, "unprotected_because": "x"}, REPLACE, 0),
        (FAILED, {}, STOP, 3),
        (FAILED, {"script_failed": True}, STOP, 3),
        (FAILED, {"in_migration": True}, REPLACE, 0),
        (FAILED, {"finishing": True}, STOP, 3),
        (ENDED, {}, DONE, 0),
        (ENDED, {"finishing": True}, DONE, 0),
        (ENDED, {"script_failed": True}, STOP, 1),
    ],
)
def test_what_an_exit_means(exit_: Exit, changes: dict[str, object], action: str, code: int) -> None:
    verdict = classify_exit(dataclasses.replace(exit_, **changes))  # type: ignore[arg-type]  # of any of its fields
    assert (verdict.action, verdict.exit_code) == (action, code)


def test_the_reason_names_rank_worker_and_signal() -> None:
    assert classify_exit(KILLED).reason == "rank 1 (n0.w1) was killed by SIGKILL"
    off = dataclasses.replace(KILLED, unprotected_because="no process group")
    assert classify_exit(off).reason.endswith("and cannot be replaced: no process group")
