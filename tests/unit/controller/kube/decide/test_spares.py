"""How many spare pods a job is to have."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.kube.decide.spares import SpareChange, SparePod, keep_spares

FREE = SparePod("a", over=False, leaves=False, took_over=False, warm=True)


def named(name: str, **changes: object) -> SparePod:
    return dataclasses.replace(FREE, name=name, **changes)  # type: ignore[arg-type]  # of any of its fields


def decide(pods: list[SparePod], wanted: int, job_runs: bool = True, can_be_protected: bool = True) -> SpareChange:
    return keep_spares(pods, wanted, job_runs, can_be_protected)


def test_missing_spares_are_made() -> None:
    change = decide([FREE], 3)
    assert (change.create, change.delete) == (2, ())
    assert "3 spares are wanted, 1 are there" in change.reason


def test_a_spare_that_took_over_is_replaced_and_stays() -> None:
    change = decide([named("a", took_over=True)], 1)
    assert (change.create, change.delete) == (1, ())


def test_a_pod_of_the_job_whose_rank_lives_elsewhere_by_now_is_a_spare_too() -> None:
    change = keep_spares([named("a", took_over=True)], 1, True, True, parked=["train-1"])
    assert (change.create, change.delete) == (0, ())
    change = keep_spares([FREE], 1, True, True, parked=["train-1"])
    assert (change.create, change.delete) == (0, ()), "no spare is deleted for it"
    assert keep_spares([], 2, True, True, parked=["train-1"]).create == 1


def test_a_spare_that_is_over_or_leaves_does_not_count() -> None:
    change = decide([named("a", over=True), named("b", leaves=True)], 1)
    assert (change.create, change.delete) == (1, ("a",))


def test_of_too_many_the_cold_ones_go_first() -> None:
    change = decide([named("a"), named("b", warm=False), named("c")], 2)
    assert (change.create, change.delete) == (0, ("b",))


def test_of_too_many_those_whose_processes_have_ended_go_first() -> None:
    cold, ended = named("a", warm=False), named("b", warm=False, ended=True)
    assert decide([cold, ended], 1).delete == ("b",)


def test_none_is_too_many_before_all_processes_are_known() -> None:
    """One that was taking over a rank under the controller before looks like a spare until its agent has come."""
    change = keep_spares([named("a"), named("b", over=True), named("c")], 1, True, True, all_known=False)
    assert (change.create, change.delete) == (0, ("b",))
    assert "not all processes have told this controller what they are" in change.reason


def test_a_spare_in_a_bad_place_is_replaced_with_the_reason() -> None:
    change = decide([named("a", barred="node n2 is cordoned")], 1)
    assert (change.create, change.delete) == (1, ("a",))
    assert "node n2 is cordoned" in change.reason


def test_without_a_job_that_runs_there_are_no_spares() -> None:
    change = decide([named("a"), named("b", took_over=True)], 2, job_runs=False)
    assert (change.create, change.delete) == (0, ("a",))


def test_a_job_that_cannot_be_protected_holds_no_spares() -> None:
    change = decide([FREE], 1, can_be_protected=False)
    assert (change.create, change.delete) == (0, ("a",))
    assert "cannot be protected" in change.reason
