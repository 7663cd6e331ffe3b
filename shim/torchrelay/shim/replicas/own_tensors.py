"""Copy at each head the tensors that this rank alone holds: an average of the weights that each rank has made by itself.

A process that takes the rank over has them from the copy, and all else from another rank, so that no rank has to go back.

That is done for tensors that a step writes to only behind its update, or never. A new process then needs what they held at the
step's head, wherever in the step the rank was lost: it goes through the rest of the step once more, and writes them as the lost
rank would have. Whether tensors are such is seen by their content. Before they are said to be carried they have been written to
between an update and the next head, or not at all in some steps, and never between a head and the end of the update. A step that
does otherwise later ends it. Other tensors of the same model that are such go with them. So the rest of the step can be gone
through with all of an average as the lost rank had it, wherever the donor stands.

Two copies are kept, in shared memory that outlives the process: while one is written, the other is whole.
"""

from __future__ import annotations

import mmap
import os
import statistics
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torchrelay.protocol.errors import JournalError, StateMismatchError, TorchrelayError
from torchrelay.protocol.journals.kept import SLOTS, open_slot, own_at_head_folder
from torchrelay.protocol.machine.private import open_below
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.capture.state.host_state import HostState, catalogue_numbers
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.replicas.kept_tensors import KeptTensors, opened
from torchrelay.shim.tensors.tensor_bytes import are_same_bits, await_writes, write
from torchrelay.shim.tensors.tensor_versions import versions_of
from torchrelay.shim.transfer.layout import describe

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot

MOST_SHARE, LEAST_S = 0.01, 0.001
"""A copy with the look at its content takes at most this share of a step, or so many seconds where that is more."""
_BYTES_PER_S = 2e9
"""The speed of a copy into memory that was written before, on a busy machine. A copy that would take too long is not begun."""
_TIMED = 8
_UNCHANGED = 8
"""Steps after which a tensor counts as one that steps do not write to at all."""
_VALUE = "value."
_REPLACED = "a step has put another tensor in the place of {}"
_NO_COPY = -1
_STAMP, _STAMP_NAME = struct.Struct("<qq"), "boundary"


