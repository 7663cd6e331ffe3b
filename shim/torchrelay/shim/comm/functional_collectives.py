"""Functional collectives of the script and of DTensors: as `collectives`, for functions that return their result.

What torch calls by itself, such as a tensor parallel layer, carries activations: before the gate it is left alone. After the
gate everything is recorded, since a number that the script asks for (`norm.full_tensor()`) comes by the same way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchrelay.shim.adapters.process_groups import functional
from torchrelay.shim.capture.values import small
from torchrelay.shim.comm.collectives import SAME_ON_ALL_RANKS
from torchrelay.shim.comm.confirmed_results import communicating
from torchrelay.shim.comm.finished import FinishedCollective, LargeResults, results_of
from torchrelay.shim.script.guard import is_called_by

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

PREFIX = "functional."
"""Of their names in records: some are called as those of torch.distributed are."""


class FunctionalCollectives:
    def __init__(self, module: ModuleType, engine: Callable[[], Engine | None]) -> None:
        self._module = module
        self._engine = engine
        self._inside = False

    def install(self) -> None:
        functional.wrap(self._module, self._around)

    def _around(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        engine = self._engine()
        if engine is None:
            return original(*args, **kwargs)
        return engine.guard.call(functools.partial(self._seen, engine, name), original, *args, **kwargs)

    def _seen(self, engine: Engine, name: str, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inside or (mode := engine.mode()) == "off":
            return plain(*args, **kwargs)

        def call() -> Any:
            return plain(*args, **kwargs)

        if name == functional.WAIT:
            return self._wait(engine, mode, call)
        engine.collective_begins()
        by_torch = is_called_by(sys._getframe(1), "torch.")
        if by_torch and mode != "repeat" and not engine.behind_gate():
            return call()
        group = functional.group_name(self._module, name, args, kwargs)
        if mode == "answer" and engine.caught_up(group):
            mode = engine.mode()
        if mode == "answer":
            return self._built(engine.answer(PREFIX + name, group), call)
        return self._run(engine, PREFIX + name, group, mode, call)

    def _run(self, engine: Engine, name: str, group: str, mode: str, call: Callable[[], Any]) -> Any:
        while True:
            entry = engine.replayed(name, group) if mode == "repeat" else None
            if entry is not None:
                result = self._built(entry, call)
                break
            try:
                result = self._complete(engine, call)
            except RuntimeError as error:
                engine.interrupted(error)
                continue
            for_others = mode == "repeat" and name in SAME_ON_ALL_RANKS
            entry = FinishedCollective(name, group, results_of([result], for_others=for_others))
            break
        engine.record(entry)
        return result

    def _complete(self, engine: Engine, call: Callable[[], Any]) -> Any:
        self._inside = True
        try:
            with communicating(engine, confirmed=True):
                return functional.complete(call())
        finally:
            self._inside = False

    def _wait(self, engine: Engine, mode: str, call: Callable[[], Any]) -> Any:
        """Wait for what torch has called before the gate. Before the gate nothing is confirmed: garbage is undone with the step."""
        try:
            with communicating(engine, confirmed=mode == "repeat"):
                return call()
        except RuntimeError as error:
            engine.interrupted_for_good(error)

    @staticmethod
    def _built(entry: FinishedCollective, call: Callable[[], Any]) -> Any:
        """Return the recorded result. One too large to keep comes from the group without peers: in set-up state replaces it."""
        if isinstance(entry.results, LargeResults):
            return entry.results.build(entry.name)[0]
        return call() if entry.results is None else small.build(entry.results[0])
