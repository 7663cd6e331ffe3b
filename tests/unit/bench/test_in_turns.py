"""Protection that is switched off and on again within one run is that of the engine as it is now."""

from __future__ import annotations

import builtins
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.loop_script import LoopScript

from torchrelay.shim.instrument.rewrite import HOOKS

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_a_gate_is_passed_unseen_while_it_is_off_and_as_ever_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import in_turns

    engine: Any = LoopScript(monkeypatch, tmp_path).engine
    monkeypatch.setattr(builtins, HOOKS, SimpleNamespace(tracker=lambda: SimpleNamespace(listener=engine)))
    whole: list[Any] = []
    monkeypatch.setattr(engine.updates.gate, "pass_protected", whole.append)
    assert not in_turns.turn(1)
    engine.step.reached_head()
    engine.updates.gate.pass_protected(None)
    assert (whole, engine.step.gates_passed) == ([], 1)
    assert in_turns.turn(1)
    engine.updates.gate.pass_protected("a frame")
    assert (whole, engine.step.gates_passed) == (["a frame"], 1)