class NumberedRank(Protocol):
    """What OwnTensors needs of a rank. `shadow`: the step of another process that it goes through, or None."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def shadow(self) -> object | None: ...


class OwnTensors:
    """Copy the rank's own tensors at each head. `folder`: this node's, as in `protocol.kept`."""

    def __init__(self, engine: NumberedRank, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._slots = tuple(_Slot(place) for place in _folders(folder, engine.rank))
        self._asked: frozenset[str] = frozenset()
        """The paths that were asked for last. Set on the link's thread."""
        self._followed: frozenset[str] = frozenset()
        """The paths that all have to be carried: without one of them, the others are of no use."""
        self._selection = _Selection(self._followed)
        self._chosen: dict[str, torch.Tensor] = {}
        """The tensors at the latest head that are followed."""
        self._versions: list[int] = []
        self._places: dict[str, tuple[Any, Any]] = {}
        """The container and the key of each tensor that a step may replace with another one."""
        self._stood = False
        """Whether all tensors were in their places when the latest update was over."""
        self._seen: set[str] = set()
        """The paths of tensors that were written to behind an update."""
        self._tries = 0
        self._latest = -1
        """The boundary of the latest copy."""
        self._entered = -1
        self._copy_s: deque[float] = deque(maxlen=_TIMED)
        """Seconds that the latest copies took, each with the look at contents that came before it."""
        self._look_s = 0.0
        self._step_s: deque[float] = deque(maxlen=_TIMED)
        self._head_s = 0.0
        self.why_not = ""
        """Why the paths that were asked for last are not carried."""
        self.carried: tuple[str, ...] = ()
        """The paths that are carried since the latest boundary."""
        self._carried_before: tuple[str, ...] = ()
        self.changed = False
        """Whether the paths carried at the latest boundary differ from those at the boundary before."""

    def assign(self, paths: Sequence[str]) -> None:
        """Take the paths of the tensors that, as the controller has found, no other rank holds. Called on the link's thread."""
        self._asked = frozenset(paths)

    def enter(self, boundary: int, destinations: Mapping[str, torch.Tensor]) -> None:
        """Take the rank over with its copy of `boundary`, and go on with what it has carried.

        Raises JournalError, StateMismatchError.
        """
        load(self._folder, self._engine.rank, boundary, destinations)
        self.carry_on([*destinations])
        self._entered = boundary

    def carry_on(self, paths: Sequence[str]) -> None:
        """Copy these tensors from the next head on.

        The process before has seen that steps write to them only behind their update.
        """
        self._asked = self._followed = frozenset(paths)
        self._selection = _Selection(self._followed)
        self._seen = set(paths)
        self.carried = self._carried_before = tuple(sorted(paths))

    def at_boundary(self, commit: BoundarySnapshot) -> None:
        """Copy the tensors. Called before the boundary's journal is written, which says what is carried."""
        now_s = time.perf_counter()
        if self._head_s:
            self._step_s.append(now_s - self._head_s)
        self._head_s = now_s
        if not self._asked <= self._followed:
            self._begin()
        if self._followed and not self.why_not and self._engine.shadow is None:
            try:
                self._at_boundary(commit)
            except (OSError, RuntimeError, TorchrelayError) as e:
                self._end(str(e))
        self.changed, self._carried_before = self.carried != self._carried_before, self.carried

    def at_gate(self, state: HostState) -> None:
        """Leave out tensors that the step has replaced or written to before its update.

        Called before the gate's journal is written.

        `state`: the host state at the gate.
        """
        if self._chosen and not self.why_not:
            now = self._selection.of(state)
            self._leave_out([p for p, tensor in self._chosen.items() if now.get(p) is not tensor], _REPLACED)
            self._check_written("before its update")

    def after_update(self) -> None:
        if not self._chosen or self.why_not:
            return
        self._check_written("in its update")
        chosen = self._chosen
        self._leave_out(
            [p for p, place in self._places.items() if p in chosen and _at(place) is not chosen[p]], _REPLACED
        )
        self._stood = True
        if self._latest >= 0 and not self.why_not:
            started_s = time.thread_time()
            slot = self._slot(self._latest)
            written = [path for path, tensor in self._chosen.items() if not slot.holds(path, tensor)]
            self._look_s = time.thread_time() - started_s
            self._leave_out(written, "a step has written to {} up to the end of its update")

    def _begin(self) -> None:
        self._followed, self._tries, self.why_not = self._asked, 0, ""
        self._selection = _Selection(self._followed)
        self._seen = set()
        self._forget()
        self._copy_s.clear()

    def _end(self, why: str) -> None:
        self.why_not = why
        self._forget()

    def _forget(self) -> None:
        for slot in self._slots:
            slot.clear()
        self._chosen, self._versions, self._places, self.carried, self._latest = {}, [], {}, (), -1

    def _check_replaced(self, now: Mapping[str, torch.Tensor]) -> None:
        """Leave out tensors that the step has replaced, unless it did so behind its update. Called at a head."""
        replaced = [path for path, tensor in self._chosen.items() if now.get(path) is not tensor]
        behind = {path for path in replaced if self._stood and path in self._places and path in now}
        self._seen |= behind
        self._leave_out([path for path in replaced if path not in behind], _REPLACED)

    def _check_written(self, when: str) -> None:
        versions = versions_of([*self._chosen.values()])
        if versions != self._versions:
            written = [path for path, now, was in zip(self._chosen, versions, self._versions) if now != was]
            self._leave_out(written, f"a step has written to {{}} {when}")

    def _leave_out(self, paths: Sequence[str], why: str) -> None:
        """Carry these tensors no longer. Where one of them is needed, end carrying as a whole.

        `why`: the reason, with a place for the path of one of them.
        """
        needed = [path for path in paths if path in self._followed or path in self.carried]
        if needed:
            self._end(why.format(min(needed)))
        elif paths:
            self._selection.leave_out(paths)
            kept = [(path, version) for path, version in zip(self._chosen, self._versions) if path not in paths]
            self._chosen = {path: self._chosen[path] for path, _ in kept}
            self._versions = [version for _, version in kept]

    def _at_boundary(self, commit: BoundarySnapshot) -> None:
        found = self._selection.of(commit.state)
        missing = self._followed - found.keys()
        if missing:
            return self._end(f"{min(missing)} is not there at each head")
        self._check_replaced(found)
        if self.why_not:
            return None
        found = self._selection.of(commit.state)
        size_bytes = sum(local(t).numel() * t.element_size() for t in found.values())
        if self._is_too_slow(size_bytes):
            return self._end("a copy of them at each head would take more than a hundredth of a step")
        if self._latest < 0 and self._lacks_room(size_bytes):
            return self._end(f"{SLOTS} copies of {size_bytes >> 20} MiB would take too much of shared memory")
        if commit.boundary == self._entered:
            self._latest = -1  # the copy that this process has come from
        else:
            self._copy(commit.boundary, found)
            self._latest = commit.boundary
        self._chosen, self._versions = found, versions_of([*found.values()])
        self._places, self._stood = _places_of(commit.state, found), False
        self._tries += 1
        if not self.carried and (self._followed <= self._seen or self._tries > _UNCHANGED):
            own = self._seen | self._followed
            self.carried = tuple(sorted(own & found.keys()))
            self._leave_out([path for path in found if path not in own], "")
        return None

    def _copy(self, boundary: int, tensors: Mapping[str, torch.Tensor]) -> None:
        if 0 <= self._latest == boundary - 1 and not self.carried:
            before = self._slot(self._latest)
            self._seen.update(path for path, tensor in tensors.items() if not before.holds(path, tensor))
        started_s = time.thread_time()  # on a busy machine anything takes longer
        first = self._slot(boundary).fill(boundary, tensors)
        if not first:
            self._copy_s.append(time.thread_time() - started_s + self._look_s)

    def _is_too_slow(self, size_bytes: int) -> bool:
        if len(self._step_s) < 2:
            return False
        allowed_s = max(MOST_SHARE * statistics.median(self._step_s), LEAST_S)
        if len(self._copy_s) < _TIMED:
            return size_bytes / _BYTES_PER_S > 2 * allowed_s
        return statistics.median(self._copy_s) > (2 * allowed_s if self.carried else allowed_s)

    def _lacks_room(self, size_bytes: int) -> bool:
        """Return whether the copies would take more than a quarter of this rank's share of free memory: others need it too."""
        room = os.statvfs(self._folder)
        ranks = max(1, min(self._engine.world_size, os.cpu_count() or 1))
        return SLOTS * size_bytes > room.f_bavail * room.f_frsize // ranks // 4

    def _slot(self, boundary: int) -> _Slot:
        return self._slots[boundary % SLOTS]


