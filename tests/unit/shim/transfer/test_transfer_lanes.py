"""The lane for devices, with host memory in the place of a device: its buffers and their order are the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

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


class ShowsItsStream(HostAsDevice):
    on_stream = False

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        self.on_stream = True
        try:
            yield
        finally:
            self.on_stream = False


class OperatorsOutside(TorchDispatchMode):
    """Notes the operators that do more than look at memory in another way, where they are not on the lane's stream."""

    def __init__(self, lane: ShowsItsStream) -> None:
        super().__init__()
        self._lane = lane
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._lane.on_stream and not func.is_view and "split" not in func.__name__:
            self.found.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("way", ["send", "receive"])
def test_nothing_is_made_or_computed_on_another_stream(way: str) -> None:
    """New memory is filled there, where algorithms have to be deterministic: it would overwrite what the lane has computed."""
    lane = ShowsItsStream(torch.device("cpu"))
    data, rows = torch.zeros(2 * STAGING_BYTES, dtype=torch.uint8), new_rows(2 * STAGING_BYTES)
    with OperatorsOutside(lane) as operators:
        getattr(lane, way)(data, rows, lambda view: None)
    assert operators.found == []


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
