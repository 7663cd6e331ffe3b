"""A launcher that is to start several processes in a pod, all with one local rank, is noted."""

from __future__ import annotations

from typing import Any

import pytest

from torchrelay.webhook.injection.launchers import processes_note

VIRTUAL = "--virtual-local-rank"


@pytest.mark.parametrize(
    ("container", "count"),
    [
        ({"command": ["torchrun", VIRTUAL, "--nproc-per-node", "1", "train.py"]}, ""),
        ({"command": ["torchrun", VIRTUAL, "--nproc_per_node=2", "train.py"]}, "2"),
        ({"command": ["torchrun", "--nproc_per_node=2", "train.py"]}, ""),
        ({"command": ["torchrun"], "args": ["--virtual_local_rank", "--nproc-per-node", "gpu", "train.py"]}, "gpu"),
        ({"command": ["sh", "-c", f'exec torchrun {VIRTUAL} --nproc-per-node="8" train.py']}, "8"),
        ({"command": ["torchrun", VIRTUAL, "train.py"], "env": [{"name": "PET_NPROC_PER_NODE", "value": "4"}]}, "4"),
        ({"command": ["torchrun", "train.py"], "env": [{"name": "PET_NPROC_PER_NODE", "value": "4"}]}, ""),
        ({"command": ["torchrun", VIRTUAL, "train.py"], "env": [{"name": "PET_NPROC_PER_NODE", "value": "1"}]}, ""),
        (
            {
                "command": ["torchrun", "--nproc-per-node=2", "train.py"],
                "env": [{"name": "PET_VIRTUAL_LOCAL_RANK", "value": "1"}],
            },
            "2",
        ),
        ({"command": ["python", "train.py"]}, ""),
        ({}, ""),
    ],
)
def test_processes_are_counted_in_each_form_of_a_launch_command(container: dict[str, Any], count: str) -> None:
    note = processes_note(container)
    assert bool(note) == bool(count)
    assert f"starts {count} training processes" in note or not count
