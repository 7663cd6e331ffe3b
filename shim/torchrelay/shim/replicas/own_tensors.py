"""Copy the tensors that this rank alone holds, at each head and behind each update, into shared memory that outlives the process.

A process that takes the rank over has them from the copy, and all else from another rank, so that no rank has to go back. At a
head it takes the copy of the head. Where the others have passed the gate, it goes through the step once more, and takes the copy
behind the update there: what the rest of the step writes to them, it writes as the lost rank would have.

Two copies of heads are kept: while one is written, the other is whole. Which tensors a rank alone holds, the controller says once
contents have been compared. Before that, in the first steps, all tensors of a small state are copied.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from torchrelay.protocol.errors import JournalError, TorchrelayError
from torchrelay.protocol.journals.kept import SLOTS
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.storages import is_freed
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.replicas.own_tensor_copies import CopySlot, OwnCopy, read, slot_folders, updated_folder
from torchrelay.shim.replicas.tensor_places import VALUE, TensorPlaces
from torchrelay.shim.tensors.tensor_versions import versions_of

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot

MOST_SHARE = 0.01
LEAST_S = 0.001
"""The copies of a step take at most this share of it, or so many seconds where that is more."""
EARLY_BYTES = 16 << 20
"""A state of so many bytes is copied in the first steps, before anybody knows how long a step takes."""
_EARLY_STEPS = 16
"""For so many steps all of a small state is copied as long as the controller has not said which tensors are the rank's own."""
_BYTES_PER_S = 2e9
"""The speed of a copy into memory that was written before, on a busy machine. A copy that would take too long is not begun."""
_TIMED = 8

Gradients = Callable[[], Mapping[str, torch.Tensor]]


