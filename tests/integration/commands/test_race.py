"""One run of a race, with real processes that are struck; their training is a script without torch."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from torchrelay.cli.race import heat, program
from torchrelay.cli.race.arms import Arm, ArmSetting, Part
from torchrelay.cli.race.faults import RaceFault, RaceFaultKind

STEPS = 120
TRAINING = """
    import json, os, sys, time
    path = sys.argv[1]
    with open(path, "a+") as log:
        log.seek(0)
        before = log.readlines()
        done = max(json.loads(before[-1])["number"] - 10, 0) if before else 0  # as from a checkpoint
        for number in range(done + 1, {steps} + 1):
            time.sleep(0.02)  # what a step takes
            log.write(json.dumps({{"process": os.getpid(), "number": number, "unix_s": time.time()}}) + "\\n")
            log.flush()
        log.write(json.dumps({{"process": os.getpid(), "end": {{"parameters": "weights"}}}}) + "\\n")
"""
RESTARTER = """
    import subprocess, sys
    while subprocess.run([sys.executable, *sys.argv[1:]]).returncode:
        pass
"""


@pytest.fixture
def setting(tmp_path: Path) -> ArmSetting:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINING).format(steps=STEPS))
    (tmp_path / "restarter.py").write_text(textwrap.dedent(RESTARTER))
    raced = program.RacedProgram(tmp_path / "train.py", {})
    return ArmSetting(raced, 2, 0, tmp_path / "arm", sys.executable, program.NEVER, 0)


def parts(setting: ArmSetting) -> list[Part]:
    folder = setting.folder.parent
    return [
        Part(
            f"group-{group}",
            (setting.python, str(folder / "restarter.py"), str(folder / "train.py"), str(record / "rank-0.jsonl")),
            record=record,
        )
        for group in range(setting.ranks)
        for record in [setting.folder / str(group)]
    ]


ARM = Arm("restarted", parts, "in place")


def processes(ran: heat.Heat, rank: int) -> list[int]:
    return list(dict.fromkeys(step.process for step in ran.logs[rank].steps))


def test_a_fault_strikes_the_process_that_does_the_rank_s_steps(setting: ArmSetting) -> None:
    ran = heat.run(ARM, setting, [(RaceFault(RaceFaultKind.KILL, (1,), 0.5), 0.3)], 60.0)

    assert ran.ended == ""
    assert [(s.fault.kind, s.due_s) for s in ran.struck] == [(RaceFaultKind.KILL, 0.3)]
    assert len(processes(ran, 0)) == 1
    assert len(processes(ran, 1)) == 2
    assert ran.struck[0].unix_s >= min(log.steps[0].unix_s for log in ran.logs) + 0.3


def test_a_second_fault_waits_until_the_rank_does_steps_that_are_new(setting: ArmSetting) -> None:
    kill = RaceFault(RaceFaultKind.KILL, (0,), 0.5)

    ran = heat.run(ARM, setting, [(kill, 0.2), (kill, 0.2)], 60.0)

    assert len(ran.struck) == 2
    assert len(processes(ran, 0)) == 3, "each of the two strikes found a process of its own"
    first, second = ([s.number for s in ran.logs[0].steps if s.process == p] for p in processes(ran, 0)[:2])
    assert len(second) > heat.SETTLED_STEPS
    assert second[0] < first[-1] < second[-1]


def test_a_stopped_rank_does_not_hold_up_the_race_nor_outlive_it(setting: ArmSetting) -> None:
    ran = heat.run(ARM, setting, [(RaceFault(RaceFaultKind.STOP, (1,), 0.5), 0.2)], 60.0)

    assert ran.ended == ""
    assert ran.logs[0].end == "weights"
    assert ran.logs[1].end == ""
    assert not any(psutil.pid_exists(pid) for rank in (0, 1) for pid in processes(ran, rank))


def test_an_arm_that_does_not_end_is_ended_at_its_limit(setting: ArmSetting) -> None:
    stops = [(RaceFault(RaceFaultKind.STOP, (rank,), 0.5), 0.2) for rank in (0, 1)]

    ran = heat.run(ARM, setting, stops, 4.0)

    assert ran.ended == "it had not ended at its time limit"
    assert not any(psutil.pid_exists(pid) for rank in (0, 1) for pid in processes(ran, rank))


def test_a_fault_that_finds_nothing_to_strike_is_told(setting: ArmSetting) -> None:
    late = RaceFault(RaceFaultKind.KILL, (0,), 0.9)

    ran = heat.run(ARM, setting, [(late, 500.0)], 60.0)

    assert ran.missed == [late]


def test_a_command_that_cannot_be_started_is_told(setting: ArmSetting) -> None:
    arm = Arm("absent", lambda t: [Part("gone", ("/no/such/command",), record=t.folder / "0")], "")

    assert heat.run(arm, setting, (), 5.0).ended.startswith("gone cannot be started")


def test_training_whose_service_has_ended_is_not_waited_for(setting: ArmSetting) -> None:
    service = Part("lighthouse", (setting.python, "-c", "raise SystemExit(1)"))
    arm = Arm("served", lambda t: [service, *parts(t)], "")

    ran = heat.run(arm, setting, [(RaceFault(RaceFaultKind.STOP, (rank,), 0.5), 0.2) for rank in (0, 1)], 60.0)

    assert ran.ended == "lighthouse ended before the training"
