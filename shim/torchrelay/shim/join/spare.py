"""A spare's life before it has a rank: it waits for one, and rehearses in child processes meanwhile."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable

from torchrelay.protocol import names
from torchrelay.protocol.exhaustive import assert_never
from torchrelay.protocol.messages import Assign, Begin, EndRehearsal, Rehearse, ShimReport, SpareOrder
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.join.rehearsing import RehearsalProcess, Rehearsing


class Spare:
    """What it is told to be: a rank that is taken over (`assign`), or one from the script's beginning (`begin`).

    `gently`: rehearsals give way to training.
    """

    def __init__(self, send: Callable[[ShimReport], None], *, gently: bool = True) -> None:
        self._gently = gently
        self.assign: Assign | None = None
        self.begin: Begin | None = None
        self._rehearse: Rehearse | None = None
        self._rehearsing = Rehearsing(send)
        self._news = threading.Event()
        self._is_over = False

    def take(self, order: SpareOrder) -> None:
        """On the link's thread."""
        match order:
            case Assign():
                self.assign = order
            case Begin():
                self.begin = order
            case Rehearse():
                self._rehearse = order
            case EndRehearsal(request):
                self._rehearsing.end(request)
            case _:
                assert_never(order)
        self._news.set()

    def agent_lost(self) -> None:
        """Nobody will give it a rank."""
        self._is_over = True
        self._news.set()

    @property
    def is_forking(self) -> bool:
        """Whether the child that is being forked is one that rehearses."""
        return self._rehearsing.is_forking

    def wait(self) -> RehearsalProcess | None:
        """On the main thread. Returns when the spare has a rank, or the agent is gone; or in a child that is to rehearse."""
        while True:
            self._news.wait()
            self._news.clear()
            if self.assign is not None or self.begin is not None or self._is_over:
                self._rehearsing.end()
                return None
            order = self._rehearse
            self._rehearse = None
            if order is not None and (child := self._rehearsing.begin(order)) is not None:
                child.begin(gently=self._gently)
                return child


def config_of_child(config: ShimConfig, child: RehearsalProcess) -> ShimConfig:
    """Of a process that is nobody's peer: no faults, no copies, and a journal that nobody reads. Sets its environment."""
    os.environ.update(child.order.env)
    os.environ[names.ENV_REHEARSAL] = "1"
    return dataclasses.replace(
        config, journal=child.folder, faults=(), buddy_every=0, watches=(), hold_at=0, asks=False
    )
