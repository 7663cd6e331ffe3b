from __future__ import annotations

import pytest

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.migration.quiesce import choose_boundary
from torchrelay.controller.decide.replacement.spares import SpareState, choose_spare


def test_a_warm_spare_on_the_same_node_is_taken_first() -> None:
    spares = [SpareState("n0.s0", "n0", True), SpareState("n1.s0", "n1", False), SpareState("n1.s1", "n1", True)]
    choice = choose_spare(spares, 5, "n1")
    assert choice.worker == "n1.s1"
    assert choice.reason == "spare n1.s1 takes over rank 5, on the same node; 2 left after that"


def test_a_warm_spare_elsewhere_is_better_than_a_cold_one_here() -> None:
    choice = choose_spare([SpareState("n0.s0", "n0", True), SpareState("n1.s0", "n1", False)], 5, "n1")
    assert choice.worker == "n0.s0"
    assert "on n0, since n1 has none" in choice.reason


def test_a_spare_whose_machine_may_have_lost_its_links_is_taken_last() -> None:
    here, there = SpareState("n1.s0", "n1", True, doubtful=True), SpareState("n2.s0", "n2", True)
    choice = choose_spare([here, there], 5, "n1")
    assert choice.worker == "n2.s0"
    assert "on n2, since the links of n1 may be down" in choice.reason
    assert choose_spare([here], 5, "n1").worker == "n1.s0"


@pytest.mark.parametrize(
    ("spares", "soon", "why"),
    [
        ([], False, "no spare is left for rank 5"),
        ([SpareState("n0.s0", "n0", False)], True, "still starting"),
        ([SpareState("n0.s0", "n0", True, stopped=True)], False, "1 are stopped"),
    ],
)
def test_none_to_be_had(spares: list[SpareState], soon: bool, why: str) -> None:
    choice = choose_spare(spares, 5, "n0")
    assert (choice.worker, choice.soon) == ("", soon)
    assert why in choice.reason


@pytest.mark.parametrize(
    ("step_s", "tries", "ahead"), [(0.0, 0, 2), (1.0, 0, 3), (0.1, 0, 5), (0.01, 0, 32), (0.1, 1, 10), (0.1, 2, 20)]
)
def test_the_boundary_lies_as_far_ahead_as_the_question_takes(step_s: float, tries: int, ahead: int) -> None:
    point = choose_boundary(100, step_s, tries, Policy())
    assert point.boundary == 100 + ahead
    assert point.allowance_s == pytest.approx(3 * ahead * step_s)


def test_a_spare_that_is_being_made_is_waited_for_but_not_before_one_that_is_there() -> None:
    choice = choose_spare([], 1, "n0", coming=2)
    assert (choice.worker, choice.soon) == ("", True)
    assert "being made (2 are)" in choice.reason
    assert choose_spare([SpareState("n1.s0", "n1", warm=True)], 1, "n0", coming=2).worker == "n1.s0"


def test_a_spare_that_keeps_ranks_on_two_machines_is_better_than_one_on_the_same() -> None:
    here, there = SpareState("n1.s0", "n1", True, together=True), SpareState("n2.s0", "n2", True)
    choice = choose_spare([here, there], 5, "n1")
    assert choice.worker == "n2.s0"
    assert "on n2, so that the loss of n1 does not end the job" in choice.reason
    assert choose_spare([here], 5, "n1").worker == "n1.s0"
    cut_off = SpareState("n2.s0", "n2", True, doubtful=True)
    assert choose_spare([here, cut_off], 5, "n1").worker == "n1.s0"
