"""Take part in saves that a thread does: `torch.distributed.checkpoint.async_save`.

Leans on `_ThreadBasedAsyncCheckpointExecutor.execute_save`. It gives an executor the function `save_wrapper`, as it finds it in its
module, and what is to be saved as `staging_future_or_state_dict`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any, Protocol

from torchrelay.protocol.errors import UnsupportedError

_STATE = "staging_future_or_state_dict"


class TakenSave(Protocol):
    """A save of the script's that torchrelay takes part in."""

    def run(self, write: Callable[[Any], Any]) -> Any:
        """Save on the saving thread. `write(state)` saves; it may be called again."""

    def promise(self, future: Future[Any]) -> Future[Any]:
        """Return the future that the script gets. `future`: the executor's."""


class _Handed:
    """Stands for the state on its way through the executor."""

    def __init__(self, save: TakenSave) -> None:
        self.save = save


def install(module: ModuleType, begin: Callable[[Any, dict[str, Any]], TakenSave | None]) -> None:
    """Call `begin(state, options)` for each save. Where it returns None, the save is left alone. Raises UnsupportedError."""
    executor: Any = getattr(module, "_ThreadBasedAsyncCheckpointExecutor", None)
    plain = getattr(module, "save_wrapper", None)
    original = getattr(executor, "execute_save", None)
    if plain is None or original is None:
        raise UnsupportedError(f"{module.__name__} is built otherwise")

    @functools.wraps(original)
    def execute_save(self: Any, state: Any, **options: Any) -> Future[Any]:
        save = begin(state, options)
        if save is None:
            return original(self, state, **options)  # type: ignore[no-any-return]  # torch does not say its type
        return save.promise(original(self, _Handed(save), **options))

    @functools.wraps(plain)
    def save_wrapper(**options: Any) -> Any:
        state = options.pop(_STATE)
        if not isinstance(state, _Handed):
            return plain(state, **options)
        return state.save.run(lambda staged: plain(staged, **options))

    executor.execute_save = execute_save
    setattr(module, "save_wrapper", save_wrapper)  # noqa: B010 - mypy knows no such attribute of a module


def save(state: Any, **options: Any) -> Any:
    """Save what is staged as the thread does, without an executor."""
    from torch.distributed.checkpoint.state_dict_saver import save as save_at_once

    return save_at_once(state, **options)
