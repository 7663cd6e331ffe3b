"""The sending end: tensors that are read chunk by chunk, from any number of threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import torch

from torchrelay.shim.tensors.digest import new_rows, row_sums
from torchrelay.shim.tensors.tensor_bytes import flat_bytes, is_plain, local, memory, pack, plain_copy
from torchrelay.shim.transfer.lanes import Sender, Write, settle
from torchrelay.shim.transfer.layout import Chunk, describe, plan
from torchrelay.shim.transfer.rows import Rows, chunk_check


class Senders(Protocol):
    """What `Lanes` is, for sending alone."""

    def for_device(self, device: torch.device) -> Sender: ...


class _Unwritten:
    """Lanes that sum where the tensor is, and write nothing."""

    def for_device(self, device: torch.device) -> _Unwritten:
        return self

    def send(self, data: torch.Tensor, rows: torch.Tensor, write: Write) -> None:
        sums = torch.empty_like(rows, device=data.device)
        row_sums(data, sums)
        rows.copy_(sums)


def _nowhere(data: memoryview) -> None:
    pass


class TensorSource:
    """Tensors on their way out. They must not change until the last chunk was written.

    Row sums are taken while the bytes pass, so the digests cost no pass of their own; `rows` has them. `sum_rest` takes those of
    chunks that other donors have given in this one's place.

    Raises UnsupportedError for tensors without plain bytes.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = [local(tensor, path) for path, tensor in tensors.items()]
        self.infos = [describe(path, tensor) for path, tensor in zip(tensors, self._tensors, strict=True)]
        self.chunks = plan(self.infos)
        self.rows = Rows(self.infos)
        self._staged: dict[int, torch.Tensor] = {}
        self._spans = Counter(span.tensor for chunk in self.chunks for span in chunk.spans)
        self._spans_left = Counter(self._spans)
        self._summed: set[int] = set()
        self._lock = threading.Lock()
        settle({tensor.device for tensor in self._tensors})

    def write_chunk(self, index: int, lanes: Senders, write: Write) -> bytes:
        """Pass the bytes of one chunk to `write`, in order. Return their check."""
        chunk = self.chunks[index]
        rows = self._write_small(chunk, write) if chunk.small else self._write_spans(chunk, lanes, write)
        with self._lock:
            self._summed.add(index)
        return chunk_check(index, rows)

    def sum_rest(self) -> None:
        """Take the sums of all chunks that this donor was not asked for, so that `rows` has those of all chunks."""
        with self._lock:
            rest = [index for index in range(len(self.chunks)) if index not in self._summed]
        for index in rest:
            self.write_chunk(index, _Unwritten(), _nowhere)

    def _write_spans(self, chunk: Chunk, lanes: Senders, write: Write) -> list[torch.Tensor]:
        found = []
        for span in chunk.spans:
            data = self._flat(span.tensor)[span.start : span.start + span.size]
            rows = new_rows(span.size)
            lanes.for_device(data.device).send(data, rows, write)
            self.rows.put(span.tensor, span.start, rows)
            self._sent(span.tensor)
            found.append(rows)
        return found

    def _write_small(self, chunk: Chunk, write: Write) -> list[torch.Tensor]:
        packed = torch.empty(chunk.size, dtype=torch.uint8, device="cpu")
        pack([self._tensors[i] for i in chunk.small], packed)
        sums = self.rows.put_small(chunk.small, packed)
        write(memory(packed))
        return [sums]

    def _flat(self, index: int) -> torch.Tensor:
        tensor = self._tensors[index]
        if not is_plain(tensor):
            with self._lock:
                if index not in self._staged:
                    self._staged[index] = plain_copy(tensor)
                    settle({tensor.device})
                tensor = self._staged[index]
        return flat_bytes(tensor)

    def _sent(self, index: int) -> None:
        with self._lock:
            self._spans_left[index] -= 1
            if not self._spans_left[index]:
                self._staged.pop(index, None)
                # Another receiver may come.
                self._spans_left[index] = self._spans[index]
