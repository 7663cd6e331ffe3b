"""Who has changed a resource last, and what is said where that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.changed_by import changed_by, written

ALICE = {kube.REQUESTED_BY: "alice"}
SCALED = {
    "manager": "kubectl",
    "subresource": "scale",
    "time": "2026-01-02T00:00:00Z",
    "fieldsV1": {"f:spec": {"f:spares": {}}},
}
OLDER = {"manager": "torchrelay", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:job": {}}}}
STATUS = {"manager": "torchrelay", "time": "2026-01-03T00:00:00Z", "fieldsV1": {"f:status": {}}}


@pytest.mark.parametrize(
    ("meta", "by"),
    [
        ({"generation": 1, "annotations": ALICE}, "alice"),
        ({"generation": 2, "annotations": {**ALICE, kube.CHANGED_BY: written("bob", 2)}}, "bob"),
        ({"generation": 2, "annotations": {kube.CHANGED_BY: written("a name of words", 2)}}, "a name of words"),
        # kubectl scale goes past the webhook: neither bob nor alice has done that
        (
            {
                "generation": 3,
                "annotations": {**ALICE, kube.CHANGED_BY: written("bob", 2)},
                "managedFields": [SCALED, STATUS, OLDER],
            },
            "somebody with kubectl",
        ),
        ({"generation": 3, "annotations": {**ALICE, kube.CHANGED_BY: written("bob", 2)}}, ""),
        ({}, ""),
    ],
)
def test_who_has_changed_it(meta: dict[str, Any], by: str) -> None:
    assert changed_by({"metadata": meta}) == by
