from __future__ import annotations

import _thread
import threading

from torchrelay.shim.adapters.cpython.threads import started_by_python


def test_a_thread_that_python_did_not_start_is_told_apart() -> None:
    """As autograd's; seen on CPython 3.11."""
    found: list[bool] = []
    done = threading.Event()

    def look() -> None:
        found.append(started_by_python(threading.current_thread()))
        done.set()

    _thread.start_new_thread(look, ())
    assert done.wait(60)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [False, True]
