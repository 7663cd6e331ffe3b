"""A class name means one thing in the whole project, so that a reader who meets it knows which one it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("agent", "cli", "controller", "dashboard", "protocol", "shim", "webhook")
ONE_MEANING = {
    "CheckpointSaved": "what a rank says of its part, and the event that tells of the whole",
}


def homes() -> dict[str, list[str]]:
    """Return the files in which each public class is defined, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for part in PARTS:
        for file in sorted((ROOT / part).rglob("*.py")):
            if not file.name.startswith("relay_pb2"):
                for node in ast.parse(file.read_text()).body:
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        found[node.name].append(str(file.relative_to(ROOT)))
    return found


def test_no_class_name_is_used_twice() -> None:
    found = homes()
    assert len(found) > 500, "the tree was not read"
    twice = {name: files for name, files in found.items() if len(files) > 1 and name not in ONE_MEANING}
    assert twice == {}


def test_exceptions_are_still_needed() -> None:
    assert {name for name in ONE_MEANING if len(homes()[name]) < 2} == set()
