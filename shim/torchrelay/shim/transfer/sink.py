"""The receiving end: tensors that are filled chunk by chunk, from any number of threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.tensors.digest import dtype_name, new_rows
from torchrelay.shim.tensors.tensor_bytes import flat_bytes, is_plain, local, memory, unpack, write
from torchrelay.shim.transfer.lanes import Fill, Lanes, settle
from torchrelay.shim.transfer.layout import Chunk, TensorInfo, plan
from torchrelay.shim.transfer.rows import Rows, chunk_check


def _fitting(infos: Sequence[TensorInfo], destinations: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the destination of each tensor. Raises StateMismatchError with the first path that does not fit."""
    surplus = destinations.keys() - {info.path for info in infos}
    if surplus:
        raise StateMismatchError(f"{min(surplus)}: the source has no such tensor")
    found = []
    for info in infos:
        if info.path not in destinations:
            raise StateMismatchError(f"{info.path}: there is no tensor here to take it")
        tensor = local(destinations[info.path], info.path)
        if tensor.dtype != info.dtype or tuple(tensor.shape) != info.shape:
            raise StateMismatchError(
                f"{info.path}: the source has {dtype_name(info.dtype)}{list(info.shape)}, "
                f"here it is {dtype_name(tensor.dtype)}{list(tensor.shape)}"
            )
        found.append(tensor)
    return found


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.dtype, one.shape, one.stride(), one.device) == (
        other.data_ptr(),
        other.dtype,
        other.shape,
        other.stride(),
        other.device,
    )


class Sink:
    """Tensors on their way in.

    Large plain tensors are filled in place and their row sums taken from their own memory. Small ones, and those whose
    memory is not in order, are checked in a buffer first and then copied. `rows` has the sums of what arrived.
    Raises StateMismatchError where `destinations` are not the tensors of `infos`.
    """

    def __init__(self, infos: Sequence[TensorInfo], destinations: Mapping[str, torch.Tensor]) -> None:
        self.infos = list(infos)
        self.chunks = plan(self.infos)
        self._tensors = _fitting(infos, destinations)
        self.rows = Rows(self.infos)
        self.accepted: set[int] = set()
        self.accepted_bytes = 0
        """Of these; read by who wants to know how far it is."""
        self._staged: dict[int, torch.Tensor] = {}
        self._spans_left = Counter(span.tensor for chunk in self.chunks for span in chunk.spans)
        self._lock = threading.Lock()
        settle({tensor.device for tensor in self._tensors})

    def is_for(self, infos: Sequence[TensorInfo], destinations: Mapping[str, torch.Tensor]) -> bool:
        """Return whether these are the same tensors in the same memory, so that what has arrived counts for them."""
        if self.infos != list(infos):
            return False
        there = [local(destinations[info.path], info.path) if info.path in destinations else None for info in infos]
        return all(new is not None and _same_memory(old, new) for old, new in zip(self._tensors, there))

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.infos)

    def read_chunk(self, index: int, lanes: Lanes, fill: Fill) -> bytes:
        """Fill one chunk by calls of `fill`, in order. Return the check of what is now held.

        The chunk counts only once `accept` was called; until then it may be read again.
        """
        chunk = self.chunks[index]
        if chunk.small:
            packed = torch.empty(chunk.size, dtype=torch.uint8, device="cpu")
            fill(memory(packed))
            sums = [self.rows.put_small(chunk.small, packed)]
            unpack(packed, [self._tensors[i] for i in chunk.small])
        else:
            sums = self._read_spans(chunk, lanes, fill)
        return chunk_check(index, sums)

    def _read_spans(self, chunk: Chunk, lanes: Lanes, fill: Fill) -> list[torch.Tensor]:
        found = []
        for span in chunk.spans:
            data = self._flat(span.tensor)[span.start : span.start + span.size]
            rows = new_rows(span.size)
            lanes.for_device(data.device).receive(data, rows, fill)
            self.rows.put(span.tensor, span.start, rows)
            found.append(rows)
        return found

    def accept(self, index: int) -> None:
        """Count the chunk as right. A tensor whose memory is not in order is set when its last part is."""
        with self._lock:
            self.accepted.add(index)
            self.accepted_bytes += self.chunks[index].size
        for span in self.chunks[index].spans:
            with self._lock:
                self._spans_left[span.tensor] -= 1
                staged = None if self._spans_left[span.tensor] else self._staged.pop(span.tensor, None)
            if staged is not None:
                write(self._tensors[span.tensor], staged)
                settle({staged.device})

    def _flat(self, index: int) -> torch.Tensor:
        tensor = self._tensors[index]
        if not is_plain(tensor):
            with self._lock:
                if index not in self._staged:
                    self._staged[index] = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
                tensor = self._staged[index]
        return flat_bytes(tensor)
