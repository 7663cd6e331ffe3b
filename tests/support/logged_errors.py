"""What a test's own event loop has logged as an error."""

from __future__ import annotations

import logging

import pytest


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages at ERROR and above, but for grpc's about the loop of an earlier test.

    All event loops of a process share one poller of grpc. It gives a late event of a loop that is closed to whichever
    loop runs then, and asyncio logs there that it could not be handed on.
    """
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR and not _is_of_a_closed_loop(r)]


def _is_of_a_closed_loop(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return (
        record.name == "asyncio"
        and "PollerCompletionQueue._handle_events" in record.getMessage()
        and isinstance(error, RuntimeError)
        and str(error) == "Event loop is closed"
    )