class OwningRank(Protocol):
    """What OwnTensors needs of a rank. `shadow`: the step of another process that it goes through, or None."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def shadow(self) -> object | None: ...


class OwnTensors:
    """`folder`: this node's, as in `protocol.kept`.

    `gradients` and `gradients_now`: return those that are part of the state, at the latest head and as they are now. `effects`:
    returns what the latest update has left beside tensors, as UpdateEffects has it. `open_gradients`: returns those, as they are
    now, of which nobody knows yet if they are part of the state: a process that comes to add to them needs them. `is_limited`:
    copies that take too much of a step are given up.
    """

    def __init__(
        self,
        engine: OwningRank,
        folder: Path,
        gradients: Gradients,
        gradients_now: Gradients,
        effects: Callable[[], bytes],
        *,
        open_gradients: Gradients = dict,
        is_limited: bool = True,
    ) -> None:
        self._engine = engine
        self._is_limited = is_limited
        self._folder = folder
        self._gradients = gradients
        self._gradients_now = gradients_now
        self._effects = effects
        self._open_gradients = open_gradients
        self._heads = tuple(CopySlot(place) for place in slot_folders(folder, engine.rank))
        self._updated = CopySlot(updated_folder(folder, engine.rank))
        self._asked: frozenset[str] | None = None
        """The paths that were asked for last; None: nobody has asked yet. Set on the link's thread."""
        self._followed: frozenset[str] | None = None
        """The paths that all have to be copied: without one of them, the others are of no use. None: whatever there is."""
        self._more: frozenset[str] = frozenset()
        """Paths of other tensors of their models that steps write to behind the update."""
        self._places = TensorPlaces(None)
        self._beside: list[int] = []
        """The versions of the models' other tensors behind the latest update."""
        self._latest = -1
        """The boundary of the latest copy of a head."""
        self._entered = -1
        """The boundary whose copy this process has come from; `_left`: what that one holds."""
        self._left: frozenset[str] = frozenset()
        self._sized: frozenset[str] = frozenset()
        """The paths of the latest copy of a head; `_size_bytes`: how much they take."""
        self._size_bytes = 0
        self._carried: frozenset[str] = frozenset()
        self._behind_s = 0.0
        """Seconds that the latest copy behind an update took."""
        self._copy_s: deque[float] = deque(maxlen=_TIMED)
        """Seconds that both copies of the latest steps took."""
        self._step_s: deque[float] = deque(maxlen=_TIMED)
        self._head_s = 0.0
        self._is_over = False
        """Whether these paths are not copied any more."""
        self.why_not = ""
        """Why the paths that were asked for last are not copied."""
        self.carried: tuple[str, ...] = ()
        """The paths that were copied at the latest boundary."""
        self.changed = False
        """Whether the paths copied at the latest boundary differ from those at the boundary before."""

    def assign(self, paths: Sequence[str]) -> None:
        """Take the paths of the tensors that, as the controller has found, no other rank holds. Called on the link's thread."""
        self._asked = frozenset(paths)

    def left(self, boundary: int, *, behind_update: bool) -> OwnCopy:
        """Return what the rank that this process takes over has copied, as `read` does. Raises JournalError."""
        return read(self._folder, self._engine.rank, boundary, behind_update=behind_update)

    def go_on(self, paths: Sequence[str], boundary: int, *, from_head: bool) -> None:
        """Copy these tensors from the next head on, as the process before did, which was at `boundary`.

        `from_head`: this process has entered with the copy of that head, which stays for a further one.
        """
        if boundary > _EARLY_STEPS:
            self._asked = frozenset(paths)
        self._entered = boundary if from_head else -1
        self._left = frozenset(paths)

    def go_on_as_before(self, boundary: int) -> None:
        """Copy what the process before has copied at this head, if it has left that. The tensors are here already."""
        try:
            copied = self.left(boundary, behind_update=False)
        except JournalError:
            return
        self.go_on([*copied.views], boundary, from_head=False)

    def drop(self) -> None:
        """Forget the tensors, and give the memory of their copies back: the rank is no longer protected."""
        self._asked = frozenset()
        self._follow(self._asked)

    def at_boundary(self, commit: BoundarySnapshot) -> None:
        """Copy the tensors. Called before the boundary's journal is written."""
        now_s = time.perf_counter()
        if self._head_s:
            self._step_s.append(now_s - self._head_s)
        self._head_s = now_s
        asked = self._asked
        if asked is not None and asked != self._followed:
            self._follow(asked)
        before = self.carried
        if self._followed != frozenset() and not self._is_over and self._engine.shadow is None:
            try:
                self._at_boundary(commit)
            except (OSError, RuntimeError, TorchrelayError) as e:
                self._end(str(e))
        self.changed = self.carried != before

    def update_begins(self) -> None:
        """Mark that no copy holds what the update will have left."""
        if self._engine.shadow is not None:
            return  # this process is about to take that of the lost rank
        try:
            self._updated.clear()
        except OSError as e:
            self._end(str(e))

    def behind_update(self, boundary: HostState, walk: Callable[[], HostState]) -> None:
        """Copy what the update has left, once it is the step's last one.

        `boundary`: the state at the step's head. `walk`: returns that behind the update.
        """
        if self._latest < 0 or self._is_over:
            return
        started_s = time.thread_time()
        try:
            tensors = {**self._places.behind_update(boundary, walk), **self._wanted(self._gradients_now())}
            tensors |= self._open_gradients()
            if not tensors or not self._needed() <= tensors.keys():
                return  # the copy of the head alone is of use in this step
            effects = self._effects()
            if effects:
                tensors[device.EFFECTS] = rng.byte_tensor(effects)
            is_new = self._updated.fill(self._latest + 1, tensors)
            self._beside = versions_of([*self._places.beside.values()])
        except (OSError, RuntimeError, TorchrelayError) as e:
            self._end(str(e))
            return
        self._behind_s = 0.0 if is_new else time.thread_time() - started_s

    def _follow(self, paths: frozenset[str]) -> None:
        if not paths:
            for slot in (*self._heads, self._updated):
                slot.drop()
        self._latest = -1
        self._beside = []
        self.carried = ()
        self._carried = frozenset()
        self._followed = paths
        self._more = frozenset()
        self._places = TensorPlaces(paths)
        self._copy_s.clear()
        self._is_over = False
        self.why_not = ""

    def _end(self, why: str) -> None:
        followed = self._followed
        self._follow(frozenset())
        self._followed = followed
        self._is_over = True
        if followed is not None:
            self.why_not = why

    def _at_boundary(self, commit: BoundarySnapshot) -> None:
        if self._followed is None and commit.boundary > _EARLY_STEPS:
            return self._end("")
        if self._followed is not None:
            self._follow_late_writes()
        started_s = time.thread_time()  # on a busy machine anything takes longer
        found = {**self._places.at_head(commit.state), **self._wanted(self._gradients())}
        missing = {path for path in self._followed or () if not path.startswith(VALUE)} - found.keys()
        if missing:  # what stands beside models is in the journal by value, or gone, where it is not large
            return self._end(f"{min(missing)} is not there at each head")
        copied = {**found, **self._open_gradients()}
        freed = next((path for path, tensor in copied.items() if is_freed(local(tensor))), None)
        if freed is not None:
            return self._end(f"{freed} has no memory at a head")
        if self._latest < 0 or copied.keys() != self._sized:
            self._sized = frozenset(copied)
            self._size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in map(local, copied.values()))
        size_bytes = self._size_bytes
        if self._is_too_slow(size_bytes):
            return self._end("copies of them in each step would take more than a hundredth of it")
        if self._latest < 0 and self._lacks_room(size_bytes):
            return self._end(f"{SLOTS + 1} copies of {size_bytes >> 20} MiB would take too much of shared memory")
        is_there = commit.boundary == self._entered  # this process has come from it
        if is_there:
            found = {path: tensor for path, tensor in found.items() if path in self._left}
        if copied and not is_there and not self._heads[commit.boundary % SLOTS].fill(commit.boundary, copied):
            self._copy_s.append(time.thread_time() - started_s + self._behind_s)
        self._entered = -1
        self._latest = commit.boundary
        if len(self.carried) != len(found) or self._sized != self._carried:
            self._carried = self._sized
            self.carried = tuple(sorted(found))
        return None

    def _needed(self) -> set[str]:
        """Return the paths without which a copy behind the update is of no use: of what is beside models, those of the head."""
        return {path for path in self._followed or () if not path.startswith(VALUE) or path in self._sized}

    def _wanted(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        followed = self._followed
        return {path: g for path, g in gradients.items() if followed is None or path in followed}

    def _follow_late_writes(self) -> None:
        """Copy other tensors of these models as well, from now on, where the latest step has written to them behind its update.

        So the rest of a step can be gone through with all of an average as the lost rank had it, wherever the donor stands.
        """
        beside = self._places.beside
        now = versions_of([*beside.values()]) if len(self._beside) == len(beside) else self._beside
        if now != self._beside:
            self._more |= {path for path, was, is_now in zip(beside, self._beside, now) if was != is_now}
            assert self._followed is not None
            self._places = TensorPlaces(self._followed | self._more)

    def _is_too_slow(self, size_bytes: int) -> bool:
        if not self._is_limited and self._followed is not None:
            return False
        if len(self._step_s) < 2:
            return size_bytes > EARLY_BYTES
        allowed_s = max(MOST_SHARE * statistics.median(self._step_s), LEAST_S)
        if len(self._copy_s) < _TIMED:
            return 2 * size_bytes / _BYTES_PER_S > 2 * allowed_s
        return statistics.median(self._copy_s) > 2 * allowed_s

    def _lacks_room(self, size_bytes: int) -> bool:
        """Return whether the copies would take more than a quarter of this rank's share of free memory: others need it too."""
        there = next(folder for folder in (self._folder, *self._folder.parents) if folder.exists())
        room = os.statvfs(there)
        ranks = max(1, min(self._engine.world_size, os.cpu_count() or 1))
        return (SLOTS + 1) * size_bytes > room.f_bavail * room.f_frsize // ranks // 4
