"""What tests start gets Ctrl-C as from a terminal."""

from __future__ import annotations

import signal

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # the tests are a shell's background job, and children would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
