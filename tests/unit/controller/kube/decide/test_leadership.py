"""Who of several controllers leads."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.kube.decide.leadership import FOLLOW, LEAD, LEASE_S, STEP_DOWN, TAKE, SeenLease, judge_lease

OTHERS = SeenLease("me", "other", unchanged_s=0.0, leads=False)


def test_a_lease_that_nobody_has_is_taken() -> None:
    assert judge_lease(dataclasses.replace(OTHERS, holder="")).action == TAKE


def test_a_lease_that_is_renewed_is_left_alone() -> None:
    assert judge_lease(dataclasses.replace(OTHERS, unchanged_s=LEASE_S - 0.1)).action == FOLLOW


def test_a_lease_that_is_not_renewed_is_taken() -> None:
    assert judge_lease(dataclasses.replace(OTHERS, unchanged_s=LEASE_S)).action == TAKE


def test_the_holder_leads_also_after_it_began_anew_under_its_name() -> None:
    assert judge_lease(dataclasses.replace(OTHERS, holder="me")).action == LEAD


def test_a_leader_that_finds_another_one_steps_down() -> None:
    assert judge_lease(dataclasses.replace(OTHERS, leads=True)).action == STEP_DOWN


def test_a_leader_whose_lease_was_taken_away_steps_down() -> None:
    assert judge_lease(dataclasses.replace(OTHERS, holder="", leads=True)).action == STEP_DOWN
