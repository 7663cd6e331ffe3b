"""The agent's configuration file: what fits is taken, anything else is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchrelay.agent.config import AgentConfig, load_config
from torchrelay.protocol.errors import UserError

VALUES: dict[str, Any] = {
    "run_id": "r",
    "node": "n1",
    "node_rank": 1,
    "nnodes": 2,
    "nproc_per_node": 2,
    "spares": 1,
    "command": ["train.py", "--lr", "1"],
    "python": "/usr/bin/python3",
    "host": "10.0.0.2",
    "controller": "10.0.0.1:29476",
    "secret_file": "/run/secret",
    "run_dir": "/run/r",
    "journal_dir": "/dev/shm/r",
    "master_addr": "10.0.0.1",
    "master_port": 29500,
}


def load(tmp_path: Path, **changes: Any) -> AgentConfig:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps({k: v for k, v in (VALUES | changes).items() if v is not None}))
    return load_config(path)


def test_a_node_knows_its_processes_and_their_ranks(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.workers() == {"n1.w0": 2, "n1.w1": 3, "n1.s0": None}
    assert config.world_size == 4


def test_a_resumed_job_starts_with_spares_only(tmp_path: Path) -> None:
    assert set(load(tmp_path, resume=True).workers().values()) == {None}


def test_python_runs_the_command_unbuffered_unless_there_is_none(tmp_path: Path) -> None:
    assert load(tmp_path).argv == ["/usr/bin/python3", "-u", "train.py", "--lr", "1"]
    assert load(tmp_path, python="").argv == ["train.py", "--lr", "1"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"host": None}, "host is missing"),
        ({"hots": "x"}, "unknown key hots"),
        ({"spares": -1}, "spares"),
        ({"spares": "1"}, "spares cannot be '1'"),
        ({"spares": True}, "spares cannot be True"),
        ({"node_rank": 2}, "node_rank 2 is not within 0 to 1"),
        ({"nproc_per_node": 0}, "nproc_per_node"),
        ({"command": [], "python": ""}, "command is empty"),
        ({"command": "train.py"}, "command cannot be"),
        ({"inject": ["explode:rank=1,step=1"]}, "unknown fault"),
        ({"inject": ["kill:rank=4,step=1"]}, "no rank 4"),
        ({"tee": "7"}, "--tee 7"),
        ({"redirects": "0:3,"}, "--redirects 0:3,"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        load(tmp_path, **changes)


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "agent.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"agent\.json"):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_config(tmp_path / "nowhere.json")
