"""Keep the tensors of a copy in one file in shared memory, mapped. The file stays and is filled anew for each copy.

The bytes are copied as a whole on the training thread, at the speed of memory. The list beside them (path, type, shape and place of
each tensor) is written afterwards, whole or not at all, and makes the copy valid. Taking the digests takes longer. They are written
into a list that replaces the first one.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrelay.protocol.errors import JournalError, StateMismatchError
from torchrelay.protocol.journals.kept import WHOLE, root_of
from torchrelay.protocol.machine.private import open_below
from torchrelay.shim.replicas.tensor_files import checksum
from torchrelay.shim.tensors import digest
from torchrelay.shim.tensors.tensor_bytes import await_writes, local, write
from torchrelay.shim.transfer.layout import TensorInfo, describe
from torchrelay.shim.transfer.receiver import Place, TransferStats
from torchrelay.shim.transfer.rows import Rows

DATA_NAME = "tensors.bin"
_VERSION = 1
_ALIGNED = 64
PART_BYTES = 4 << 20
"""How many bytes are digested at once: that takes a millisecond or a few."""


class KeptTensors:
    """The tensors of one slot. Not thread safe: one copy at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._map: mmap.mmap | None = None
        self._infos: list[TensorInfo] = []
        self.views: dict[str, torch.Tensor] = {}
        """Path -> memory of the slot, to be filled."""

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self._infos)

    def fits(self, infos: Sequence[TensorInfo]) -> bool:
        """Return whether the slot's memory, of the latest copy, is for tensors like these."""
        return list(infos) == self._infos

    def place(self, infos: Sequence[TensorInfo]) -> Mapping[str, torch.Tensor]:
        """Return memory for tensors like these. Raises JournalError where shared memory has no room for them."""
        if not self.fits(infos):
            self._infos = list(infos)
            offsets = _offsets(infos)
            end = offsets[-1]
            self.views = {}
            if self._map is None or len(self._map) < end:
                self._map = _mapped(self._folder / DATA_NAME, end)
            for info, offset in zip(infos, offsets):
                self.views[info.path] = _view(self._map, info, offset)
        return self.views

    def fill(self, tensors: Mapping[str, torch.Tensor], half_way: Callable[[], None] = lambda: None) -> None:
        """Copy the bytes of `tensors` into the slot. Raises UnsupportedError, JournalError."""
        own = {path: local(tensor, path) for path, tensor in tensors.items()}
        views = self.place([describe(path, tensor) for path, tensor in own.items()])
        for device in {tensor.device for tensor in own.values()}:
            await_writes(device)
        with torch.no_grad():
            for number, (path, tensor) in enumerate(own.items()):
                if number == len(own) // 2:
                    half_way()
                views[path].copy_(tensor)

    def mark(self, boundary: int) -> None:
        """Write the list without digests: the copy is whole from here on. Raises OSError."""
        self._write_list(boundary, None)

    def seal(self, boundary: int, is_late: Callable[[], bool] = lambda: False) -> None:
        """Take the digests and write the list with them: the copy is whole from here on, if it was not before. Raises OSError.

        `is_late`: tells whether the digests are to be left out by now; then the list stays as it is.
        """
        digests: dict[str, str] = {}
        for part in _in_parts(self._infos):
            if is_late():
                return
            digests |= digest.digests({path: self.views[path] for path in part})
        self._write_list(boundary, digests)

    def _write_list(self, boundary: int, digests: Mapping[str, str] | None) -> None:
        body = json.dumps(
            {
                "version": _VERSION,
                "boundary": boundary,
                "tensors": [[i.path, digest.dtype_name(i.dtype), list(i.shape)] for i in self._infos],
                "digests": digests,
            }
        )
        partial = self._folder / f".{WHOLE}.partial"
        with os.fdopen(open_below(root_of(self._folder), partial), "w") as file:
            file.truncate()  # one that was begun and not finished
            file.write(json.dumps({"checksum": checksum(body), "body": body}))
        partial.rename(self._folder / WHOLE)


