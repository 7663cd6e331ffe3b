"""Tell threads that Python did not start, such as autograd's: `threading` makes a stand-in of a class of its own for each.

Leans on `threading._DummyThread`. Seen on CPython 3.11; where it is missing, every thread counts as started by Python.
"""

from __future__ import annotations

import threading

_STAND_IN: type | None = getattr(threading, "_DummyThread", None)


def started_by_python(thread: threading.Thread) -> bool:
    return _STAND_IN is None or not isinstance(thread, _STAND_IN)
