"""`torchrelay`, also `python -m torchrelay.cli`."""

from __future__ import annotations

import sys

import typer

from torchrelay.cli import unsupported
from torchrelay.cli.app import app
from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.names import EXIT_USAGE


def main(arguments: list[str] | None = None) -> None:
    """Runs one command and ends the process with its exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="torchrelay", standalone_mode=False)
    except typer.TyperException as e:
        _say(_usage_message(e))
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


def _usage_message(error: typer.TyperException) -> str:
    advice = unsupported.advice(getattr(error, "option_name", None) or "")
    if advice:
        return advice
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "torchrelay"
    return f"{error.format_message()}\nTry `{path} --help`."


def _say(message: str) -> None:
    if message.strip():
        print(f"torchrelay: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
