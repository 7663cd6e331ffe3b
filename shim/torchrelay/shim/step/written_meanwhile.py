"""What threads of the script write while their rank is brought to a boundary is put back once more, and looked at again.

A progress bar that a thread draws keeps when it was drawn, and goes on to be drawn beside a migration. What such a thread has
written is not as the boundary has it by the time that somebody looks. So there has to be a look that finds no difference at all, or
only what such a thread writes faster than anybody can look: a value that was put back again and again, was seen to be in its place
then, and was another one at the next look. It is what the thread makes of it, in any run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.records.put_entries import CannotPutError

_ROUNDS = 20
_REWRITTEN = 5
"""So many looks in a row have to find another value in the same place, where it was put back and seen before each."""
_OWN = "torchrelay-"
"""How the names of torchrelay's threads begin."""


def others_run() -> bool:
    """Return whether another thread runs in this process that is not torchrelay's."""
    here = threading.current_thread()
    return any(thread is not here and not thread.name.startswith(_OWN) for thread in threading.enumerate())


def settled(
    look: Callable[[], Sequence[Difference]],
    put_back: Callable[[], Collection[str]],
    run: Callable[[], bool] = others_run,
) -> list[Difference]:
    """Return what still differs once what other threads have written was put back.

    `put_back`: puts back what the last look has found, and returns the paths of what somebody had written to until then, and was as
    it should be right afterwards. What differs though nobody has written to it is no thread's doing.
    """
    found = [*look()]
    times: dict[str, int] = {}
    for _ in range(_ROUNDS):
        if not found or not run():
            break
        try:
            put = put_back()
        except CannotPutError:
            break
        found = [*look()]
        times = {each.path: times.get(each.path, 0) + 1 for each in found if each.path in put}
        if all(times.get(each.path, 0) >= _REWRITTEN for each in found):
            return []
    return found
