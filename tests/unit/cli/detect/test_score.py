from __future__ import annotations

from typing import Any

import pytest

from torchrelay.cli.detect.command import load_episodes, timeline
from torchrelay.cli.detect.score import judge
from torchrelay.protocol.health.kinds import ACTIONS

GPU_3 = "GPU-fa4e0000-0000-0000-0000-000000000003"
EPISODE = {"class": "lost", "expect": "replace", "within_s": 1, "do": []}


def verdict(action: str, time_s: float, subject: str = GPU_3, rule: str = "xid-79") -> dict[str, Any]:
    return {"action": action, "time_s": time_s, "subject": subject, "rule": rule, "node": "n0"}


def test_the_right_verdict_in_time_is_right() -> None:
    row = judge(EPISODE, 3, [10.0], [verdict("replace", 10.4)])
    assert (row.detected, row.right, row.in_time) == (True, True, True)
    assert row.took_s == pytest.approx(0.4)


def test_a_late_one_is_late_and_a_missing_one_not_detected() -> None:
    assert not judge(EPISODE, 3, [10.0], [verdict("replace", 11.2)]).in_time
    missing = judge(EPISODE, 3, [10.0], [])
    assert (missing.detected, missing.right, missing.in_time) == (False, False, False)


@pytest.mark.parametrize("action", ["watch", "migrate", "stop"])
def test_another_verdict_is_wrong(action: str) -> None:
    row = judge(EPISODE, 3, [10.0], [verdict(action, 10.1)])
    assert (row.got, row.right) == (action, False)


def test_a_worse_verdict_beside_the_right_one_is_wrong() -> None:
    assert judge(EPISODE, 3, [10.0], [verdict("replace", 10.1), verdict("stop", 10.2)]).got == "stop"


def test_verdicts_about_others_before_and_after_do_not_count() -> None:
    others = [verdict("replace", 10.1, "GPU-other"), verdict("replace", 9.0), verdict("replace", 12.0)]
    assert not judge(EPISODE, 3, [10.0], others, until_s=12.0).detected


def test_what_is_to_be_ignored_must_not_lead_to_anything() -> None:
    wobble = {"class": "wobble", "expect": "ignore", "do": []}
    assert judge(wobble, 3, [10.0], [verdict("watch", 10.1)]).right
    assert not judge(wobble, 3, [10.0], [verdict("migrate", 10.1)]).right


def test_what_was_not_played_is_not_right() -> None:
    assert not judge({**EPISODE, "expect": "ignore"}, 3, [], []).right


def test_seconds_count_from_the_last_call_before_the_verdict() -> None:
    assert judge(EPISODE, 3, [10.0, 12.0, 14.0], [verdict("replace", 12.5)]).took_s == pytest.approx(0.5)


def test_every_timeline_has_an_answer_a_limit_and_calls() -> None:
    episodes = load_episodes()
    assert len(episodes) > 30
    for e in episodes:
        assert e["expect"] in ACTIONS, e
        assert e["do"], e
        assert e["expect"] == "ignore" or 0 < e["within_s"] <= 20, e
    assert len({e["class"] for e in episodes}) == len(episodes)


def test_gpu_is_the_number_of_the_episode() -> None:
    made = timeline(
        [{"class": "a", "do": [["hang", "f"]]}, {"class": "b", "do": [["xid", "GPU", 79]], "undo": [["hang", ""]]}]
    )["episodes"]
    assert made[1]["do"] == [["xid", 1, 79]]
    assert made[0]["undo"] == []
