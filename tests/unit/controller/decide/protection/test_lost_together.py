"""Nodes that share a machine are lost with it; pods that all share one can only be lost one by one."""

from __future__ import annotations

from torchrelay.controller.decide.protection.lost_together import MACHINE, POD, lost_together


def test_a_node_is_its_own_machine_where_nothing_else_is_known() -> None:
    found = lost_together(["n0", "n1"], {})
    assert found.kind == MACHINE
    assert found.apart("n0", "n1")
    assert not found.apart("n0", "n0")
    assert not found.apart("n0", "")


def test_pods_of_one_machine_are_lost_with_it() -> None:
    found = lost_together(["a", "b", "c"], {"a": "m0", "b": "m0", "c": "m1"})
    assert found.kind == MACHINE
    assert not found.apart("a", "b")
    assert found.apart("a", "c")


def test_pods_that_all_share_one_machine_are_lost_one_by_one() -> None:
    found = lost_together(["a", "b"], {"a": "m0", "b": "m0"})
    assert found.kind == POD
    assert found.apart("a", "b")


def test_one_node_is_a_machine() -> None:
    assert lost_together(["a"], {"a": "m0"}).kind == MACHINE
