"""Keep tensors in files, for the just-in-time checkpoint: with the same manifest, chunks and checks as on the network.

`tensors.json` lists the tensors, their digests, and of each chunk the file, the offset and the check. The bytes are in
`tensors-00000.bin` and so on, of about 1 GiB each. The list is written last, so a folder that has it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from torchrelay.protocol.errors import CheckpointError, FrameError
from torchrelay.protocol.machine.private import make_private, names_to_disk
from torchrelay.shim.transfer import layout
from torchrelay.shim.transfer.lanes import Lanes, Write
from torchrelay.shim.transfer.pace import ByteCount, Moved, nobody
from torchrelay.shim.transfer.receiver import Place, TransferStats
from torchrelay.shim.transfer.sink import Sink
from torchrelay.shim.transfer.source import TensorSource

LIST_NAME = "tensors.json"
FILE_BYTES = 1 << 30
"""A new file is begun after this; a chunk is never split."""
_VERSION = 1


def checksum(body: str) -> str:
    """Return the checksum of a list of tensors, as it stands beside the list."""
    return hashlib.blake2b(body.encode(), digest_size=16).hexdigest()


def _data_path(directory: Path, number: int) -> Path:
    return directory / f"tensors-{number:05d}.bin"


def save(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    midway: Callable[[], None] = lambda: None,
    moved: Moved = nobody,
) -> int:
    """Write `tensors` below `directory`, durably, and return their size in bytes.

    `midway` is called when their bytes are written, and no file has its name yet. The tensors must not change meanwhile. What was
    there before is replaced; only this user can read what is written. `moved`: told now and then how far it is. Raises
    CheckpointError when the folder cannot be written, UnsupportedError for tensors without plain bytes.
    """
    source = TensorSource(tensors)
    partial: list[Path] = []
    try:
        make_private(directory)
        (directory / LIST_NAME).unlink(missing_ok=True)
        chunks = _write_data(directory, source, partial, moved)
        midway()
        body = json.dumps(
            {
                "version": _VERSION,
                "chunk_bytes": layout.CHUNK_BYTES,
                "manifest": layout.encode(source.infos).decode(),
                "chunks": chunks,
                "digests": source.rows.digests(),
            }
        )
        partial.append(directory / f".{LIST_NAME}.partial")
        partial[-1].unlink(missing_ok=True)
        with open(partial[-1], "xb", opener=_private) as file:
            file.write(json.dumps({"checksum": checksum(body), "body": body}).encode())
            _to_disk(file)
        for path in partial:
            path.rename(directory / path.name.removeprefix(".").removesuffix(".partial"))
        names_to_disk(directory)
    except OSError as e:
        for path in partial:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise CheckpointError(f"{directory}: the tensors cannot be written: {e}") from e
    return sum(info.size_bytes for info in source.infos)


def _write_data(directory: Path, source: TensorSource, partial: list[Path], moved: Moved) -> list[tuple[int, int, str]]:
    """Write the bytes. Return of each chunk its file, its offset there and its check."""
    lanes = Lanes()
    pace = ByteCount(moved, sum(chunk.size for chunk in source.chunks))
    chunks: list[tuple[int, int, str]] = []
    index = 0
    while index < len(source.chunks):
        number = len(partial)
        path = _data_path(directory, number)
        partial.append(path.with_name(f".{path.name}.partial"))
        partial[-1].unlink(missing_ok=True)
        with open(partial[-1], "xb", buffering=0, opener=_private) as file:
            offset = 0
            while index < len(source.chunks) and offset < FILE_BYTES:
                check = source.write_chunk(index, lanes, _writer(file.fileno()))
                chunks.append((number, offset, check.hex()))
                offset += source.chunks[index].size
                pace.add(source.chunks[index].size)
                index += 1
            _to_disk(file)
    return chunks


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _writer(descriptor: int) -> Write:
    def write(view: memoryview) -> None:
        while len(view):
            view = view[os.write(descriptor, view) :]

    return write


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def load(directory: Path, place: Place, moved: Moved = nobody) -> TransferStats:
    """Fill the tensors that `place` returns from those in `directory`, in place, and check their digests.

    Raises CheckpointError where a file is missing, truncated or damaged, StateMismatchError where a destination does not fit.
    Destinations are undefined after an error. `moved`: told now and then how far it is.
    """
    started = time.monotonic()
    content = _read_list(directory)
    try:
        infos = layout.decode(content["manifest"].encode())
        chunks = [(int(file), int(offset), bytes.fromhex(check)) for file, offset, check in content["chunks"]]
        digests = dict(content["digests"])
    except (KeyError, TypeError, ValueError, AttributeError, FrameError) as e:
        raise CheckpointError(f"{directory / LIST_NAME} is not a list of tensors: {e}") from e
    sink = Sink(infos, place(infos))
    if len(chunks) != len(sink.chunks):
        raise CheckpointError(f"{directory / LIST_NAME} lists {len(chunks)} chunks of {len(sink.chunks)}")
    with contextlib.closing(_Reader(directory)) as reader:
        lanes = Lanes()
        pace = ByteCount(moved, sum(chunk.size for chunk in sink.chunks))
        for index, (number, offset, check) in enumerate(chunks):
            reader.seek(number, offset)
            if sink.read_chunk(index, lanes, reader.fill) != check:
                raise CheckpointError(f"{_data_path(directory, number)} is damaged at byte {offset} or after")
            sink.accept(index)
            pace.add(sink.chunks[index].size)
    for path, digest in sink.rows.digests().items():
        if digests.get(path) != digest:
            raise CheckpointError(f"{directory}: the content of {path} is not what was saved")
    return TransferStats(sink.size_bytes, len(infos), time.monotonic() - started, sink.rows)


def _read_list(directory: Path) -> dict[str, Any]:
    path = directory / LIST_NAME
    try:
        outer = json.loads(path.read_bytes())
        body = outer["body"]
        if outer["checksum"] != checksum(body):
            raise ValueError("its checksum is wrong")
        content: dict[str, Any] = json.loads(body)
        version = (content["version"], content["chunk_bytes"])
    except FileNotFoundError as e:
        raise CheckpointError(f"{directory} holds no whole set of tensors: {LIST_NAME} is missing") from e
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise CheckpointError(f"{path} cannot be read: {e}") from e
    if version != (_VERSION, layout.CHUNK_BYTES):
        raise CheckpointError(f"{path} was written by another version of torchrelay; use that one to resume")
    return content


class _Reader:
    """Reads the data files one after the other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = -1
        self._file: BinaryIO | None = None

    def seek(self, number: int, offset: int) -> None:
        try:
            if self._number != number or self._file is None:
                self.close()
                self._file = open(_data_path(self._directory, number), "rb", buffering=0)  # noqa: SIM115 - open until the next one is asked for
                self._number = number
            self._file.seek(offset)
        except OSError as e:
            raise CheckpointError(f"{_data_path(self._directory, number)} cannot be read: {e}") from e

    def fill(self, view: memoryview) -> None:
        path = _data_path(self._directory, self._number)
        got = 0
        while got < len(view):
            try:
                count = os.readv(self._file.fileno(), [view[got:]]) if self._file else 0
            except OSError as e:
                raise CheckpointError(f"{path} cannot be read: {e}") from e
            if count == 0:
                raise CheckpointError(f"{path} is truncated")
            got += count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
