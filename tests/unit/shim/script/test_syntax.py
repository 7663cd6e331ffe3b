"""The shim runs in the user's Python: its source must be what Python 3.10 understands."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest


def _sources() -> list[Path]:
    found = []
    for name in ("torchrelay.shim", "torchrelay.protocol"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        found += sorted(Path(spec.origin).parent.rglob("*.py"))
    return found


def test_there_are_sources_to_check() -> None:
    assert len(_sources()) > 60


@pytest.mark.parametrize("path", _sources(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_python_3_10_understands_the_source(path: Path) -> None:
    ast.parse(path.read_text(), str(path), feature_version=(3, 10))
