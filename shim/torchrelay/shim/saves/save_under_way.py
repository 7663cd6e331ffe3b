"""One checkpoint that a thread saves, in the process that began it or in one that goes on with it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import JournalError, StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.checkpoints import async_checkpoint
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.saves import save_records
from torchrelay.shim.script.guard import MeantForUs
from torchrelay.shim.script.save_future import SaveFuture, SaveId

if TYPE_CHECKING:
    from torchrelay.shim.saves.async_saves import AsyncSaves


class Interrupted(MeantForUs, RuntimeError):
    """A migration has come between a save's thread and the ranks that it communicates with."""


class SaveState(enum.Enum):
    UNDER_WAY = "under way"
    WHOLE = "whole"
    FAILED = "failed"
    DROPPED = "dropped"
    """Training went back to before it: the script begins it anew."""


@dataclass(eq=False)
class Save:
    """One save. `ranks`: those that it communicates with."""

    owner: AsyncSaves
    id: SaveId
    ranks: Sequence[int]
    staged: Any
    options: dict[str, Any]
    state: SaveState = SaveState.UNDER_WAY
    complete: bool = True
    """Whether this process has all that it is to save."""
    described: bool = False
    content: bytes = b""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """As `save_records` describes it; empty where it cannot be carried over."""
    restored: save_records.Restored | None = None
    """Of a save that another process had begun, until its tensors were checked."""
    future: SaveFuture | None = None

    @property
    def alone(self) -> bool:
        return not self.id.group

    def run(self, write: Callable[[Any], Any]) -> Any:
        return self.owner.run(self, write)

    def promise(self, future: Future[Any]) -> Future[Any]:
        self.future = self.owner.promised(SaveFuture.around(future, self.id, self.owner.waits.wait))
        return self.future

    def describe(self) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Wait until all is staged, and write the save down. Raises UnsupportedError."""
        self.described = True
        if isinstance(self.staged, Future):
            self.staged = self.staged.result()
        options = {name: value for name, value in self.options.items() if name != "process_group"}
        found = save_records.describe(self.id, self.staged, options)
        return found.content, found.tensors


@dataclass(eq=False)
class SaveAttempt:
    """One thread's attempt to do a save.

    `dispatching`: between the look whether the communicators are whole and the handing over to them.
    """

    save: Save
    generation: int = -1
    running: bool = False
    dispatching: bool = False


def restored(owner: AsyncSaves, save_id: SaveId, content: bytes, rank: int) -> Save:
    """Return a save that another process had begun; not complete until its tensors are there."""
    save = Save(owner, save_id, [rank], None, {}, complete=False, described=True, content=content)
    try:
        group, save.ranks = process_group.named(save_id.group) if save_id.group else (None, [rank])
        found = save_records.restored(content)
    except (JournalError, StateMismatchError):
        return save  # it cannot be gone on with here, and the other ranks are told so
    save.staged = found.state
    save.tensors = found.tensors
    save.restored = found
    save.options = {**found.options, "process_group": group}
    return save


def complete(future: SaveFuture, save: Save) -> None:
    """Do, on a thread, what the lost rank's thread was to do."""
    try:
        result = save.run(lambda staged: async_checkpoint.save(staged, **save.options))
    except BaseException as error:  # noqa: BLE001 - as an executor does: it is whoever waits that gets it
        future.set_exception(error)
    else:
        future.set_result(result)


def conclude(future: SaveFuture, *, failed: bool) -> None:
    """Set the result of a save that was over before its rank was lost. What it was is not known here."""
    if future.done():
        return
    if failed:
        future.set_exception(UnsupportedError("this save failed before its rank was lost"))
    else:
        future.set_result(None)
