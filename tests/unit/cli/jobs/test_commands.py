from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest
from jsonschema import ValidationError, validate
from support.fake_controllers import (
    SECRET,
    DrainedController,
    EndingController,
    FakeController,
    LeavingController,
    SavingController,
    SparingController,
    with_controller,
)
from support.repository_script import script

from torchrelay.cli.controller_client.control import Control, local_user
from torchrelay.cli.jobs import spares
from torchrelay.cli.jobs.checkpoint import checkpoint
from torchrelay.cli.jobs.drain import drain
from torchrelay.cli.jobs.events import show_events
from torchrelay.cli.jobs.migrate import migrate
from torchrelay.cli.jobs.quarantine import add, clear, show
from torchrelay.cli.jobs.status import show_status
from torchrelay.cli.jobs.stop import stop as stop_job
from torchrelay.protocol.errors import ChannelClosedError
from torchrelay.protocol.names import EXIT_USAGE

SCHEMAS = script("generate_schemas").schemas()
STATUS_AS_JSON = {
    "run_id": "ab",
    "name": "",
    "folder": "",
    "started_s": 0.0,
    "world_size": 1,
    "generation": 0,
    "steps": 3,
    "steps_per_s": 1.5,
    "protection": "protected",
    "protection_reason": "armed",
    "coverage": None,
    "spares": {"wanted": 0, "ready": 1, "making": 0, "reason": "", "processes": []},
    "migrations_done": 0,
    "last_migration": "",
    "moving": None,
    "ranks": [
        {"rank": 0, "worker": "n0.w0", "node": "n0", "pid": 17, "boundary": 3, "phase": "body", "state": "running"}
    ],
    "ranks_spread": 0,
    "spread_reason": "",
    "quarantine": [],
    "health": [],
    "restarts": [],
    "rungs": [],
}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def test_status_prints_what_the_controller_says(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_controller(FakeController(), state, lambda _: show_status(None, False, False)) == 0
    assert "   0  n0.w0   n0     17     3  body   running" in capsys.readouterr().out


def test_status_as_json_has_every_field(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_controller(FakeController(), state, lambda _: show_status("ab", True, False)) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == STATUS_AS_JSON
    validate(printed, SCHEMAS["status.schema.json"])


@pytest.mark.parametrize(
    ("controller", "code", "said"),
    [
        (FakeController(), 0, "rank 0 moved to n0.s0: no step redone, 0.80 s of downtime"),
        (FakeController(outcome="abandoned"), 1, "the migration was given up: the joiner died"),
        (FakeController(accepted=False), 2, "error: rank 0 does not move: rank 0: fan"),
        (FakeController(moved=2), 1, "rank 0 did not move: another rank was lost meanwhile"),
        (EndingController(), 1, "the job ended before the migration did"),
        (LeavingController(), 1, "no answer: the job is over, or has lost its controller"),
    ],
)
def test_migrate_ends_as_the_migration_does(
    controller: FakeController, code: int, said: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_controller(controller, state, lambda _: migrate(0, "fan", None, wait=True)) == code
    assert said in capsys.readouterr().err


def test_migrate_tells_each_phase_while_it_waits(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_controller(FakeController(), state, lambda _: migrate(0, "fan", None, wait=True))
    assert "  prepare: 1.25 s" in capsys.readouterr().err


def test_migrate_without_waiting_ends_once_it_is_accepted(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_controller(FakeController(), state, lambda _: migrate(0, "fan", None, wait=False)) == 0
    assert capsys.readouterr().err == "rank 0: fan\n"


@pytest.mark.parametrize(("subject", "code"), [("GPU-1", 0), ("GPU-2", EXIT_USAGE)])
def test_clear_says_what_came_of_it(subject: str, code: int, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_controller(FakeController(), state, lambda _: clear(subject, "was reset", None)) == code
    hint = "hint: torchrelay quarantine list --run ab\n" if code else ""
    assert capsys.readouterr().err == f"{'error: ' if code else ''}{subject}: was reset\n{hint}"


def test_quarantine_lists_what_is_in_it_and_takes_more(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_controller(DrainedController(), state, lambda _: show(None, as_json=False)) == 0
    assert capsys.readouterr().out == "n1: x\n"
    assert with_controller(DrainedController(), state, lambda _: show(None, as_json=True)) == 0
    printed = json.loads(capsys.readouterr().out)
    validate(printed, SCHEMAS["quarantine.schema.json"])
    assert printed == {"run_id": "ab", "quarantine": [{"subject": "n1", "reason": "x"}]}
    assert with_controller(DrainedController(), state, lambda _: add("n1", "fan", None)) == 0
    assert with_controller(DrainedController(known=False), state, lambda _: add("n9", "fan", None)) == EXIT_USAGE
    hint = "hint: torchrelay status --run ab\n"
    assert capsys.readouterr().err == f"n1: fan\nerror: n9: fan\n{hint}"


@pytest.mark.parametrize(
    ("controller", "node", "code", "said"),
    [
        (DrainedController(), "n1", 0, "n1 is free: nothing of job ab needs it any more"),
        (DrainedController(), "n2", 0, "n2 is free: no rank runs there (ranks run on n0, n1)"),
        (DrainedController(known=False), "n1", EXIT_USAGE, "n1 is not drained: n1: switch"),
        (
            DrainedController(stays="none is left", until_over=False),
            "n1",
            1,
            "n1 is not free: 1 rank still there: none is left",
        ),
    ],
)
def test_drain_says_when_the_node_is_free(
    controller: DrainedController, node: str, code: int, said: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_controller(controller, state, lambda _: drain(node, "switch", None, 2.0)) == code
    told = capsys.readouterr().err
    assert said in told
    assert "the day before" not in told
    if code == 1:
        assert "torchrelay quarantine clear n1 --reason kept --run ab" in told


def test_drain_does_not_wait_for_ranks_that_nothing_would_move(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    controller = DrainedController(refused="the job is not protected", until_over=False)
    assert with_controller(controller, state, lambda _: drain("n1", "switch", None, None)) == 1
    assert "rank 1 stays: the job is not protected" in capsys.readouterr().err


def test_events_are_told_in_words_and_as_json(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_controller(FakeController(), state, lambda _: show_events(None, False, False)) == 0
    told = capsys.readouterr().out.splitlines()
    assert "rank 0 moved to n0.s0" in told[-1]
    assert not any("torchrelay: " in line for line in told)
    assert with_controller(FakeController(), state, lambda _: show_events(None, False, True)) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for event in printed:
        validate(event, SCHEMAS["events.schema.json"])
    assert [event["name"] for event in printed] == ["migration_started", "phase", "phase", "migration_finished"]


@pytest.mark.parametrize(
    ("controller", "code", "said"),
    [
        (SparingController(), 0, "spare n0.s1 on n0 is ready (1 of 1)"),
        (SparingController(accepted=False), EXIT_USAGE, "no spare is added: 1 on n0"),
        (SparingController(why="no memory"), 1, "spare n0.s1 is of no use: no memory"),
    ],
)
def test_spares_add_waits_until_they_are_ready(
    controller: SparingController, code: int, said: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_controller(controller, state, lambda _: spares.add(1, "", None, wait=True)) == code
    assert said in capsys.readouterr().err


def test_spares_lists_each_and_what_to_do_without_any(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_controller(SparingController(), state, lambda _: spares.show(None, as_json=False)) == 0
    told = capsys.readouterr().out
    assert told.startswith("1 of 1 spare ready\n")
    assert "n0.s0  n0     21  ready  3 min" in told
    assert with_controller(SparingController(), state, lambda _: spares.show(None, as_json=True)) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["wanted"], facts["processes"][0]["state"]) == (1, "ready")
    validate(facts, SCHEMAS["spares.schema.json"])


def test_stop_waits_for_the_jobs_end(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    controller = DrainedController()
    assert with_controller(controller, state, lambda _: stop_job(None, wait=True)) == 0
    assert controller.stopped == [15]
    assert capsys.readouterr().err == "job ab has ended\n"


def test_a_stop_carries_the_signal(state: Path) -> None:
    controller = FakeController()

    async def stop(port: int) -> int:
        async with Control("127.0.0.1", port, SECRET) as control:
            await control.stop(2)
            await control.stop(2, of_own_command=True)
        return 0

    with_controller(controller, state, stop)
    assert controller.stopped == [2, 2]
    assert controller.asked_by == [local_user(), ""]


def test_another_jobs_secret_is_turned_away(state: Path) -> None:
    async def ask(port: int) -> int:
        async with Control("127.0.0.1", port, SECRET[::-1]) as control:
            with pytest.raises(ChannelClosedError, match=f"controller at 127.0.0.1:{port}"):
                await control.status()
        return 0

    assert with_controller(FakeController(), state, ask) == 0


def test_the_schemas_are_up_to_date_and_refuse_what_is_not_of_them() -> None:
    texts = script("generate_schemas").texts()
    assert [p.name for p, text in texts.items() if p.read_text("utf-8") != text] == [], (
        "run: python scripts/generate_schemas.py"
    )
    for wrong in ({**STATUS_AS_JSON, "spares_warm": 1}, {**STATUS_AS_JSON, "steps": "3"}):
        with pytest.raises(ValidationError):
            validate(wrong, SCHEMAS["status.schema.json"])
    with pytest.raises(ValidationError):
        validate({"time_s": 1.0, "name": "phase", "migration": "m1"}, SCHEMAS["events.schema.json"])


@pytest.mark.parametrize(
    ("outcome", "accepted", "code", "says"),
    [
        ("saved", True, 0, "hint: torchrelay run --resume /jit/ab-step7-asked"),
        ("abandoned", True, 1, "no checkpoint was saved: no room; the job goes on as it was"),
        ("over", True, 1, "the job ended before the checkpoint was saved"),
        ("refused", False, EXIT_USAGE, "hint: torchrelay status --run ab"),
        ("again", False, EXIT_USAGE, "hint: torchrelay checkpoint ab"),
    ],
)
def test_a_checkpoint_is_followed_to_its_end(
    outcome: str, accepted: bool, code: int, says: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    controller = SavingController(outcome, accepted)
    assert with_controller(controller, state, lambda _: checkpoint("why", None, wait=True, as_json=True)) == code
    out, err = capsys.readouterr()
    assert says in err
    told = json.loads(out)
    validate(told, SCHEMAS["checkpoint.schema.json"])
    assert (told["directory"], told["boundary"]) == (("/jit/ab-step7-asked", 7) if outcome == "saved" else ("", -1))


def test_a_checkpoint_that_is_not_waited_for_is_told_as_accepted(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    controller = SavingController("saved")
    assert with_controller(controller, state, lambda _: checkpoint("why", None, wait=False, as_json=True)) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "accepted"


@pytest.mark.parametrize(
    ("known", "sudo", "says"), [(True, "", "carol"), (True, "alice", "carol (sudo by alice)"), (False, "", "user 4711")]
)
def test_a_command_says_whose_it_is(known: bool, sudo: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    users = {4711: pwd.struct_passwd(("carol", "x", 4711, 4711, "", "/", "/bin/sh"))} if known else {}
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    monkeypatch.setattr(pwd, "getpwuid", users.__getitem__)
    monkeypatch.setenv("SUDO_USER", sudo)
    assert local_user() == says
