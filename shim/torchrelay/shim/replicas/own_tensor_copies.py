"""The files in shared memory that hold copies of a rank's own tensors.

Two are filled at heads in turn, so that the one before stays whole, and one behind updates. Each says of which boundary it is.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import torch

from torchrelay.protocol.errors import JournalError, StateMismatchError
from torchrelay.protocol.journals.kept import SLOTS, open_slot, own_at_head_folder
from torchrelay.protocol.machine.private import open_below
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.replicas.kept_tensors import KeptTensors, opened
from torchrelay.shim.tensors.tensor_bytes import await_writes, write
from torchrelay.shim.transfer.layout import TensorInfo, describe

_NO_COPY = -1
_STAMP = struct.Struct("<qq")
_STAMP_NAME = "boundary"
_BEHIND_UPDATE = "updated"


class CopySlot:
    """One of the files that a rank copies its own tensors into. `folder`: the slot's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = KeptTensors(folder)
        self._stamp: mmap.mmap | None = None
        self._stamped: int | None = None
        """The boundary in the stamp; None as long as it may be that of an earlier process."""
        self._devices: set[torch.device] = set()

    def fill(self, boundary: int, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Copy the tensors into the slot. Return whether its memory is new. Raises OSError, JournalError, UnsupportedError."""
        own = [local(tensor) for tensor in tensors.values()]
        views = self._kept.views
        is_new = [*views] != [*tensors] or not all(
            view.shape == tensor.shape and view.dtype is tensor.dtype for view, tensor in zip(views.values(), own)
        )
        if is_new:
            open_slot(self._folder)
        self._stamp = self._stamp or _mapped_stamp(self._folder)
        self._write_stamp(_NO_COPY)  # before the list: a process before this one may have left a copy of another form
        if is_new:
            self._kept.place([describe(path, tensor.detach()) for path, tensor in zip(tensors, own)])
            self._kept.mark(0)
        if is_new:
            self._devices = {tensor.device for tensor in own}
        for device in self._devices:
            await_writes(device)
        with torch.no_grad():
            torch._foreach_copy_([*self._kept.views.values()], own)
        self._write_stamp(boundary)
        return is_new

    def clear(self) -> None:
        """Mark the slot as holding no copy, that of an earlier process included. Raises OSError."""
        if self._stamped == _NO_COPY:
            return
        if self._stamp is None and (self._folder / _STAMP_NAME).exists():
            self._stamp = _mapped_stamp(self._folder)
        if self._stamp is not None:
            self._write_stamp(_NO_COPY)
        self._stamped = _NO_COPY

    def drop(self) -> None:
        """Give the memory back to the system."""
        self._kept = KeptTensors(self._folder)
        self._stamp = self._stamped = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write_stamp(self, boundary: int) -> None:
        assert self._stamp is not None
        self._stamp[:] = _STAMP.pack(boundary, ~boundary)
        self._stamped = boundary


class OwnCopy:
    """A whole copy that a rank has left. `infos`: the form of each tensor."""

    def __init__(self, views: Mapping[str, torch.Tensor]) -> None:
        self.views = views
        self.infos: tuple[TensorInfo, ...] = tuple(describe(path, view) for path, view in views.items())

    def put(self, destinations: Mapping[str, torch.Tensor]) -> None:
        """Fill these tensors. Raises StateMismatchError where the copy has none of that form."""
        with torch.no_grad():
            for path, tensor in destinations.items():
                view = self.views.get(path)
                part = local(tensor).detach()
                if view is None or not _are_of_one_form(view, part):
                    raise StateMismatchError(f"{path}: the lost rank has left none of this form")
                write(part, view)


def read(folder: Path, rank: int, boundary: int, *, behind_update: bool = False) -> OwnCopy:
    """Return what the rank has copied of its own tensors at the head of `boundary`. Raises JournalError where there is none.

    `behind_update`: what it has copied behind the update that leads to `boundary` instead.
    """
    for place in [updated_folder(folder, rank)] if behind_update else slot_folders(folder, rank):
        if _read_stamp(place) == boundary:
            kept, _, _ = opened(place)
            return OwnCopy(kept.views)
    where = "behind the update that leads to" if behind_update else "of"
    raise JournalError(f"rank {rank} has left no copy of its own tensors {where} boundary {boundary} on this node")


def slot_folders(folder: Path, rank: int) -> list[Path]:
    """Return the folders of a rank's slots for heads. `folder`: the node's, as in `protocol.kept`."""
    return [own_at_head_folder(folder, rank) / str(number) for number in range(SLOTS)]


def updated_folder(folder: Path, rank: int) -> Path:
    """Return the folder of a rank's slot for what updates leave. `folder`: the node's, as in `protocol.kept`."""
    return own_at_head_folder(folder, rank) / _BEHIND_UPDATE


def _are_of_one_form(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _mapped_stamp(folder: Path) -> mmap.mmap:
    file = open_below(folder.parent.parent, folder / _STAMP_NAME)
    try:
        os.posix_fallocate(file, 0, _STAMP.size)
        return mmap.mmap(file, _STAMP.size)
    finally:
        os.close(file)


def _read_stamp(folder: Path) -> int | None:
    """Return the boundary of the slot's copy; None where it is not whole."""
    try:
        data = (folder / _STAMP_NAME).read_bytes()
    except FileNotFoundError:
        return None
    boundary, check = _STAMP.unpack(data) if len(data) == _STAMP.size else (_NO_COPY, 0)
    return int(boundary) if check == ~boundary and boundary != _NO_COPY else None
