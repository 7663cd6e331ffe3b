from __future__ import annotations

import pytest

from torchrelay.controller.time_share import TimeShare


def test_a_job_may_take_its_burst_at_once() -> None:
    assert TimeShare(share=0.5, burst_s=1.0).spend(1.0, 10.0) == 0.0


def test_who_took_more_waits_until_its_share_has_made_up_for_it() -> None:
    share = TimeShare(share=0.5, burst_s=1.0)
    wait_s = share.spend(2.0, 10.0)
    assert wait_s == pytest.approx(2.0)
    assert share.spend(0.0, 10.0 + wait_s) == 0.0
    assert share.spend(0.1, 10.0 + wait_s) == pytest.approx(0.2)


def test_a_job_that_was_idle_for_long_has_saved_up_no_more_than_its_burst() -> None:
    share = TimeShare(share=0.5, burst_s=1.0)
    share.spend(1.0, 10.0)
    assert share.spend(1.5, 10_000.0) == pytest.approx(1.0)


def test_a_job_that_keeps_to_its_share_never_waits() -> None:
    share = TimeShare(share=0.5, burst_s=1.0)
    assert [share.spend(0.4, 10.0 + second) for second in range(100)] == [0.0] * 100
