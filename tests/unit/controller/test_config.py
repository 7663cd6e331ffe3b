from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchrelay.controller.config import load_config
from torchrelay.protocol.errors import UserError

NEEDED: dict[str, Any] = {
    "run_id": "r",
    "nnodes": 2,
    "nproc_per_node": 4,
    "secret_file": "/s",
    "address_file": "/a",
    "jit_dir": "/j",
    "master_addr": "127.0.0.1",
    "master_port": 29500,
}


def written(folder: Path, values: Any) -> Path:
    path = folder / "controller.json"
    path.write_text(json.dumps(values))
    return path


def test_single_numbers_of_policy_and_deadlines_can_be_set(tmp_path: Path) -> None:
    config = load_config(
        written(tmp_path, NEEDED | {"policy": {"hang_extra_s": 2}, "deadlines": {"preparing_s": 20.5}})
    )
    assert (config.world_size, config.policy.hang_extra_s, config.policy.hang_step_factor) == (8, 2.0, 3.0)
    assert (config.deadlines.preparing_s, config.deadlines.fencing_s) == (20.5, 15.0)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "is no JSON object"),
        (NEEDED | {"colour": 1}, "unknown key colour"),
        ({k: v for k, v in NEEDED.items() if k != "jit_dir"}, "jit_dir is missing"),
        (NEEDED | {"nnodes": "2"}, "nnodes cannot be '2'"),
        (NEEDED | {"nnodes": True}, "nnodes cannot be True"),
        (NEEDED | {"nnodes": 0}, "start at 1"),
        (NEEDED | {"policy": {"patience": 1}}, "unknown key patience"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, values: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        load_config(written(tmp_path, values))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_config(tmp_path / "no.json")
