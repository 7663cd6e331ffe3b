"""One rank's saves on threads, with the real engine behind them and other ranks that only report."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist

from support.loop_script import LoopScript
from torchrelay.protocol.messages import Interrupt
from torchrelay.shim.comm.generations.generation import Generation
from torchrelay.shim.saves.async_saves import AsyncSaves
from torchrelay.shim.saves.save_agreement import SaveAgreement, SaveReport
from torchrelay.shim.saves.save_under_way import Save
from torchrelay.shim.script.save_future import SaveFuture, SaveId

PATIENCE_S = 60.0
GROUP = "saving"
UNDER_WAY, THROUGH = SaveReport({GROUP: 1}, {SaveId(GROUP, 1): True}), SaveReport({GROUP: 1}, {})


class Side:
    """One rank's saves, with what the ranks of later generations say in `stores`."""

    def __init__(self, script: LoopScript) -> None:
        self.script, self.engine, self.saves = script, script.engine, script.engine.saves

    def begin(self, state: Any = None, **options: Any) -> Save:
        save = self.saves.begin(state if state is not None else {"x": torch.ones(3)}, options)
        assert save is not None
        return save

    def start(self, write: Callable[[Any], Any], save: Save | None = None) -> SaveFuture:
        """On a thread that does not keep the tests from ending where one fails."""
        save = save or self.begin()
        future = save.promise(Future())
        assert isinstance(future, SaveFuture)
        threading.Thread(target=self._run, args=(save, write, future), daemon=True).start()
        return future

    @staticmethod
    def _run(save: Save, write: Callable[[Any], Any], future: SaveFuture) -> None:
        try:
            future.set_result(save.run(write))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)

    def announce(self, generation: int) -> None:
        self.engine.recovery.handle(Interrupt(generation, "a rank is lost"))

    def enter(self, generation: int, *others: SaveReport, **how: Any) -> None:
        store = dist.HashStore()
        for rank, report in enumerate(others, 1):
            SaveAgreement(generation, rank, 1 + len(others), store).publish(report)
        self.engine.comms.world_size = 1 + len(others)
        self.engine.comms.now = Generation(generation, stores=[store])
        self.saves.entered(generation, **how)


class Step:
    """A save's `write` that stands at its communication until the test lets it go on. `went`: what was written."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.reached, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.fails: list[Exception] = []
        self.went: list[Any] = []

    def __call__(self, staged: Any) -> str:
        self._side.engine.beside(self._communicate)
        self.went.append(staged)
        return f"result {len(self.went)}"

    def _communicate(self) -> None:
        self._side.saves.dispatched()
        self.reached.release()
        assert self.go_on.acquire(timeout=PATIENCE_S)
        if self.fails:
            raise self.fails.pop()

    def wait(self) -> None:
        assert self.reached.acquire(timeout=PATIENCE_S)

    def let(self, error: Exception | None = None) -> None:
        self.fails += [error] if error is not None else []
        self.go_on.release()


def joined(side: Side) -> AsyncSaves:
    joiner = AsyncSaves(side.engine)
    joiner.live = False
    side.engine.saves = joiner
    return joiner


def enter(side: Side, joiner: AsyncSaves, *others: SaveReport) -> dist.Store:
    side.saves = joiner
    side.enter(1, *others)
    store: dist.Store = side.engine.comms.now.stores[0]
    return store