class _Slot:
    def __init__(self, folder: Path) -> None:
        self._folder, self._kept = folder, KeptTensors(folder)
        self._stamp: mmap.mmap | None = None

    def fill(self, boundary: int, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Copy the tensors into the slot. Return whether its memory is new. Raises OSError, JournalError, UnsupportedError."""
        own = {path: local(tensor) for path, tensor in tensors.items()}
        infos = [describe(path, tensor) for path, tensor in own.items()]
        is_new = not self._kept.fits(infos)
        if is_new:
            self.clear()
            open_slot(self._folder)
            self._kept.place(infos)
            self._kept.mark(0)
        stamp = self._stamp = self._stamp or _mapped_stamp(self._folder)
        _write_stamp(stamp, _NO_COPY)
        for device in {tensor.device for tensor in own.values()}:
            await_writes(device)
        with torch.no_grad():
            for path, tensor in own.items():
                self._kept.views[path].copy_(tensor)
        _write_stamp(stamp, boundary)
        return is_new

    def holds(self, path: str, tensor: torch.Tensor) -> bool:
        """Return whether the tensor's content is, bit by bit, what was copied last."""
        view, part = self._kept.views.get(path), local(tensor).detach()
        return view is not None and are_same_bits(view, part if part.is_cpu else part.cpu())

    def clear(self) -> None:
        """Mark the slot as holding no copy."""
        if self._stamp is not None:
            _write_stamp(self._stamp, _NO_COPY)


def load(folder: Path, rank: int, boundary: int, destinations: Mapping[str, torch.Tensor]) -> None:
    """Fill `destinations` with what the rank has copied at the head of `boundary`. Raises JournalError, StateMismatchError."""
    for place in _folders(folder, rank):
        if _read_stamp(place) == boundary:
            kept, _, _ = opened(place)
            break
    else:
        raise JournalError(f"rank {rank} has left no copy of its own tensors of boundary {boundary} on this node")
    with torch.no_grad():
        for path, tensor in destinations.items():
            view, part = kept.views.get(path), local(tensor).detach()
            if view is None or (view.shape, view.dtype) != (part.shape, part.dtype):
                raise StateMismatchError(f"{path}: the lost rank has left none of this form")
            write(part, view)


class _Selection:
    """Find the tensors of some paths, and the other tensors of the same models.

    Models that are as they were are not gone through again.
    """

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = paths
        self._models = {path.partition(".")[0] for path in paths}
        self._values = [(path, path.removeprefix(_VALUE)) for path in paths if path.startswith(_VALUE)]
        self._left_out: set[str] = set()
        self._trees: dict[int, tuple[object, int, dict[str, torch.Tensor]]] = {}

    def leave_out(self, paths: Iterable[str]) -> None:
        """Leave these paths out from now on. They are not among the paths that were asked for."""
        self._left_out.update(paths)
        self._trees.clear()

    def of(self, state: HostState) -> dict[str, torch.Tensor]:
        """Return the tensors that are in this state, by path."""
        found: dict[str, torch.Tensor] = {}
        for number, (large, _) in zip(catalogue_numbers(state.tree_versions), state.tree_versions):
            if f"module{number}" not in self._models:
                continue
            tree, at, own = self._trees.get(id(large), (None, -1, {}))
            if tree is not large or at != number:
                paths = ((f"module{number}.{name}", tensor) for name, tensor in large)
                own = {path: tensor for path, tensor in paths if path not in self._left_out}
                self._trees[id(large)] = large, number, own
            found |= own
        found |= {path: state.large[name] for path, name in self._values if name in state.large}
        return found


def _places_of(state: HostState, tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, Any]]:
    """Return the places of the tensors that are in a dict, a list, or an object's attributes, beside the models.

    A place is the container and the key.
    """
    found = {}
    for path, tensor in tensors.items():
        number = state.index.get(id(tensor), -1) if path.startswith(_VALUE) else -1
        parent = state.nodes[number].parent if number >= 0 else -1
        if parent >= 0 and state.nodes[parent].kind in (Kind.DICT, Kind.LIST, Kind.ATTRS):
            found[path] = state.nodes[parent].obj, state.nodes[number].key
    return found


