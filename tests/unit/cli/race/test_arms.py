from dataclasses import replace
from pathlib import Path

import pytest

from torchrelay.cli.race import program
from torchrelay.cli.race.arms import ARMS, Arm, ArmSetting, chosen

SETTING = ArmSetting(program.demo(40), 2, 1, Path("/race"), "/peer/bin/python", 7, 4711)


def arm(name: str) -> Arm:
    return next(a for a in ARMS if a.name == name)


def argv(name: str, setting: ArmSetting = SETTING) -> tuple[str, ...]:
    return arm(name).parts(setting)[-1].argv


@pytest.mark.parametrize("name", ["baseline", "torchrelay"])
def test_the_demo_s_script_is_started_as_it_is(name: str) -> None:
    words = argv(name)

    assert any(word.endswith("/train_gpt.py") for word in words)
    assert f"--checkpoint-every={program.NEVER}" in words
    assert SETTING.program.lines_changed(arm(name).kind) == 0


@pytest.mark.parametrize("name", [a.name for a in ARMS])
def test_every_arm_trains_with_the_same_data(name: str) -> None:
    words = argv(name)

    assert [w for w in words if w.startswith(("--epochs", "--sequences", "--batch"))] == [
        "--epochs=2",
        "--sequences=240",
        "--batch=6",
    ]


@pytest.mark.parametrize("name", ["checkpoint", "nvrx"])
def test_arms_with_checkpoints_save_as_often_as_they_are_told(name: str) -> None:
    assert "--checkpoint-every=7" in argv(name)


def test_torchft_has_a_lighthouse_and_a_group_for_each_rank() -> None:
    parts = arm("torchft").parts(replace(SETTING, ranks=3))

    assert [p.name for p in parts] == ["lighthouse", "group-0", "group-1", "group-2"]
    assert parts[0].argv[0] == "/peer/bin/torchft_lighthouse"
    assert [p.variables["REPLICA_GROUP_ID"] for p in parts[1:]] == ["0", "1", "2"]
    assert {p.variables["NUM_REPLICA_GROUPS"] for p in parts[1:]} == {"3"}


def test_where_the_steps_of_a_rank_are_written_depends_on_who_starts_it() -> None:
    recorded = Path("/race/recorded")

    assert arm("torchrelay").logs(SETTING) == [recorded / "rank-0.jsonl", recorded / "rank-1.jsonl"]
    assert arm("torchft").logs(SETTING) == [recorded / "0" / "rank-0.jsonl", recorded / "1" / "rank-0.jsonl"]


def test_only_torchrelay_has_processes_that_stand_by() -> None:
    assert {a.name: a.spares(SETTING) for a in ARMS if a.spares(SETTING)} == {"torchrelay": 1}


def test_the_baseline_is_always_there_and_never_struck() -> None:
    assert [a.name for a in chosen(["nvrx"])] == ["baseline", "nvrx"]
    assert [a.name for a in ARMS if not a.is_struck] == ["baseline"]
    assert chosen([]) == list(ARMS)


def test_changed_scripts_have_lines_of_their_own() -> None:
    demo = program.demo(40)

    assert 40 <= demo.lines_changed(program.TORCHFT) < 120
    assert 60 <= demo.lines_changed(program.CHECKPOINT) < demo.lines_changed(program.NVRX) < 150
