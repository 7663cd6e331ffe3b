"""The lane for devices, with host memory in the place of a device: its buffers and their order are the same."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from torchrelay.shim.tensors.digest import new_rows, row_sums
from torchrelay.shim.tensors.tensor_bytes import memory
from torchrelay.shim.transfer.lanes import STAGING_BYTES, DeviceLane


class Event:
    def __init__(self) -> None:
        self.recorded = self.waited = 0

    def record(self, stream: object) -> None:
        assert stream == "stream"
        self.recorded += 1

    def synchronize(self) -> None:
        self.waited += 1


class HostAsDevice(DeviceLane):
    def _make_streams(self) -> tuple[Any, list[Any]]:
        return "stream", [Event(), Event()]

    def _make_buffer(self) -> torch.Tensor:
        return torch.full((STAGING_BYTES,), 255, dtype=torch.uint8)

    def _on_stream(self) -> Any:
        return contextlib.nullcontext()


@pytest.mark.parametrize("size", [1, 8191, STAGING_BYTES, STAGING_BYTES + 1, 3 * STAGING_BYTES + 4097])
def test_bytes_and_sums_pass_unchanged_in_both_directions(size: int) -> None:
    data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    expected = new_rows(size)
    row_sums(data, expected)
    lane = HostAsDevice(torch.device("cpu"))

    wire = bytearray()
    sums = torch.zeros_like(expected)
    lane.send(data, sums, wire.extend)
    assert wire == bytes(memory(data))
    assert torch.equal(sums, expected)

    arrived = torch.zeros_like(data)
    sums = torch.zeros_like(expected)
    taken = 0

    def fill(view: memoryview) -> None:
        nonlocal taken
        view[:] = wire[taken : taken + len(view)]
        taken += len(view)

    lane.receive(arrived, sums, fill)
    assert taken == size
    assert torch.equal(arrived, data)
    assert torch.equal(sums, expected)


def test_a_buffer_is_waited_for_before_its_bytes_are_sent_and_the_next_part_is_under_way() -> None:
    lane = HostAsDevice(torch.device("cpu"))
    data = torch.zeros(4 * STAGING_BYTES, dtype=torch.uint8)
    events: list[Event] = lane._events
    seen: list[tuple[int, int, int]] = []

    def write(view: memoryview) -> None:
        mine, other = events[len(seen) % 2], events[1 - len(seen) % 2]
        seen.append((mine.recorded, mine.waited, other.recorded))

    lane.send(data, new_rows(data.numel()), write)
    assert seen == [(1, 1, 1), (1, 1, 2), (2, 2, 2), (2, 2, 2)]


def test_a_buffer_is_not_filled_before_its_last_copy_is_done() -> None:
    lane = HostAsDevice(torch.device("cpu"))
    data = torch.zeros(4 * STAGING_BYTES, dtype=torch.uint8)
    events: list[Event] = lane._events
    seen: list[tuple[int, int]] = []

    def fill(view: memoryview) -> None:
        mine = events[len(seen) % 2]
        seen.append((mine.recorded, mine.waited))

    lane.receive(data, new_rows(data.numel()), fill)
    assert seen == [(0, 1), (0, 1), (1, 2), (1, 2)]
