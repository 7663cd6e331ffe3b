"""How a process has ended, in the words that events, stories and messages have for it."""

from __future__ import annotations

import signal


def how_ended(signal_number: int, exit_code: int) -> str:
    """Return `was killed by SIGKILL`, or `ended with exit code 3`. `signal_number`: 0 if it ended by itself."""
    if not signal_number:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(signal_number).name}"
    except ValueError:
        return f"was killed by signal {signal_number}"
