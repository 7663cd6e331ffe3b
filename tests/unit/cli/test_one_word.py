"""One word for one thing: a field of one name has one type in every form of `--json` and in events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from support.repository_script import script

from torchrelay.protocol.metrics import table
from torchrelay.protocol.words import causes, level, phases, positions

SCHEMAS = script("generate_schemas").schemas()
TWO_MEANINGS = {
    "ranks": "which ones; in `history`, `report` and the event `progress` how many",
    "spares": "their counts; in events how many there are to be, or who took over",
    "migrations": "each of them; in `history` how many",
    "quarantine": "what is in it; of a verdict, what it bars",
    "ready": "how many are; in the answer of `spares add` which ones",
    "command": "as words; in the answer of `stop` as it is typed",
    "downtime_s": "by phase; of a fault in `report` the sum",
    "moving": "how far tensors are; in the answer of `quarantine add` which ranks leave",
}
"""Known, and kept for those who read these forms. No other word may come to mean two things."""


def types_of(schema: Any) -> frozenset[str]:
    """Of a field; that it may be missing (`null`) is no type of its own."""
    if "type" in schema:
        named = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        return frozenset(named) - {"null"}
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return frozenset().union(*(types_of(one) for one in schema[several]))
    return frozenset(type(value).__name__.replace("str", "string") for value in schema.get("enum", ()))


def fields(schema: Any) -> Iterator[tuple[str, frozenset[str]]]:
    if isinstance(schema, dict):
        for name, field in (schema.get("properties") or {}).items():
            if isinstance(field, dict):
                yield name, types_of(field)
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from fields(part)


def test_a_word_means_the_same_in_every_form() -> None:
    found: dict[str, set[frozenset[str]]] = defaultdict(set)
    for schema in SCHEMAS.values():
        for name, types in fields(schema):
            if types:
                found[name].add(types)
    assert len(found) > 150
    assert {name for name, types in found.items() if len(types) > 1} == set(TWO_MEANINGS)


@pytest.mark.parametrize(
    ("metric", "label", "words"),
    [
        (table.JOB_PROTECTION, "level", [one.value for one in level.Level]),
        (table.JOB_RANKS, "state", positions.RANK_STATES),
        (table.MIGRATION_PHASES, "phase", phases.DOWNTIME_ROWS),
        (table.JOB_PROTECTION_CAUSE, "cause", [one.value for one in causes.ProtectionCause]),
    ],
    ids=["level", "state of a rank", "phase", "cause"],
)
def test_metrics_have_the_words_of_events(metric: Any, label: str, words: Any) -> None:
    (values,) = (known.values for known in metric.labels if known.name == label)
    assert list(values) == list(words)
