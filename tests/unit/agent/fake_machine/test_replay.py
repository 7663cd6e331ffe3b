from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.fake_machines import fake_machine

from torchrelay.agent.fake_machine import replay
from torchrelay.cli.detect.command import load_episodes, timeline
from torchrelay.protocol.errors import UserError


def test_a_timeline_is_played_and_noted(tmp_path: Path) -> None:
    machine = fake_machine(tmp_path / "machine")
    plan = tmp_path / "plan.json"
    episodes = [
        {
            "name": "hot",
            "do": [["set", 0, "temperature", 80], ["pause", 0], ["add", 1, "pcie-replays", 2]],
            "last_s": 0,
        },
        {"name": "cool", "do": [["set", 0, "temperature", 40]], "last_s": 0, "undo": [["xid", 1, 31, "x", False]]},
    ]
    plan.write_text(json.dumps({"gpus": 2, "episodes": episodes}))
    asyncio.run(replay.play(machine, plan))
    state = machine.state.read_text().splitlines()
    assert {"gpu 0 temperature 40", "gpu 1 pcie-replays 2", "event 0 1 31"} <= set(state)
    played = [json.loads(line)["name"] for line in (tmp_path / replay.PLAYED).read_text().splitlines()]
    assert played == ["hot", "hot", "cool", "done"]


def test_the_timelines_of_bench_detect_can_be_played(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(timeline(load_episodes())))
    read = replay.read_timeline(plan)
    assert len(read.episodes) == len(load_episodes()) < read.gpus


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no timeline of faults"),
        ('{"episodes": []}', "is no timeline of faults"),
        ('{"gpus": 1, "episodes": [{"name": "x", "do": []}]}', "is no timeline of faults"),
        (
            '{"gpus": 1, "episodes": [{"name": "x", "last_s": 1, "do": [["explode"]]}]}',
            "'explode' is nothing that a fake machine can do",
        ),
        ('{"gpus": 65, "episodes": []}', "has 1 to 64 GPUs, not 65"),
    ],
)
def test_a_file_that_is_no_timeline_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        replay.read_timeline(path)


def test_an_agent_that_is_started_again_has_a_new_machine_in_the_place_of_the_old_one(tmp_path: Path) -> None:
    fake_machine(tmp_path, gpus=3).port(1, "state", "1: DOWN")
    again = fake_machine(tmp_path, gpus=2)
    assert again.state.read_text().splitlines() == ["gpus 2"]
    ports = again.sys / "class" / "infiniband"
    assert sorted(port.name for port in ports.iterdir()) == ["mlx5_0", "mlx5_1"]
    assert (ports / "mlx5_1" / "ports" / "1" / "state").read_text() == "4: ACTIVE\n"
