"""What `--help` says: each command of both programs has an example, and programs can read what it answers."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from support.command_lines import WrongCommandError, commands, read

from torchrelay.cli.__main__ import end_with
from torchrelay.cli.app.program import app
from torchrelay.webhook import offline

COMMANDS = dict(commands())
SHOWS = ("top", "dashboard", "plot", "inject", "bench")
"""Commands that show a view, draw, or write files; what they write has options of its own."""


def examples(command: Any) -> list[str]:
    return re.findall(r"^\s*Example: (.+)$", command.help or "", re.MULTILINE)


@pytest.mark.parametrize("path", COMMANDS)
def test_each_command_has_an_example_of_its_own_that_is_read(path: str) -> None:
    (example,) = examples(COMMANDS[path])
    assert f"{example} ".startswith(f"{path} ")
    read(shlex.split(example))


def test_an_example_with_a_wrong_option_command_or_value_is_refused() -> None:
    for wrong in (
        "torchrelay status --nowhere",
        "torchrelay statos",
        "torchrelay migrate --rank two --reason x",
        "torchrelay migrate --rank 2",
        "torchrelay inject --nowhere",
        "kubectl torchrelay spares add llama",
        "kubectl get pods",
    ):
        with pytest.raises(WrongCommandError):
            read(shlex.split(wrong))


def test_inject_shows_its_example_where_its_options_are() -> None:
    assert "Example: torchrelay inject -f job.yaml" in offline.command_line().format_help()


@pytest.mark.parametrize("path", [p for p in COMMANDS if not set(SHOWS) & set(p.split())])
def test_each_command_that_answers_something_answers_as_json(path: str) -> None:
    assert "--json" in {option for p in COMMANDS[path].params for option in p.opts}


@pytest.mark.parametrize("before", [["--run", "ab"], ["--json"]])
def test_what_is_given_before_a_command_of_spares_is_not_dropped(
    before: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        end_with(app, "torchrelay", ["spares", *before, "add", "1"])
    assert "give options behind the command: torchrelay spares add" in capsys.readouterr().err
