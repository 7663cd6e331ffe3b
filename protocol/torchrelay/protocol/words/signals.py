"""What the signal says that has ended a process."""

from __future__ import annotations

import signal

PROGRAM_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""What native code does to its own process; the others come from outside."""