def _at(place: tuple[Any, Any]) -> Any:
    container, key = place
    if isinstance(container, list):
        return list.__getitem__(container, key) if isinstance(key, int) and key < len(container) else None
    content = container if isinstance(container, dict) else getattr(container, "__dict__", {})
    return dict.get(content, key)


def _folders(folder: Path, rank: int) -> list[Path]:
    return [own_at_head_folder(folder, rank) / str(number) for number in range(SLOTS)]


def _mapped_stamp(folder: Path) -> mmap.mmap:
    file = open_below(folder.parent.parent, folder / _STAMP_NAME)
    try:
        os.posix_fallocate(file, 0, _STAMP.size)
        return mmap.mmap(file, _STAMP.size)
    finally:
        os.close(file)


def _write_stamp(stamp: mmap.mmap, boundary: int) -> None:
    stamp[:] = _STAMP.pack(boundary, ~boundary)


def _read_stamp(folder: Path) -> int | None:
    """Return the boundary of the slot's copy; None where it is not whole."""
    try:
        data = (folder / _STAMP_NAME).read_bytes()
    except FileNotFoundError:
        return None
    boundary, check = _STAMP.unpack(data) if len(data) == _STAMP.size else (_NO_COPY, 0)
    return int(boundary) if check == ~boundary and boundary != _NO_COPY else None
