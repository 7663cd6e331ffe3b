"""`torchrelay`, also `python -m torchrelay.cli`."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from torchrelay.cli.app.program import app
from torchrelay.cli.command_line import unsupported
from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.logs.standard_streams import open_closed_ones, write_line
from torchrelay.protocol.names import EXIT_USAGE


def main(arguments: list[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    open_closed_ones()
    end_with(app, "torchrelay", arguments)


def end_with(commands: typer.Typer, program: str, arguments: list[str] | None = None) -> NoReturn:
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
    sys.exit(code)


def _usage_message(error: typer.TyperException, program: str) -> str:
    advice = unsupported.advice(getattr(error, "option_name", None) or "")
    if advice:
        return advice
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else program
    return f"{error.format_message()}\nTry `{path} --help`."


def _say(message: str) -> None:
    if message.strip():
        write_line(f"torchrelay: {message}")


if __name__ == "__main__":
    main()
