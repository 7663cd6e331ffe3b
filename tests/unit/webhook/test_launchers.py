"""A launcher that is to start several processes in a pod is noted."""

from __future__ import annotations

from typing import Any

import pytest

from torchrelay.webhook.launchers import processes_note


@pytest.mark.parametrize(
    ("container", "count"),
    [
        ({"command": ["torchrun", "--nproc-per-node", "1", "train.py"]}, ""),
        ({"command": ["torchrun", "--nproc_per_node=2", "train.py"]}, "2"),
        ({"command": ["torchrun"], "args": ["--nproc-per-node", "gpu", "train.py"]}, "gpu"),
        ({"command": ["sh", "-c", 'exec torchrun --nproc-per-node="8" train.py']}, "8"),
        ({"command": ["torchrun", "train.py"], "env": [{"name": "PET_NPROC_PER_NODE", "value": "4"}]}, "4"),
        ({"command": ["torchrun", "train.py"], "env": [{"name": "PET_NPROC_PER_NODE", "value": "1"}]}, ""),
        ({"command": ["python", "train.py"]}, ""),
        ({}, ""),
    ],
)
def test_each_form(container: dict[str, Any], count: str) -> None:
    note = processes_note(container)
    assert bool(note) == bool(count)
    assert f"starts {count} training processes" in note or not count
