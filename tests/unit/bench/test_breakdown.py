"""The clocks that show where a step's time goes must not be part of what they measure."""

from __future__ import annotations

import builtins
import json
import operator
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.host_state import journal, take
from support.loop_script import LoopScript

from torchrelay.shim.instrument.rewrite import HOOKS, instrument

BENCH = Path(__file__).resolve().parents[3] / "bench"


class Engine:
    """What the clocks are put into, by the names that they look for."""

    def __init__(self) -> None:
        self.writer = SimpleNamespace(walk=lambda: 3, boundary=len, gate=len)
        self.replicas = SimpleNamespace(at_boundary=len)
        self.updates = SimpleNamespace(gate=SimpleNamespace(pass_protected=len, _wait=len))

    def take_boundary(self) -> int:
        return int(self.writer.walk())


@pytest.fixture
def breakdown(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    import breakdown

    yield breakdown
    sys.modules.pop("breakdown")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    runtime = SimpleNamespace(tracker=lambda: SimpleNamespace(listener=engine))
    monkeypatch.setattr(builtins, HOOKS, runtime, raising=False)
    return engine


def test_each_part_that_was_called_has_its_median_times(breakdown: ModuleType, engine: Engine, tmp_path: Path) -> None:
    breakdown.attach()
    breakdown.attach()
    assert [engine.take_boundary() for _ in range(3)] == [3, 3, 3]
    breakdown.write(tmp_path / "parts.json")
    parts = json.loads((tmp_path / "parts.json").read_text())
    assert list(parts) == ["boundary", "  walk of the host state"]
    assert parts["boundary"][0] > parts["  walk of the host state"][0] > 0


def test_the_clocks_in_a_scripts_variables_are_neither_walked_nor_written_down(
    breakdown: ModuleType, engine: Engine
) -> None:
    plain: dict[str, Any] = {"losses": [0.5]}
    breakdown.attach()
    for _ in range(100):
        engine.take_boundary()
    timed = plain | {"attach": breakdown.attach, "write": breakdown.write}
    assert len(take(timed).nodes) == len(take(plain).nodes)
    assert journal(timed) == journal(plain)


@pytest.mark.parametrize("name", ["breakdown.py", "in_turns.py"])
def test_a_module_that_measures_is_none_of_the_scripts(name: str) -> None:
    path = BENCH / name
    assert not instrument(path.read_bytes(), str(path)).sites


def test_all_parts_are_where_the_engine_has_them(
    breakdown: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = LoopScript(monkeypatch, tmp_path).engine
    assert all(callable(operator.attrgetter(path)(engine)) for path, _ in breakdown.PARTS)
