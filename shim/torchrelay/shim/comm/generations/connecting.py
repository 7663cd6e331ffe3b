"""Connects a communicator on a thread of its own, so that whoever needs it comes loose when its generation is broken.

gloo waits inside its constructor for each peer to call. A peer that has called and is lost before that is answered never calls
again, and no socket is there yet that could be shut down. gloo gives up after the group's timeout alone, which is half an hour.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torchrelay.shim.comm.generations.generation import Generation

NAME = "torchrelay-connect"
"""Of the threads that connect."""


def connected(generation: Generation, connect: Callable[[], Any]) -> Any:
    """Return what `connect` returns. Raises what it raises, and RuntimeError once the generation is broken."""
    if generation.broken:
        raise generation.failure()
    news = threading.Event()
    made: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            made.append(connect())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failed.append(error)
        finally:
            news.set()

    generation.waiting.add(news)
    threading.Thread(target=work, name=NAME, daemon=True).start()
    if not generation.broken:
        news.wait()
    generation.waiting.discard(news)
    if failed:
        raise failed[0]
    if not made:
        raise generation.failure()
    return made[0]
