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


def past_counts(average: torch.Tensor, *, is_through: bool = True) -> SettlingWatch:
    return SettlingWatch({"average": average}, (), {}, comes_back=is_through, is_through=is_through)


def test_what_is_written_past_torch_s_counts_is_the_donor_s_once_it_is_read(average: torch.Tensor) -> None:
    with past_counts(average) as watch:
        average.data.mul_(0.5).add_(1.0)
        assert average.tolist() == [3.0] * 4
        watch.check_settled([])
        assert {"average": average.detach()}["average"][0].item() == 3.0
        with pytest.raises(StateMismatchError, match="more often than by the donor, or past torch"):
            average.data.mul_(0.5)
    with pytest.raises(StateMismatchError, match="more often than by the donor, or past torch"):
        watch.check_settled([])


def test_it_is_not_where_it_was_read_before_or_the_donor_is_not_through(average: torch.Tensor) -> None:
    with past_counts(average) as watch:
        assert average[0].item() == 3.0
        average.data.mul_(0.5)
        with pytest.raises(StateMismatchError, match="reads average"):
            watch.check_escapes()
    with past_counts(average, is_through=False):
        average.data.mul_(0.5)
        with pytest.raises(StateMismatchError, match="reads average"):
            average.tolist()


def test_it_is_not_where_torch_has_counted_a_write_as_well(average: torch.Tensor) -> None:
    with past_counts(average):
        average.data.mul_(0.5)
        average.mul_(0.5)
        with pytest.raises(StateMismatchError, match="reads average"):
            average.tolist()
