"""Row sums of everything that passes, kept until they become digests."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import torch

from torchrelay.shim.tensors.digest import ROW_BYTES, SUM_BYTES, combine, packed_row_sums, row_count
from torchrelay.shim.tensors.tensor_bytes import memory
from torchrelay.shim.transfer.layout import TensorInfo

CHECK_BYTES = 8
SEAL_BYTES = 16


def chunk_check(index: int, sums: Sequence[torch.Tensor]) -> bytes:
    """Return what both ends must agree on for chunk `index`: CHECK_BYTES over the row sums of its bytes."""
    found = hashlib.blake2b(index.to_bytes(8, "little"), digest_size=CHECK_BYTES)
    for part in sums:
        found.update(memory(part))
    return found.digest()


class Rows:
    """Row sums of the tensors of a manifest. Threads may put sums of different rows at the same time."""

    def __init__(self, infos: Sequence[TensorInfo]) -> None:
        self._infos = infos
        counts = (row_count(info.size_bytes) * SUM_BYTES for info in infos)
        self._starts = list(itertools.accumulate(counts, initial=0))
        self._sums = memoryview(bytearray(self._starts[-1]))

    def put(self, tensor: int, start: int, sums: torch.Tensor) -> None:
        """Keep `sums` (int64[rows, ROW_SUMS], host), which are those of the tensor's bytes from `start` on."""
        first = self._starts[tensor] + start // ROW_BYTES * SUM_BYTES
        self._sums[first : first + sums.shape[0] * SUM_BYTES] = memory(sums)

    def put_small(self, tensors: Sequence[int], packed: torch.Tensor) -> torch.Tensor:
        """Sum, and keep, the one row of each of the small tensors that lie packed in host memory. Return the sums."""
        sums = packed_row_sums(packed, [self._infos[i].size_bytes for i in tensors])
        found = memory(sums)
        for at, tensor in enumerate(tensors):
            first = self._starts[tensor]
            self._sums[first : first + SUM_BYTES] = found[at * SUM_BYTES : (at + 1) * SUM_BYTES]
        return sums

    def seal(self) -> bytes:
        """Return SEAL_BYTES over everything: two sides with the same seal have the same digests."""
        return hashlib.blake2b(self._sums, digest_size=SEAL_BYTES).digest()

    def digests(self) -> dict[str, str]:
        """Return the content digest of each tensor, as `digest.digest` has it. Every row must have been put."""
        return {
            info.path: combine(info.dtype, info.shape, self._sums[self._starts[i] : self._starts[i + 1]])
            for i, info in enumerate(self._infos)
        }
