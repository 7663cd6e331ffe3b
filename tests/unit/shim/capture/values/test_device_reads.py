from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from torchrelay.shim.capture.values import device_reads, small
from torchrelay.shim.capture.values.device_reads import DeviceReads


class OnDevice(torch.Tensor):
    """Stands for a tensor of a device, which this machine may lack."""

    is_cuda = True


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each transfer had. The class of a tensor of a device is torch.Tensor itself."""
    sizes = []

    def read(tensors: Sequence[torch.Tensor]) -> list[bytes]:
        sizes.append(len(tensors))
        return [t.as_subclass(torch.Tensor).numpy().tobytes() for t in tensors]

    monkeypatch.setattr(device_reads, "contents", read)
    monkeypatch.setattr(device_reads, "type", lambda tensor: torch.Tensor, raising=False)
    monkeypatch.setattr(DeviceReads, "_wait", lambda self, device: None)
    return sizes


def on_device(*values: float) -> torch.Tensor:
    return torch.tensor(values).as_subclass(OnDevice)


def test_tensors_of_a_device_are_read_in_one_transfer(transfers: list[int]) -> None:
    tensors = {"a": on_device(1.0, 2.0), "b": on_device(3.0), "c": torch.tensor([4.0])}
    taken = DeviceReads().take_all(tensors)
    assert transfers == [2], "the processor's own tensor is no transfer"
    assert all(torch.equal(small.build(value), tensors[name]) for name, value in taken.items())


def test_what_is_read_ahead_is_asked_for_without_a_transfer(transfers: list[int]) -> None:
    one, other = on_device(1.0), on_device(2.0)
    reads = DeviceReads()
    with reads.ahead([one, other]):
        assert reads.take(one).data == torch.tensor([1.0]).numpy().tobytes()
        assert reads.take_if_small(other, 4) is not None
        assert reads.take_if_small(other, 3) is None
        reads.take_all({"one": one, "other": other})
    assert transfers == [2]


def test_what_was_read_ahead_is_not_believed_afterwards(transfers: list[int]) -> None:
    counter, other = on_device(1.0), on_device(2.0)
    reads = DeviceReads()
    with reads.ahead([counter, other]):
        before = reads.take(counter)
    counter.as_subclass(torch.Tensor).add_(1)
    after = reads.take_all({"counter": counter, "other": other})["counter"]
    assert (small.build(before).item(), small.build(after).item()) == (1.0, 2.0)
