"""A late event of an earlier test's loop is no error of this one; any other is."""

from __future__ import annotations

import logging

import pytest
from support.logged_errors import errors_of


def _logged(name: str, message: str, error: Exception) -> None:
    try:
        raise error
    except type(error):
        logging.getLogger(name).exception(message)


def test_what_grpc_says_of_a_closed_loop_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    _logged(
        "asyncio",
        "Exception in callback PollerCompletionQueue._handle_events(<loop>)()",
        RuntimeError("Event loop is closed"),
    )
    assert errors_of(caplog) == []


@pytest.mark.parametrize(
    ("name", "message", "error"),
    [
        ("asyncio", "Exception in callback PollerCompletionQueue._handle_events(<loop>)()", RuntimeError("another")),
        ("asyncio", "Exception in callback serve()", RuntimeError("Event loop is closed")),
        ("torchrelay.controller", "PollerCompletionQueue._handle_events", RuntimeError("Event loop is closed")),
    ],
)
def test_any_other_error_is_kept(name: str, message: str, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    _logged(name, message, error)
    assert errors_of(caplog) == [message]
