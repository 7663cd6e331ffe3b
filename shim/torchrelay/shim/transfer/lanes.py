"""Lanes move bytes between a tensor's memory and a socket or a file, and sum their rows on the way.

Each thread has lanes of its own; a lane serves one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from torchrelay.shim.tensors.digest import ROW_BYTES, row_count, row_sums
from torchrelay.shim.tensors.tensor_bytes import await_writes, memory

Write = Callable[[memoryview], None]
"""Takes all of the bytes, or raises."""
Fill = Callable[[memoryview], None]
"""Fills all of the view, or raises."""

STAGING_BYTES = 4 << 20
"""A device lane holds two pinned buffers of this size, whatever the size of the tensors."""


class Sender(Protocol):
    def send(self, data: torch.Tensor, rows: torch.Tensor, write: Write) -> None:
        """Write `data` (uint8, flat, on the lane's device); its row sums go to `rows` (int64[rows, ROW_SUMS], host)."""


class Lane(Sender, Protocol):
    def receive(self, data: torch.Tensor, rows: torch.Tensor, fill: Fill) -> None:
        """Fill `data` (uint8, flat, on the lane's device); the row sums of what it then holds go to `rows`."""


class HostLane:
    """Moves bytes straight between host memory and the socket.

    Summing first and sending then, or receiving first, in few large calls: in smaller steps the second of the two would find more
    in the cache, but the threads then hand the interpreter lock to and fro, which costs more.
    """

    def send(self, data: torch.Tensor, rows: torch.Tensor, write: Write) -> None:
        row_sums(data, rows)
        write(memory(data))

    def receive(self, data: torch.Tensor, rows: torch.Tensor, fill: Fill) -> None:
        fill(memory(data))
        row_sums(data, rows)


class DeviceLane:
    """Moves bytes through two pinned host buffers, on a stream of its own: one is copied while the other is on the network.

    The thread that makes the lane has synchronized the device, so that the tensors are not being written.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream, self._events = self._make_streams()
        self._buffers = [self._make_buffer() for _ in range(2)]
        self._views = [memory(buffer) for buffer in self._buffers]

    def _make_streams(self) -> tuple[Any, list[Any]]:
        stream = torch.cuda.Stream(self._device)
        return stream, [torch.cuda.Event() for _ in range(2)]

    def _make_buffer(self) -> torch.Tensor:
        return torch.empty(STAGING_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)

    def _on_stream(self) -> Any:
        return torch.cuda.stream(self._stream)

    def send(self, data: torch.Tensor, rows: torch.Tensor, write: Write) -> None:
        parts = data.unsafe_split(STAGING_BYTES)
        with self._on_stream():
            sums = self._new_sums(rows)
            self._fetch(parts[0], 0)
            for index, part in enumerate(parts):
                turn = index % 2
                # The other buffer is free: what it held was written in the round before.
                if index + 1 < len(parts):
                    self._fetch(parts[index + 1], 1 - turn)
                first = index * STAGING_BYTES // ROW_BYTES
                row_sums(part, sums[first : first + row_count(part.numel())])
                self._events[turn].synchronize()
                write(self._views[turn][: part.numel()])
            rows.copy_(sums)

    def _new_sums(self, rows: torch.Tensor) -> torch.Tensor:
        """Make the sums on the lane's stream.

        Memory of another stream may still be written there, if only by torch's own filling of new memory
        (`torch.use_deterministic_algorithms`).
        """
        return torch.empty_like(rows, device=self._device)

    def _fetch(self, part: torch.Tensor, turn: int) -> None:
        self._buffers[turn][: part.numel()].copy_(part, non_blocking=True)
        self._events[turn].record(self._stream)

    def receive(self, data: torch.Tensor, rows: torch.Tensor, fill: Fill) -> None:
        with self._on_stream():
            sums = self._new_sums(rows)
            for index, part in enumerate(data.unsafe_split(STAGING_BYTES)):
                turn = index % 2
                # An event that was never recorded counts as passed.
                self._events[turn].synchronize()
                fill(self._views[turn][: part.numel()])
                part.copy_(self._buffers[turn][: part.numel()], non_blocking=True)
                self._events[turn].record(self._stream)
                first = index * STAGING_BYTES // ROW_BYTES
                row_sums(part, sums[first : first + row_count(part.numel())])
            # This waits for the stream, and with it for every copy into `data`.
            rows.copy_(sums)


class Lanes:
    """The lanes of one thread, made when a device is first met."""

    def __init__(self) -> None:
        self._lanes: dict[torch.device, Lane] = {torch.device("cpu"): HostLane()}

    def for_device(self, device: torch.device) -> Lane:
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = DeviceLane(device)
        return lane


def settle(devices: set[torch.device]) -> None:
    """Wait until nothing writes to tensors on these devices any more."""
    for device in devices:
        await_writes(device)
