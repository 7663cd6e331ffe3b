"""The agent is told how far tensors are: by a rank that saves them, and by one that takes them over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchrelay.protocol.messages import BytesDone, CheckpointSaved, Plan, SaveCheckpoint
from torchrelay.shim.join.joiner_dialogue import Dialogue
from torchrelay.shim.recovery.generation_switch import GenerationSwitch
from torchrelay.shim.transfer import pace


def test_a_rank_that_saves_tells_of_its_own_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "EVERY_S", 0.0)
    sent: list[Any] = []
    switch: Any = object.__new__(GenerationSwitch)
    updates = SimpleNamespace(take_back_early=lambda target: None)
    switch._engine, switch._link = (
        SimpleNamespace(commit=SimpleNamespace(state=SimpleNamespace(roots=())), updates=updates),
        SimpleNamespace(send=sent.append),
    )
    switch._tensors_at = lambda commit, target: {"w": torch.ones(2 << 20)}
    switch._inject = lambda phase: None
    switch._save(SaveCheckpoint(3, str(tmp_path / "rank-0"), True, 7))
    size = 8 << 20
    assert sent == [BytesDone(3, size // 2, size), BytesDone(3, size, size), CheckpointSaved(3, size)]


def test_a_rank_that_takes_over_tells_of_the_generation_that_it_enters() -> None:
    sent: list[Any] = []
    dialogue: Any = object.__new__(Dialogue)
    dialogue._engine = SimpleNamespace(link=SimpleNamespace(send=sent.append), protection="integrity", own=None)
    dialogue.plan, dialogue.generation = Plan(4, 7, "enter"), 4
    dialogue.journal = SimpleNamespace(boundary=6)
    dialogue._inject = lambda phase: None

    def receive(plan: Plan, generation: int, protection: str, moved: Any) -> Any:
        moved(1, 2)
        return SimpleNamespace(report=lambda generation: generation)

    assert dialogue.receive(SimpleNamespace(receive=receive, put_copy=lambda: False)) == 4
    assert sent == [BytesDone(4, 1, 2)]
