"""`kubectl torchrelay`, also `kubectl-torchrelay` and `python -m torchrelay.cli.cluster`."""

from __future__ import annotations

from torchrelay.cli.__main__ import end_with
from torchrelay.cli.cluster.app import app


def main(arguments: list[str] | None = None) -> None:
    """Run one command and end the process with its exit code."""
    end_with(app, "kubectl torchrelay", arguments)


if __name__ == "__main__":
    main()
