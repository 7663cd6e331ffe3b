"""A process that others have started: is it the rank that its environment says?"""

from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.decide.replacement.admit import Applicant, admit
from torchrelay.protocol.names import NO_RANK

FIRST = Applicant("train-1:aa.1", 1, 2, holder="", holder_alive=False, pending=True)


def test_the_first_process_of_a_rank_is_that_rank() -> None:
    assert admit(FIRST).rank == 1


def test_a_spare_is_a_spare() -> None:
    assert admit(dataclasses.replace(FIRST, rank=NO_RANK)).rank == NO_RANK


@pytest.mark.parametrize("alive", [True, False])
def test_a_rank_that_lives_elsewhere_is_not_given_twice(alive: bool) -> None:
    again = dataclasses.replace(FIRST, holder="spare:bb.1", holder_alive=alive, pending=False)
    admission = admit(again)
    assert admission.rank == NO_RANK
    assert "rank 1 is spare:bb.1's" in admission.reason


def test_a_start_that_failed_may_be_tried_again_before_training() -> None:
    again = dataclasses.replace(FIRST, holder="train-1:aa.1", holder_alive=False)
    assert admit(again).rank == 1


def test_a_second_living_process_is_a_spare_even_before_training() -> None:
    assert admit(dataclasses.replace(FIRST, holder="other:cc.1", holder_alive=True)).rank == NO_RANK


def test_a_rank_beyond_the_job_is_a_spare_and_said() -> None:
    admission = admit(dataclasses.replace(FIRST, rank=2))
    assert admission.rank == NO_RANK
    assert "ranks 0 to 1" in admission.reason
