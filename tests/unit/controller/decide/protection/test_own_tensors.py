"""Which tensors a rank is asked to copy in each step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.controller.decide.protection.test_coverage import known, report

from torchrelay.controller.decide.protection.known import Known, needs_copies, without_way_in
from torchrelay.controller.decide.protection.own_tensors import own_tensors
from torchrelay.protocol.messages import ReplicaCheck


def job(*held: dict[str, str], carried: tuple[str, ...] = (), **changes: object) -> Known:
    checks = {
        rank: (replace(ReplicaCheck(4, {"module0.w": "same", **digests}), carried=carried),)
        for rank, digests in enumerate(held)
    }
    return known(*(report() for _ in held), checks=checks, **changes)


def test_a_rank_is_asked_for_what_the_nearest_other_one_does_not_hold() -> None:
    found = own_tensors(job({"module1.w": "a"}, {"module1.w": "b"}))
    assert found == {0: {"module1.w"}, 1: {"module1.w"}}


def test_shards_of_an_optimizer_s_state_are_asked_for_as_well() -> None:
    held = ({"module0.s": "a", "optimizer0.0.exp_avg": "a"}, {"module0.s": "b", "optimizer0.0.exp_avg": "b"})
    assert own_tensors(job(*held))[1] == {"module0.s", "optimizer0.0.exp_avg"}


def test_what_one_rank_alone_has_at_all_is_its_own() -> None:
    assert own_tensors(job({"module1.w": "a"}, {})) == {0: {"module1.w"}}


def test_the_rank_that_holds_most_of_it_counts() -> None:
    held = ({"module1.w": "a", "value.x": "1"}, {"module1.w": "b", "value.x": "2"}, {"module1.w": "c", "value.x": "1"})
    assert own_tensors(job(*held))[0] == {"module1.w"}


@pytest.mark.parametrize(
    ("held", "changes"),
    [
        (({}, {}), {}),
        (({"module1.w": "a"}, {"module1.w": "b"}), {"nodes": 2}),
        (({"module1.w": "a"}, {"module1.w": "b"}), {"lost": frozenset({1})}),
    ],
    ids=["all share all", "several nodes", "nobody to compare with"],
)
def test_nobody_is_asked_where_it_would_not_help(held: tuple[dict[str, str], ...], changes: dict[str, object]) -> None:
    assert own_tensors(job(*held, **changes)).get(0) is None


def test_what_is_carried_makes_a_rank_replaceable_on_one_node_and_copies_go_on() -> None:
    apart = ({"module1.w": "a"}, {"module1.w": "b"})
    assert without_way_in(job(*apart)).keys() == {0, 1}
    assert without_way_in(job(*apart, carried=("module1.w",))) == {}
    assert without_way_in(job(*apart, carried=("module1.w",), nodes=2)).keys() == {0, 1}
    assert needs_copies(job(*apart, carried=("module1.w",))).keys() == {0, 1}
