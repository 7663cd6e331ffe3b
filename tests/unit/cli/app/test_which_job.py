"""A command about a running job is told which one as its last word, or with --run; and it is told the form of its answer."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import typer

from torchrelay.cli.app.program import app
from torchrelay.cli.command_line.which_job import which_job
from torchrelay.protocol.errors import UserError

WHY = ["--reason", "fan"]
COMMANDS = [
    (["status"], "jobs.status.show_status", ("ab", True, False), {}),
    (["events"], "jobs.events.show_events", ("ab", False, True), {}),
    (["migrate", "--rank", "2", *WHY], "jobs.migrate.migrate", (2, "fan", "ab"), {"wait": True, "as_json": True}),
    (["checkpoint", *WHY], "jobs.checkpoint.checkpoint", ("fan", "ab", True, True), {}),
    (["drain", "n1", *WHY], "jobs.drain.drain", ("n1", "fan", "ab", None, True), {}),
    (["stop"], "jobs.stop.stop", ("ab",), {"wait": True, "as_json": True}),
    (["quarantine", "list"], "jobs.quarantine.show", ("ab", True), {}),
    (["quarantine", "add", "n1", *WHY], "jobs.quarantine.add", ("n1", "fan", "ab", True), {}),
    (["quarantine", "clear", "n1", *WHY], "jobs.quarantine.clear", ("n1", "fan", "ab", False, True), {}),
    (["spares", "list"], "jobs.spares.show", ("ab", True), {}),
    (["spares", "add", "1"], "jobs.spares.add", (1, "", "ab"), {"wait": True, "as_json": True}),
    (["explain", "m2"], "history.explain.explain", ("m2", "ab", True), {}),
]
Called = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Called]:
    """Has a function of the commands do nothing but note what it is called with."""

    def record(path: str) -> Called:
        module, _, function = f"torchrelay.cli.{path}".rpartition(".")
        calls: Called = []

        async def noted(*words: Any, **named: Any) -> int:
            calls.append((words, named))
            return 0

        monkeypatch.setattr(importlib.import_module(module), function, noted)
        return calls

    return record


@pytest.mark.parametrize("job", [["ab"], ["--run", "ab"], ["ab", "--run", "ab"]])
@pytest.mark.parametrize(("words", "function", "given", "named"), COMMANDS)
def test_a_job_is_named_as_an_argument_or_with_run(
    job: list[str],
    words: list[str],
    function: str,
    given: tuple[Any, ...],
    named: dict[str, Any],
    recorded: Callable[[str], Called],
) -> None:
    calls = recorded(function)
    assert typer.main.get_command(app)([*words, *job, "--json"], standalone_mode=False) == 0
    assert calls == [(given, named)]


@pytest.mark.parametrize("words", [["spares", "--run", "ab"], ["spares", "list", "ab"]])
def test_spares_without_a_command_are_listed(words: list[str], recorded: Callable[[str], Called]) -> None:
    calls = recorded("jobs.spares.show")
    assert typer.main.get_command(app)(words, standalone_mode=False) == 0
    assert calls == [(("ab", False), {})]


def test_two_names_for_one_job_are_refused() -> None:
    assert which_job(None, None) is None
    with pytest.raises(UserError, match="ab and --run cd are two jobs"):
        which_job("ab", "cd")
