"""The one place where a rank waits for a communication whose result it takes for true.

On a device a call returns before its result is there, and one that was aborted returns with garbage and without an error. So
whoever records a result, or goes on with one behind the gate, confirms it first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ConfirmingEngine(Protocol):
    def confirm(self) -> None:
        """Return when the results of all collectives are there. Raises RuntimeError where the generation was broken before."""
        ...

    def waiting(self, on: bool) -> None: ...


@contextmanager
def communicating(engine: ConfirmingEngine, *, confirmed: bool) -> Iterator[None]:
    """Around a call that communicates. `confirmed`: its result is there when this is left, and all members have given theirs.

    Raises RuntimeError where the generation was broken before: also in place of another exception, which may be of garbage.
    """
    engine.waiting(True)
    try:
        yield
        if confirmed:
            engine.confirm()
    except RuntimeError:
        raise
    except Exception:
        engine.confirm()
        raise
    finally:
        engine.waiting(False)
