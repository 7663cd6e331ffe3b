from __future__ import annotations

import random
from typing import Any

import jsonpatch
import pytest

from torchrelay.webhook.manifests.json_patch import difference


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(6 if depth else 4)
    if kind == 4:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {
            rng.choice(["a", "b/c", "d~e", "name", ""]): random_value(rng, depth - 1) for _ in range(rng.randrange(4))
        }
    return [None, rng.randrange(3), rng.choice(["x", "y"]), rng.random() < 0.5][kind]


@pytest.mark.parametrize("seed", range(300))
def test_the_patch_leads_from_any_document_to_any_other(seed: int) -> None:
    rng = random.Random(seed)
    old, new = random_value(rng, 4), random_value(rng, 4)
    result = jsonpatch.apply_patch({"doc": old}, difference({"doc": old}, {"doc": new}))
    assert repr(result["doc"]) == repr(new) or result["doc"] == new


def test_equal_documents_need_no_patch() -> None:
    assert difference({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == []


def test_a_list_that_grew_is_appended_to() -> None:
    patch = difference({"l": [{"name": "a"}]}, {"l": [{"name": "a", "v": 1}, {"name": "b"}]})
    assert patch == [
        {"op": "add", "path": "/l/0/v", "value": 1},
        {"op": "add", "path": "/l/-", "value": {"name": "b"}},
    ]


def test_true_and_1_are_not_the_same() -> None:
    assert difference({"a": True}, {"a": 1}) == [{"op": "replace", "path": "/a", "value": 1}]
