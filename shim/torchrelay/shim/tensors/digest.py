"""Content digests of tensors, computed where the tensor lives; equal bytes give equal digests on every device.

The formula. A tensor's bytes, in the order of its logical elements, are cut into rows of 1024 little-endian 64-bit
words, the last row filled up with zeros. Each row becomes two sums modulo 2^64, over the words and over their halves:

    sum over j of  weight[j] * word[j]          sum over j of  other[j] * (word[j] >> 32)     (arithmetic shift)

and the digest is BLAKE2b-64 over dtype, shape and all row sums. The weights are fixed, odd, pseudo-random numbers, so a
change of a single word always changes the first sum. Integer sums do not depend on the order of addition, so threads
and devices agree. The second sum is there for the high bits: in the first alone, flipping the top bits (signs!) of any
two words would cancel, since 2^63 * (odd + odd) is 0. With both, contents that differ have equal sums with a
probability, over the weights, of 2^-31 at worst and 2^-60 and less usually. This finds corruption and tells replicas
apart; it is no defence against someone who chooses the content.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import sys
import threading
from collections.abc import Mapping, Sequence

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.tensors.tensor_bytes import (
    WORD_BYTES,
    await_writes,
    flat_bytes,
    is_plain,
    local,
    memory,
    pack,
    padded,
    plain_copy,
    size_bytes,
)

ROW_BYTES = 8192
_ROW_WORDS = ROW_BYTES // 8
ROW_SUMS = 2
"""Sums of each row, int64."""
SUM_BYTES = 8 * ROW_SUMS
_HOST_ROWS = 32
"""256 KiB at a time stay in the cache between the passes, and are too few for torch to start threads."""
_DEVICE_ROWS = 2048
_HOST_PIECES = 1024


@functools.cache
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights of the words and of their high halves, int64[words of a row] each."""
    if sys.byteorder != "little":
        raise UnsupportedError("content digests are defined for little-endian machines")
    seed = hashlib.shake_128(b"torchrelay content digest, version 1").digest(2 * ROW_BYTES)
    both = (torch.frombuffer(bytearray(seed), dtype=torch.int64) | 1).to(device)
    return both[:_ROW_WORDS], both[_ROW_WORDS:]


