"""`torchrelay`, also `python -m torchrelay.cli`."""

from __future__ import annotations

import errno
import re
import shlex
import sys
from typing import Any, NoReturn

import typer

from torchrelay.cli.app.program import app
from torchrelay.cli.command_line import unsupported
from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.logs.standard_streams import drop_what_is_left, open_closed_ones, write_line
from torchrelay.protocol.names import EXIT_USAGE

_OF_THE_SYSTEM = re.compile(r"\[Errno \d+\] ([^:\n]+)(?:: '[^'\n]*')?")
"""As Python says what the system refuses: the number means nothing to people, and the path is in the message already."""
_WRONG_VALUE = re.compile(r"Invalid value for '(?P<name>[^']+)': Input should be (?P<what>[^,\n]+).*")
"""As typer says that a number is none."""
_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
"""What a write to a full or broken volume fails with, such as that of stdout into a file."""
_NO_COMMAND = re.compile(r"No such command '([^']+)'\.")
_NUMBERS = {"a valid integer": "a whole number", "a valid number": "a number"}


def main(arguments: list[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    open_closed_ones()
    end_with(app, "torchrelay", arguments)


def end_with(commands: typer.Typer, program: str, arguments: list[str] | None) -> NoReturn:
    """Run one of these commands and end the process with its exit code. `program`: as a user calls it."""
    command = typer.main.get_command(commands)
    try:
        code = command.main(arguments, prog_name=program, standalone_mode=False)
    except typer.TyperException as e:
        _say(_usage_message(e, program))
        code = EXIT_USAGE
    except UserError as e:
        _say(str(e))
        code = EXIT_USAGE
    except TorchrelayError as e:
        _say(str(e))
        code = 1
    except typer.Abort:
        code = 130
    except OSError as e:
        if e.errno not in _NO_ROOM:
            raise
        drop_what_is_left()
        _say(f"what was to be written is not whole: {e.strerror}")
        code = 1
    sys.exit(code)


def _usage_message(error: typer.TyperException, program: str) -> str:
    advice = unsupported.advice(getattr(error, "option_name", None) or "")
    if advice:
        return advice
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else program
    text = _WRONG_VALUE.sub(_in_words, error.format_message())
    return (
        f"{text}\nhint: {_listing(context, text) or f'{path} --help'}" if text else ""
    )  # a command without words shows its help


def _listing(context: Any, text: str) -> str:
    """Return the command that lists what there is of a job, for a user who has left out the word `list`; empty if there is none."""
    unknown = _NO_COMMAND.fullmatch(text)
    lists = getattr(getattr(context, "command", None), "commands", {}).get("list")
    if unknown is None or lists is None or not any(p.param_type_name == "argument" for p in lists.params):
        return ""
    return f"{context.command_path} list {shlex.quote(unknown[1])}"


def _in_words(found: re.Match[str]) -> str:
    what = _NUMBERS.get(found["what"], f"a number {found['what']}")
    return f"{found['name']}: give {what}"


def _say(message: str) -> None:
    if message.strip():
        write_line(f"error: {_OF_THE_SYSTEM.sub(_its_words, message)}")


def _its_words(found: re.Match[str]) -> str:
    return found[1].lower()


if __name__ == "__main__":
    main()
