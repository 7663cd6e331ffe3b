from __future__ import annotations

import pytest

from torchrelay.controller.decide.detection.numbers import GO_ON, decide_numbers
from torchrelay.protocol.messages import NumberAlarm
from torchrelay.protocol.options.numbers import GRAD_NORM, LOSS, RETRY, STOP


def alarm(what: str = LOSS, action: str = RETRY) -> NumberAlarm:
    return NumberAlarm(what, 12, float("nan"), 1.0, action, f"{what} of step 13 is nan")


def test_the_rank_whose_loss_is_wrong_is_to_blame_for_everybody_s_gradients() -> None:
    alarms = {0: [alarm(GRAD_NORM)], 1: [alarm(LOSS), alarm(GRAD_NORM)], 2: [alarm(GRAD_NORM)]}
    verdict = decide_numbers(alarms, 3, (), "")
    assert (verdict.action, verdict.ranks) == (RETRY, (1,))
    assert verdict.reason.endswith("the step is done again on another device")
    assert "rank 1: loss of step 13 is nan" in verdict.reason


def test_a_gradient_that_is_wrong_on_one_rank_alone_is_that_rank_s() -> None:
    assert decide_numbers({2: [alarm(GRAD_NORM)]}, 3, (), "").ranks == (2,)


@pytest.mark.parametrize("what", [LOSS, GRAD_NORM])
def test_what_all_ranks_compute_is_no_device_s_fault(what: str) -> None:
    verdict = decide_numbers({rank: [alarm(what)] for rank in range(3)}, 3, (), "")
    assert verdict.action == GO_ON
    assert "the same for all ranks" in verdict.reason


def test_what_another_device_has_computed_too_goes_on() -> None:
    verdict = decide_numbers({1: [alarm()]}, 3, {1}, "")
    assert verdict.action == GO_ON
    assert "the same on another device (rank 1)" in verdict.reason


def test_stop_wins_over_retry() -> None:
    verdict = decide_numbers({0: [alarm(action=STOP)], 1: [alarm()]}, 3, (), "")
    assert (verdict.action, verdict.ranks) == (STOP, (0, 1))
    assert verdict.reason.endswith("stopped before the update")


def test_without_another_device_the_job_stops_rather_than_use_the_number() -> None:
    verdict = decide_numbers({1: [alarm()]}, 3, (), "no spare is left")
    assert (verdict.action, verdict.ranks) == (STOP, (1,))
    assert "another device cannot try it (no spare is left)" in verdict.reason
