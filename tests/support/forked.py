"""A forked child of the process that tests: whatever fails in it, it must not go on as a second one of that process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def forked(work: Callable[[], object]) -> int:
    """Do `work` in a forked child, which ends with 0, or with 1 where it raises. Return the child's process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - told here, and the child ends by it
        traceback.print_exc()
    finally:
        os._exit(status)
