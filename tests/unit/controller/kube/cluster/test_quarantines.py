from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

import pytest

from torchrelay.controller.kube.cluster.quarantines import Quarantined, Quarantines, read_quarantine
from torchrelay.protocol.health.node_facts import Notice
from torchrelay.protocol.kube import kube_names as kube

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
NOON_S = NOON.timestamp()
DEVICE = "GPU-1"


def manifest(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"node": "n1", "reason": "a fan", **spec}}


@pytest.mark.parametrize("until", ["2026-01-01T12:00:00Z", "2026-01-01T13:00:00+01:00", "2026-01-01T12:00:00.000Z"])
def test_a_time_is_read_as_the_cluster_writes_it(until: str) -> None:
    quarantined = read_quarantine(manifest(until=until))
    assert quarantined == Quarantined("n1", "", "a fan", NOON_S)
    assert quarantined.holds(NOON_S - 1)
    assert not quarantined.holds(NOON_S)


def test_without_a_time_it_holds_for_good() -> None:
    assert read_quarantine(manifest()).holds(NOON_S * 100)


def test_a_time_that_cannot_be_read_is_told_and_counts_as_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert read_quarantine(manifest(until="tomorrow")).until_s is None
    assert "Quarantine q: until 'tomorrow'" in caplog.text


def test_one_of_a_device_leaves_its_node_alone() -> None:
    found = Quarantines()
    assert found.put("q", Quarantined("n1", DEVICE, "two XIDs"), NOON_S) == {"n1"}
    assert found.notices("n1") == (Notice("device-quarantine", "two XIDs", DEVICE),)
    assert found.barred_nodes() == []


def test_several_of_a_node_give_all_their_reasons() -> None:
    found = Quarantines()
    found.put("a", Quarantined("n1", "", "a fan"), NOON_S)
    found.put("b", Quarantined("n1", "", "a cable"), NOON_S)
    assert found.notices("n1") == (Notice("quarantine", "a fan; a cable"),)
    assert found.barred_nodes() == ["n1"]
    assert found.remove("a") == {"n1"}
    assert found.notices("n1") == (Notice("quarantine", "a cable"),)


def test_one_whose_time_is_over_does_nothing() -> None:
    found = Quarantines()
    assert found.put("q", Quarantined("n1", DEVICE, "of 2020", NOON_S - 1), NOON_S) == set()
    assert found.notices("n1") == ()


def test_one_whose_time_comes_is_dropped_then_with_its_node_named() -> None:
    found = Quarantines()
    found.put("q", Quarantined("n1", "", "an hour", NOON_S + 3600), NOON_S)
    assert found.drop_over(NOON_S + 3599) == set()
    assert found.barred_nodes() == ["n1"]
    assert found.drop_over(NOON_S + 3600) == {"n1"}
    assert found.barred_nodes() == []


def test_one_that_is_moved_to_another_node_concerns_both() -> None:
    found = Quarantines()
    found.put("q", Quarantined("n1", "", "a fan"), NOON_S)
    assert found.put("q", Quarantined("n2", "", "a fan"), NOON_S) == {"n1", "n2"}


def test_who_made_it_stands_in_its_reason() -> None:
    meta = {"name": "q", "annotations": {kube.REQUESTED_BY: "alice"}}
    assert read_quarantine({"metadata": meta, "spec": {"node": "n1", "reason": "a fan"}}).reason == (
        "a fan; asked for by alice"
    )


@pytest.mark.parametrize(("by", "words"), [("bob", "cleared by bob: a new fan"), ("", "cleared: a new fan")])
def test_one_that_is_cleared_holds_no_more_and_says_by_whom_it_was(by: str, words: str) -> None:
    cleared = manifest(cleared="a new fan")
    cleared["metadata"] |= {"generation": 2, "annotations": {kube.CHANGED_BY: f"2 {by}"} if by else {}}
    found = Quarantines()
    found.put("q", read_quarantine(manifest()), NOON_S)
    assert found.put("q", read_quarantine(cleared), NOON_S) == {"n1"}
    assert (found.notices("n1"), found.ended("n1")) == ((), {"quarantine": words})
    assert found.remove("q") == set()
    assert found.ended("n1") == {"quarantine": words}  # what came first counts


def test_one_that_is_only_deleted_or_over_says_so() -> None:
    found = Quarantines()
    found.put("q", Quarantined("n1", DEVICE, "two XIDs"), NOON_S)
    found.put("r", Quarantined("n1", "", "an hour", NOON_S + 3600), NOON_S)
    found.remove("q")
    found.drop_over(NOON_S + 3600)
    assert found.ended("n1") == {DEVICE: "its Quarantine was deleted", "quarantine": "its time is over"}
    found.forget("n1")
    assert found.ended("n1") == {}
