"""What tests start gets Ctrl-C as from a terminal, and no variables that this process has come by since it began."""

from __future__ import annotations

import os
import signal

import pytest

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # the tests are a shell's background job, and children would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

_AT_FIRST = frozenset(os.environ)


@pytest.fixture(autouse=True)
def environment_as_at_first() -> None:
    """Remove what imports have set, so that tests that came before do not decide what children do."""
    for name in os.environ.keys() - _AT_FIRST:
        if not name.startswith(("PYTEST_", "TORCHRELAY_TEST_")):
            del os.environ[name]
