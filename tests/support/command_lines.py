"""Reads command lines as `torchrelay` and `kubectl torchrelay` would, and does nothing of what they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from torchrelay.cli.app.program import app
from torchrelay.cli.cluster.app import app as cluster_app
from torchrelay.webhook import offline

PROGRAMS = {"torchrelay": app, "kubectl torchrelay": cluster_app}
_WRAPPERS = ("srun", "exec", "nohup", "sudo", "env", "time")
_ENDS_A_COMMAND = frozenset(("|", "||", "&&", ";", "&", "(", ")"))
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_LANGUAGES = ("", "sh", "bash", "console")


class WrongCommandError(Exception):
    """The program would refuse this command line."""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command of both programs that does something, with all the words that call it."""
    for program, commands_of_it in PROGRAMS.items():
        yield from _commands(typer.main.get_command(commands_of_it), program)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    parts = getattr(command, "commands", {})
    if not parts or command.invoke_without_command:
        yield path, command
    for name, part in parts.items():
        yield from _commands(part, f"{path} {name}")


def read(words: Sequence[str]) -> None:
    """Raises WrongCommandError for a command, an option, or a value that the program does not know, and for what is missing."""
    program, rest = _program(words)
    command = typer.main.get_command(PROGRAMS[program])
    _disarm(command)
    if rest[:1] == ["inject"]:
        try:
            offline.command_line().parse_args(rest[1:])
        except SystemExit as e:
            if e.code:
                raise WrongCommandError(shlex.join(words)) from e
        return
    try:
        command.main(rest, prog_name=program, standalone_mode=False)
    except typer.TyperException as e:
        raise WrongCommandError(f"{shlex.join(words)}: {e.format_message()}") from e


def look(words: Sequence[str]) -> None:
    """As `read`, for a command line that leaves something out: its commands and options have to be known, and no more."""
    program, rest = _program(words)
    command = typer.main.get_command(PROGRAMS[program])
    while rest and (part := getattr(command, "commands", {}).get(rest[0])) is not None:
        command, rest = part, rest[1:]
    if rest and getattr(command, "commands", {}) and not rest[0].startswith("-"):
        raise WrongCommandError(f"{shlex.join(words)}: no command {rest[0]}")
    if command.name == "inject":
        return
    known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    for word in rest:
        if word.startswith("-") and word.partition("=")[0] not in known:
            raise WrongCommandError(f"{shlex.join(words)}: no option {word}")


def in_blocks(page: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours in the blocks of a Markdown page."""
    for block in _FENCE.finditer(page):
        if block["language"] not in _LANGUAGES:
            continue
        for line in block["text"].replace("\\\n", " ").splitlines():
            yield from _of_line(line)


def in_text(page: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours that stands in a sentence, in backticks."""
    for span in re.findall(r"`((?:kubectl )?torchrelay [^`\n]+)`", _FENCE.sub("", page)):
        yield shlex.split(span)


def _of_line(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        tokens = list(lexer)
    except ValueError:  # a picture, or what a program has said
        tokens = line.split()
    words: list[str] = []
    for token in (*tokens, ";"):
        if token in _ENDS_A_COMMAND:
            yield from _ours(words)
            words = []
        else:
            words.append(token)


def _ours(words: list[str]) -> Iterator[list[str]]:
    wrapped = False
    while words and ("=" in words[0] or words[0] in _WRAPPERS or (wrapped and words[0].startswith("-"))):
        wrapped = wrapped or words[0] in _WRAPPERS
        words = words[1:]
    if words[:3] in (["python", "-m", "torchrelay.cli"], ["python3", "-m", "torchrelay.cli"]):
        words = ["torchrelay", *words[3:]]
    redirected = next((n for n, word in enumerate(words) if word.startswith((">", "<"))), len(words))
    descriptor = redirected < len(words) and words[redirected - 1].isdecimal()
    words = words[: redirected - descriptor]
    if words[:1] == ["torchrelay"] or words[:2] == ["kubectl", "torchrelay"]:
        yield words


def _program(words: Sequence[str]) -> tuple[str, list[str]]:
    for program in sorted(PROGRAMS, key=len, reverse=True):
        called = program.split()
        if list(words[: len(called)]) == called:
            return program, list(words[len(called) :])
    raise WrongCommandError(f"{shlex.join(words)} is none of our programs")


def _disarm(command: Any) -> None:
    """Leave the reading of a command line, and nothing that it would do."""
    command.callback = None
    for part in getattr(command, "commands", {}).values():
        _disarm(part)
