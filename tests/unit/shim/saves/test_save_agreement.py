"""Whether a save is whole, as all ranks know it together."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from torchrelay.shim.saves.save_agreement import Agreement, Report, Verdict, decide
from torchrelay.shim.script.save_future import SaveId

SAVE, LATER, OTHER = SaveId("g", 2), SaveId("g", 3), SaveId("h", 2)
UNDER_WAY = Report({"g": 2}, {SAVE: True})
WITHOUT = Report({"g": 2}, {SAVE: False})
THROUGH = Report({"g": 2}, {})
NOT_YET = Report({"g": 1}, {})
FAILED = Report({"g": 2}, {}, frozenset({SAVE}))


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        pytest.param([UNDER_WAY, UNDER_WAY], Verdict.AGAIN, id="nobody is through"),
        pytest.param([UNDER_WAY, NOT_YET], Verdict.AGAIN, id="one has not begun it"),
        pytest.param([UNDER_WAY, Report({}, {})], Verdict.AGAIN, id="one has begun none"),
        pytest.param([UNDER_WAY, THROUGH], Verdict.WHOLE, id="one is through"),
        pytest.param([WITHOUT, THROUGH], Verdict.WHOLE, id="one is through, and another has lost its part"),
        pytest.param([UNDER_WAY, Report({"g": 3}, {LATER: True})], Verdict.WHOLE, id="one has begun the next"),
        pytest.param([UNDER_WAY, WITHOUT], Verdict.LOST, id="one has lost its part"),
        pytest.param([WITHOUT, NOT_YET], Verdict.LOST, id="one has lost its part, one has not begun it"),
        pytest.param([UNDER_WAY, FAILED], Verdict.LOST, id="it failed on one"),
        pytest.param([THROUGH, FAILED], Verdict.LOST, id="it failed on one, however far the others are"),
        pytest.param([UNDER_WAY, Report({"g": 2, "h": 2}, {SAVE: True})], Verdict.AGAIN, id="another group's is whole"),
    ],
)
def test_a_save_is_whole_when_one_is_through_and_done_again_when_none_is(
    reports: list[Report], verdict: Verdict
) -> None:
    found, reason = decide(SAVE, dict(enumerate(reports)))
    assert found is verdict
    assert reason


def test_the_reason_says_which_rank() -> None:
    assert decide(SAVE, {3: UNDER_WAY, 7: WITHOUT})[1].startswith("rank 7 was lost")
    assert decide(SAVE, {3: UNDER_WAY, 7: THROUGH})[1] == "rank 7 was through with it"
    assert decide(SAVE, {3: UNDER_WAY, 7: FAILED})[1] == "it failed on rank 7"


def test_a_report_comes_back_from_its_text() -> None:
    report = Report({"g": 3, "h": 1}, {SAVE: True, LATER: False}, frozenset({OTHER}))
    assert Report.of(report.encoded()) == report


def test_ranks_wait_for_each_other_s_reports_and_only_those_of_the_group_count() -> None:
    store = dist.HashStore()
    sides = [Agreement(4, rank, 3, store) for rank in range(3)]
    found: list[Verdict] = []
    asker = threading.Thread(target=lambda: found.append(sides[0].decide(SAVE, [0, 1])[0]))
    sides[0].publish(UNDER_WAY)
    sides[1].publish(UNDER_WAY)
    asker.start()
    sides[2].publish(THROUGH)  # its group has the same name, and is another one
    asker.join(30)
    assert found == [Verdict.AGAIN]
    assert sides[2].decide(SAVE, [2])[0] is Verdict.WHOLE


def test_one_generation_s_reports_are_not_taken_for_another_s() -> None:
    store = dist.HashStore()
    Agreement(4, 0, 1, store).publish(THROUGH)
    later = Agreement(5, 0, 1, store)
    later.publish(UNDER_WAY)
    assert later.decide(SAVE, [0])[0] is Verdict.AGAIN