def _in_parts(infos: Sequence[TensorInfo]) -> Iterator[list[str]]:
    """Yield lists of paths. The tensors of a list have PART_BYTES or more together; those of the last list may have less."""
    part: list[str] = []
    size_bytes = 0
    for info in infos:
        part.append(info.path)
        size_bytes += info.size_bytes
        if size_bytes >= PART_BYTES:
            yield part
            part = []
            size_bytes = 0
    if part:
        yield part


def _offsets(infos: Sequence[TensorInfo]) -> list[int]:
    """Return where each tensor starts, and where the last one ends."""
    offsets = []
    end = 0
    for info in infos:
        offsets.append(end)
        end += -(-info.size_bytes // _ALIGNED) * _ALIGNED
    return [*offsets, end]


def _mapped(path: Path, size: int) -> mmap.mmap:
    file = open_below(root_of(path.parent), path)
    try:
        # After ftruncate on a full memory file system the first write to the map would end the process with SIGBUS.
        os.posix_fallocate(file, 0, max(size, 1))
        return mmap.mmap(file, max(size, 1))
    except OSError as e:
        raise JournalError(f"no room for a copy of {size} bytes in shared memory: {e}") from e
    finally:
        os.close(file)


def _view(memory: mmap.mmap, info: TensorInfo, offset: int) -> torch.Tensor:
    if info.size_bytes == 0:
        return torch.empty(info.shape, dtype=info.dtype)
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=info.size_bytes, offset=offset)
    return raw.view(info.dtype).view(info.shape)


def opened(folder: Path) -> tuple[KeptTensors, dict[str, str] | None, int]:
    """Return a whole copy, the digests that its tensors had when it was taken, and its boundary. Raises JournalError.

    There are no digests where its process was lost before it had taken them.
    """
    try:
        outer = json.loads((folder / WHOLE).read_text())
        body = json.loads(outer["body"])
        if outer["checksum"] != checksum(outer["body"]) or body["version"] != _VERSION:
            raise ValueError("it is damaged, or of another version")
        infos = [_info(*entry) for entry in body["tensors"]]
        digests = body["digests"]
        boundary = int(body["boundary"])
        digests = None if digests is None else dict(digests)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise JournalError(f"{folder} holds no whole copy: {e}") from e
    kept = KeptTensors(folder)
    kept.place(infos)
    return kept, digests, boundary


def check(folder: Path, kept: KeptTensors, digests: Mapping[str, str] | None) -> None:
    """Raise JournalError where the content is not what was copied, as far as there are digests."""
    if digests is None:
        return
    for path, now in digest.digests(kept.views).items():
        if digests.get(path) != now:
            raise JournalError(f"{folder}: the content of {path} is not what was copied")


def _info(path: str, dtype: str, shape: list[int]) -> TensorInfo:
    kind: Any = getattr(torch, dtype)
    size = torch.Size(shape).numel() * torch.empty((), dtype=kind).element_size()
    return TensorInfo(path, kind, tuple(shape), size)


def load(folder: Path, place: Place) -> TransferStats:
    """Fill the tensors that `place` returns from a whole copy, and check the copy against its digests.

    Raises JournalError where the copy is not whole or is damaged, StateMismatchError where a destination does not fit.
    """
    started = time.monotonic()
    kept, digests, _ = opened(folder)
    check(folder, kept, digests)
    infos = [describe(path, view) for path, view in kept.views.items()]
    destinations = place(infos)
    for device in {tensor.device for tensor in destinations.values()}:
        await_writes(device)
    with torch.no_grad():
        for info in infos:
            tensor = local(destinations[info.path], info.path)
            if tensor.dtype != info.dtype or tuple(tensor.shape) != info.shape:
                raise StateMismatchError(
                    f"{info.path}: the copy has {digest.dtype_name(info.dtype)}{list(info.shape)}, "
                    f"here it is {digest.dtype_name(tensor.dtype)}{list(tensor.shape)}"
                )
            write(tensor, kept.views[info.path])
    return TransferStats(kept.size_bytes, len(infos), time.monotonic() - started, Rows([]))
