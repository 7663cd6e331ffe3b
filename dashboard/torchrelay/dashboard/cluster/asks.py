"""Asks the controller beside this dashboard for something, and waits for its answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from torchrelay.dashboard.hub import Answer
from torchrelay.protocol.kube.dashboard_asks import Ask, pack_ask
from torchrelay.protocol.kube.job_feed import AskAnswered

ANSWER_S = 20.0
NOBODY = "the controller beside this dashboard does not answer"
CUT = "the connection to the controller was cut: it may have been done all the same, so look before asking again"
LATE = (
    f"the controller has not answered within {ANSWER_S:.0f} s: it may be done all the same, so look before asking again"
)


class ControllerAsks:
    """What was asked for and is not answered yet."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)
        self._answer_s = answer_s

    def connected(self, writer: asyncio.StreamWriter) -> None:
        """Ask over this connection from now on."""
        self._writer = writer

    def cut(self) -> None:
        """Give up what is not answered: the connection is gone."""
        self._writer = None
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_result(Answer(False, CUT))

    def answered(self, line: AskAnswered) -> None:
        """Take an answer. One that nobody waits for any more is dropped."""
        waiting = self._open.get(line.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(Answer(line.done, line.message))

    async def ask(self, make: Callable[[int], Ask]) -> Answer:
        """Ask, and return the answer, or why there is none. `make`: makes the ask of its number."""
        if self._writer is None:
            return Answer(False, NOBODY)
        number = next(self._numbers)
        self._open[number] = waiting = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(pack_ask(make(number)))
            return await asyncio.wait_for(waiting, self._answer_s)
        except asyncio.TimeoutError:
            return Answer(False, LATE)
        finally:
            del self._open[number]