def row_count(size: int) -> int:
    """Return the number of rows of `size` bytes."""
    return -(-size // ROW_BYTES)


def new_rows(size: int) -> torch.Tensor:
    """Return host memory for the row sums of `size` bytes: int64[row_count(size), ROW_SUMS]."""
    return torch.empty((row_count(size), ROW_SUMS), dtype=torch.int64, device="cpu")


_thread = threading.local()


def _scratch(device: torch.device, rows: int) -> torch.Tensor:
    """Return scratch memory, int64[rows, words of a row], kept for each thread and device."""
    kept: dict[torch.device, torch.Tensor] = _thread.__dict__.setdefault("scratch", {})
    found = kept.get(device)
    if found is None or found.shape[0] < rows:
        found = kept[device] = torch.empty((rows, _ROW_WORDS), dtype=torch.int64, device=device)
    return found[:rows]


def _sum_rows(words: torch.Tensor, out: torch.Tensor) -> None:
    """Write the sums of `words` (int64[rows, words of a row]) into `out` (int64[rows, ROW_SUMS])."""
    device = words.device
    weigh = torch.mv if device.type == "cpu" else _mv_on_device
    step = min(_HOST_ROWS if device.type == "cpu" else _DEVICE_ROWS, words.shape[0])
    weights, other = _weights(device)
    scratch = _scratch(device, step)
    parts = zip(words.unsafe_split(step), out[:, 0].unsafe_split(step), out[:, 1].unsafe_split(step), strict=True)
    for part, sums, half_sums in parts:
        high = scratch if part.shape[0] == step else scratch[: part.shape[0]]
        weigh(part, weights, out=sums)
        torch.bitwise_right_shift(part, 32, out=high)
        weigh(high, other, out=half_sums)


def _mv_on_device(matrix: torch.Tensor, vector: torch.Tensor, *, out: torch.Tensor) -> None:
    """Multiply as torch.mv does, which devices do not have for integers."""
    torch.sum(matrix * vector, dim=1, out=out)


def row_sums(data: torch.Tensor, out: torch.Tensor) -> None:
    """Write the row sums of `data` (uint8[size], contiguous) into `out` (int64[row_count(size), ROW_SUMS]), on one device.

    Scratch memory: 256 KiB on the host, 32 MiB on a device, for each thread. Does not wait for the device.
    """
    size = data.numel()
    whole = size // ROW_BYTES * ROW_BYTES
    if data.storage_offset() % 8 or data.data_ptr() % 8:
        for start in range(0, whole, _DEVICE_ROWS * ROW_BYTES):
            # A copy is aligned.
            part = data[start : min(start + _DEVICE_ROWS * ROW_BYTES, whole)].clone()
            _sum_rows(part.view(torch.int64).view(-1, _ROW_WORDS), out[start // ROW_BYTES :][: row_count(part.numel())])
    elif whole:
        _sum_rows(data[:whole].view(torch.int64).view(-1, _ROW_WORDS), out[: whole // ROW_BYTES])
    if size > whole:
        last = torch.zeros(ROW_BYTES, dtype=torch.uint8, device=data.device)
        last[: size - whole] = data[whole:]
        _sum_rows(last.view(torch.int64).view(1, _ROW_WORDS), out[whole // ROW_BYTES :])


def packed_row_sums(packed: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the row sums, int64[pieces, ROW_SUMS], of pieces that lie in `packed` as `pack` does it.

    `sizes`: of the pieces, 1 to ROW_BYTES bytes each. All are summed at once: a few operations for thousands of pieces. `packed` is
    uint8 on the host and starts at a word.
    """
    words = packed.view(torch.int64)
    weights, other = _weights(packed.device)
    lengths = torch.tensor([padded(size) // WORD_BYTES for size in sizes], device="cpu")
    starts = lengths.cumsum(0) - lengths
    place_in_row = torch.arange(words.numel(), device="cpu") - starts.repeat_interleave(lengths)
    both = torch.stack((words * weights[place_in_row], (words >> 32) * other[place_in_row]), dim=1)
    running = both.cumsum(0)
    return running[starts + lengths - 1] - running[starts] + both[starts]


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def combine(dtype: torch.dtype, shape: Sequence[int], rows: bytes | memoryview) -> str:
    """Return the digest of a tensor from its row sums (16 bytes for each row, little-endian), as 16 hex digits."""
    head = f"{dtype_name(dtype)}{list(shape)}".encode()
    return hashlib.blake2b(head + bytes(rows), digest_size=8).hexdigest()


def digest(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor's content, as 16 hex digits. It covers dtype, shape and every bit.

    Of a DTensor it is the local shard's. Raises UnsupportedError for tensors without plain bytes.
    """
    return digests({"tensor": tensor})["tensor"]


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the `digest` of many tensors. The host waits once for each device, after all of its work was queued.

    Raises UnsupportedError, naming the tensor, for tensors without plain bytes.
    """
    held = [local(tensor, path) for path, tensor in tensors.items()]
    sizes = [size_bytes(t) for t in held]
    by_device: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(held):
        by_device.setdefault(tensor.device, []).append(index)
    rows: list[memoryview] = [memoryview(b"")] * len(held)
    for device, indices in by_device.items():
        counts = [row_count(sizes[i]) for i in indices]
        starts = list(itertools.accumulate(counts, initial=0))
        await_writes(device)
        sums = torch.empty((starts[-1], ROW_SUMS), dtype=torch.int64, device=device)
        _queue_sums([held[i] for i in indices], starts, sums)
        found = memory(sums.cpu())
        for at, i in enumerate(indices):
            rows[i] = found[SUM_BYTES * starts[at] : SUM_BYTES * starts[at + 1]]
    return {
        path: combine(tensor.dtype, tensor.shape, rows[i])
        for i, (path, tensor) in enumerate(zip(tensors, held, strict=True))
    }


def _queue_sums(tensors: Sequence[torch.Tensor], starts: Sequence[int], sums: torch.Tensor) -> None:
    """Write the row sums of `tensors`, all on one device, into `sums` there: tensor i's from `starts[i]` on."""
    small: list[torch.Tensor] = []
    places: list[int] = []
    for at, tensor in enumerate(tensors):
        plain = tensor if is_plain(tensor) else plain_copy(tensor)
        count = starts[at + 1] - starts[at]
        if count == 1:
            small.append(plain)
            places.append(starts[at])
        elif count:
            row_sums(flat_bytes(plain), sums[starts[at] : starts[at + 1]])
    if not small:
        return
    found = torch.empty((len(small), ROW_SUMS), dtype=torch.int64, device=sums.device)
    on_host = sums.device.type == "cpu"
    step = _HOST_PIECES if on_host else _DEVICE_ROWS
    for first in range(0, len(small), step):
        part = small[first : first + step]
        out = found[first : first + step]
        if on_host:
            sizes = [size_bytes(tensor) for tensor in part]
            packed = torch.empty(sum(map(padded, sizes)), dtype=torch.uint8, device="cpu")
            pack(part, packed)
            out.copy_(packed_row_sums(packed, sizes))
        else:
            _small_device_sums(part, out)
    sums[torch.tensor(places, device=sums.device)] = found


def _small_device_sums(tensors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    rows = torch.zeros((len(tensors), ROW_BYTES), dtype=torch.uint8, device=out.device)
    for row, tensor in zip(rows.unbind(), tensors, strict=True):
        row[: size_bytes(tensor)] = flat_bytes(tensor)
    _sum_rows(rows.view(torch.int64), out)
