from __future__ import annotations

from torchrelay.protocol.messages import Armed, ReplicaCheck, Resumed, Warm
from torchrelay.protocol.transport.last_reports import CHECKS_KEPT, LastReports


def check(boundary: int) -> ReplicaCheck:
    return ReplicaCheck(boundary, {"weight": f"at {boundary}"})


def test_what_holds_is_told_in_the_order_in_which_a_process_says_it() -> None:
    said = LastReports()
    for report in (check(0), Armed(1, 2, "gloo", ""), Resumed(3, 1), Warm("old"), Warm("new")):
        said.keep(report)
    assert said.all() == [Warm("new"), Armed(1, 2, "gloo", ""), check(0)]


def test_checks_of_its_rank_come_before_its_own_and_the_oldest_are_dropped() -> None:
    said = LastReports()
    said.inherit((check(0), check(1)))
    said.keep(check(2))
    assert said.all() == [check(0), check(1), check(2)]
    for boundary in range(3, 3 + CHECKS_KEPT):
        said.keep(check(boundary))
    assert said.all() == [check(b) for b in range(3, 3 + CHECKS_KEPT)]


def test_what_it_inherits_takes_the_place_of_what_it_knew() -> None:
    said = LastReports()
    said.keep(check(8))
    said.inherit((check(4),))
    assert said.all() == [check(4)]


def test_a_boundary_that_is_told_of_again_takes_no_further_place() -> None:
    said = LastReports()
    for place in range(2 * CHECKS_KEPT):
        said.keep(ReplicaCheck(1, {"weight": f"{place}"}))
    said.keep(check(2))
    assert said.all() == [ReplicaCheck(1, {"weight": f"{2 * CHECKS_KEPT - 1}"}), check(2)]
