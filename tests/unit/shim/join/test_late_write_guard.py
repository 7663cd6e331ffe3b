from __future__ import annotations

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.join.late_write_guard import SettlingWatch


@pytest.fixture
def average() -> torch.Tensor:
    return torch.full((4,), 3.0)


def test_a_collective_s_result_in_what_may_have_been_read_is_refused(average: torch.Tensor) -> None:
    other = torch.zeros(4)
    with SettlingWatch({"average": average}, {"average"}, {"average": 1}) as watch:
        watch.certain([average])
        average.mul_(0.5)
        watch.certain([other])
        assert average[0].item() == 3.0
        with pytest.raises(StateMismatchError, match="average was read after the optimizer step, before a collective"):
            watch.certain([other, average.view(2, 2)])


def test_a_part_that_is_no_longer_late_leaves_the_others_late(average: torch.Tensor) -> None:
    further = torch.full((4,), 5.0)
    sources = {"average": average, "further": further}
    with SettlingWatch(sources, sources, {"average": 1, "further": 2}):
        average.mul_(0.5)
        further.mul_(0.5)
        with pytest.raises(StateMismatchError, match="reads further"):
            (average + further).sum().item()
        further.mul_(0.5)
        assert (average + further).sum().item() == 32.0


def test_of_tensors_that_share_memory_one_that_is_still_written_bars_the_other(average: torch.Tensor) -> None:
    part = average[:2]
    with SettlingWatch({"average": average, "part": part.data}, {"average", "part"}, {"average": 1}):
        average.mul_(0.5)
        with pytest.raises(StateMismatchError, match="reads part"):
            average.sum().item()


def test_what_is_not_counted_is_not_settled(average: torch.Tensor) -> None:
    with SettlingWatch({"average": average}, {"average"}, {}):
        average.mul_(0.5)
        with pytest.raises(StateMismatchError, match="reads average"):
            average.sum().item()
