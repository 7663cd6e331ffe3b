"""What a command has asked a job for, and what came of it, as `--json` says it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from support.fake_controllers import (
    DrainedController,
    EndingController,
    FakeController,
    LeavingController,
    SparingController,
    with_controller,
)
from support.repository_script import script

from torchrelay.cli.jobs import spares
from torchrelay.cli.jobs.drain import drain
from torchrelay.cli.jobs.migrate import migrate
from torchrelay.cli.jobs.quarantine import add, clear
from torchrelay.cli.jobs.stop import stop
from torchrelay.protocol.names import EXIT_USAGE

SCHEMAS = script("generate_schemas").schemas()
Ask = Callable[[int], Awaitable[int]]


@pytest.fixture
def answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[FakeController, Ask, str], tuple[int, dict[str, Any]]]:
    """Returns the exit code and the one object on stdout, which is as its schema says."""
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path))

    def asked(controller: FakeController, ask: Ask, schema: str) -> tuple[int, dict[str, Any]]:
        code = with_controller(controller, tmp_path, ask)
        printed = json.loads(capsys.readouterr().out)
        validate(printed, SCHEMAS[f"{schema}.schema.json"])
        return code, printed

    return asked


@pytest.mark.parametrize(
    ("controller", "wait", "code", "outcome", "reason", "spare"),
    [
        (FakeController(), True, 0, "committed", "the joiner died", "n0.s0"),
        (FakeController(), False, 0, "accepted", "rank 0: fan", ""),
        (FakeController(outcome="abandoned"), True, 1, "abandoned", "the joiner died", ""),
        (FakeController(accepted=False), True, EXIT_USAGE, "refused", "rank 0: fan", ""),
        (FakeController(moved=2), True, 1, "abandoned", "another rank was lost meanwhile", ""),
        (EndingController(), True, 1, "abandoned", "the job ended before the migration did", ""),
    ],
)
def test_a_move(
    controller: FakeController, wait: bool, code: int, outcome: str, reason: str, spare: str, answer: Any
) -> None:
    ended, told = answer(controller, lambda _: migrate(0, "fan", None, wait, as_json=True), "migrate")
    assert (ended, told["outcome"], told["reason"], told["spare"]) == (code, outcome, reason, spare)
    assert (told["run_id"], told["rank"], told["migration"]) == ("ab", 0, "" if outcome == "refused" else "m1")


def test_a_move_of_a_job_that_does_not_answer(answer: Any) -> None:
    ended, told = answer(LeavingController(), lambda _: migrate(0, "fan", None, True, as_json=True), "migrate")
    assert (ended, told["outcome"]) == (1, "no-answer")


@pytest.mark.parametrize(
    ("controller", "node", "code", "outcome", "left"),
    [
        (DrainedController(), "n1", 0, "free", []),
        (DrainedController(), "n2", 0, "free", []),
        (DrainedController(known=False), "n1", EXIT_USAGE, "refused", []),
        (DrainedController(refused="not protected"), "n1", 1, "not-free", [{"job": "ab", "ranks": [1]}]),
        (DrainedController(stays="no spare", until_over=False), "n1", 1, "not-free", [{"job": "ab", "ranks": [1]}]),
    ],
)
def test_a_drain(
    controller: DrainedController, node: str, code: int, outcome: str, left: list[Any], answer: Any
) -> None:
    ended, told = answer(controller, lambda _: drain(node, "switch", None, 2.0, as_json=True), "drain")
    assert (ended, told["node"], told["outcome"], told["left"]) == (code, node, outcome, left)


@pytest.mark.parametrize(("wait", "outcome"), [(True, "ended"), (False, "told")])
def test_a_stop(wait: bool, outcome: str, answer: Any) -> None:
    ended, told = answer(DrainedController(), lambda _: stop(None, wait, as_json=True), "stop")
    assert (ended, told["job"], told["outcome"]) == (0, "ab", outcome)


@pytest.mark.parametrize(
    ("controller", "code", "outcome", "moving", "staying"),
    [
        (DrainedController(), 0, "done", [1], []),
        (DrainedController(refused="not protected"), 0, "done", [], [1]),
        (DrainedController(known=False), EXIT_USAGE, "refused", [1], []),
    ],
)
def test_what_is_put_into_quarantine(
    controller: DrainedController, code: int, outcome: str, moving: list[int], staying: list[int], answer: Any
) -> None:
    ended, told = answer(controller, lambda _: add("n1", "fan", None, as_json=True), "quarantine-add")
    assert (ended, told["subject"], told["outcome"]) == (code, "n1", outcome)
    assert (told["moving"], told["staying"]) == (moving, staying)


@pytest.mark.parametrize(("subject", "code", "outcome"), [("GPU-1", 0, "cleared"), ("GPU-2", EXIT_USAGE, "refused")])
def test_what_is_taken_out_of_quarantine(subject: str, code: int, outcome: str, answer: Any) -> None:
    ended, told = answer(FakeController(), lambda _: clear(subject, "new", None, as_json=True), "quarantine-clear")
    assert (ended, told["subject"], told["outcome"]) == (code, subject, outcome)


@pytest.mark.parametrize(
    ("controller", "wait", "code", "outcome", "ready"),
    [
        (SparingController(), True, 0, "ready", ["n0.s1"]),
        (SparingController(), False, 0, "accepted", []),
        (SparingController(accepted=False), True, EXIT_USAGE, "refused", []),
        (SparingController(why="no memory"), True, 1, "not-ready", []),
    ],
)
def test_more_spares(
    controller: SparingController, wait: bool, code: int, outcome: str, ready: list[str], answer: Any
) -> None:
    ended, told = answer(controller, lambda _: spares.add(1, "", None, wait, as_json=True), "spares-add")
    assert (ended, told["count"], told["outcome"], told["ready"]) == (code, 1, outcome, ready)
