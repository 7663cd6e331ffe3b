"""Whether a save is whole, as all ranks know it together."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from torchrelay.shim.saves.save_agreement import SaveAgreement, SaveReport, SaveVerdict, decide
from torchrelay.shim.script.save_future import SaveId

SAVE, LATER, OTHER = SaveId("g", 2), SaveId("g", 3), SaveId("h", 2)
UNDER_WAY = SaveReport({"g": 2}, {SAVE: True})
WITHOUT = SaveReport({"g": 2}, {SAVE: False})
THROUGH = SaveReport({"g": 2}, {})
NOT_YET = SaveReport({"g": 1}, {})
FAILED = SaveReport({"g": 2}, {}, frozenset({SAVE}))


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        pytest.param([UNDER_WAY, UNDER_WAY], SaveVerdict.AGAIN, id="nobody is through"),
        pytest.param([UNDER_WAY, NOT_YET], SaveVerdict.AGAIN, id="one has not begun it"),
        pytest.param([UNDER_WAY, SaveReport({}, {})], SaveVerdict.AGAIN, id="one has begun none"),
        pytest.param([UNDER_WAY, THROUGH], SaveVerdict.WHOLE, id="one is through"),
        pytest.param([WITHOUT, THROUGH], SaveVerdict.WHOLE, id="one is through, and another has lost its part"),
        pytest.param([UNDER_WAY, SaveReport({"g": 3}, {LATER: True})], SaveVerdict.WHOLE, id="one has begun the next"),
        pytest.param([UNDER_WAY, WITHOUT], SaveVerdict.LOST, id="one has lost its part"),
        pytest.param([WITHOUT, NOT_YET], SaveVerdict.LOST, id="one has lost its part, one has not begun it"),
        pytest.param([UNDER_WAY, FAILED], SaveVerdict.LOST, id="it failed on one"),
        pytest.param([THROUGH, FAILED], SaveVerdict.LOST, id="it failed on one, however far the others are"),
        pytest.param(
            [UNDER_WAY, SaveReport({"g": 2, "h": 2}, {SAVE: True})], SaveVerdict.AGAIN, id="another group's is whole"
        ),
    ],
)
def test_a_save_is_whole_when_one_is_through_and_done_again_when_none_is(
    reports: list[SaveReport], verdict: SaveVerdict
) -> None:
    found, reason = decide(SAVE, dict(enumerate(reports)))
    assert found is verdict
    assert reason


def test_the_reason_says_which_rank() -> None:
    assert decide(SAVE, {3: UNDER_WAY, 7: WITHOUT})[1].startswith("rank 7 was lost")
    assert decide(SAVE, {3: UNDER_WAY, 7: THROUGH})[1] == "rank 7 was through with it"
    assert decide(SAVE, {3: UNDER_WAY, 7: FAILED})[1] == "it failed on rank 7"


def test_a_report_comes_back_from_its_text() -> None:
    report = SaveReport({"g": 3, "h": 1}, {SAVE: True, LATER: False}, frozenset({OTHER}))
    assert SaveReport.of(report.encoded()) == report


def test_ranks_wait_for_each_other_s_reports_and_only_those_of_the_group_count() -> None:
    store = dist.HashStore()
    sides = [SaveAgreement(4, rank, 3, store) for rank in range(3)]
    found: list[SaveVerdict] = []
    asker = threading.Thread(target=lambda: found.append(sides[0].decide(SAVE, [0, 1])[0]))
    sides[0].publish(UNDER_WAY)
    sides[1].publish(UNDER_WAY)
    asker.start()
    sides[2].publish(THROUGH)  # its group has the same name, and is another one
    asker.join(30)
    assert found == [SaveVerdict.AGAIN]
    assert sides[2].decide(SAVE, [2])[0] is SaveVerdict.WHOLE


def test_one_generation_s_reports_are_not_taken_for_another_s() -> None:
    store = dist.HashStore()
    SaveAgreement(4, 0, 1, store).publish(THROUGH)
    later = SaveAgreement(5, 0, 1, store)
    later.publish(UNDER_WAY)
    assert later.decide(SAVE, [0])[0] is SaveVerdict.AGAIN
