from __future__ import annotations

import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.storages import StorageNotes
from torchrelay.shim.tensors.memory_ranges import MemoryRanges
from torchrelay.shim.tensors.taint import Watch


def test_memory_is_shared_by_views_and_aliases_where_they_overlap() -> None:
    whole = torch.zeros(10)
    ranges = MemoryRanges([whole[:5], whole[5:], torch.zeros(10)])
    assert ranges.shared(whole) == [0, 1]
    assert ranges.shared(whole.data[2:4]) == [0]
    assert ranges.shared(whole.detach().view(2, 5)[1]) == [1]
    assert ranges.shared(whole[4:6]) == [0, 1]
    assert ranges.shared(torch.zeros(10)) == []
    assert ranges.shared(torch.eye(3).to_sparse()) == []
    assert ranges.shared(torch.empty(0)) == []


def test_notes_on_a_storage_are_for_all_its_aliases_and_end_with_it() -> None:
    notes, tensor = StorageNotes(), torch.zeros(3)
    assert notes.add(tensor, 1)
    assert notes.add(tensor.view(3, 1), 4)
    assert notes.of(tensor.data[1:]) == 5
    assert notes.of(torch.zeros(3)) == 0
    assert not notes.add(torch.eye(3).to_sparse(), 1)


def test_notes_do_not_keep_memory_and_never_pass_to_the_next_one_at_the_same_place() -> None:
    notes = StorageNotes()
    for _ in range(10_000):
        made = torch.zeros(1000)
        assert notes.of(made) == 0
        notes.add(made, 1)
    assert len(notes._notes) < 9_000


def test_a_strict_watch_lets_reads_pass_and_no_write() -> None:
    average, other = torch.zeros(4), torch.zeros(4)
    with Watch({"average": average}, strict=True):
        other.add_(average)
        assert average.sum().item() == 0
        for write in (
            lambda: average.add_(1),
            lambda: average.data[1:].fill_(1),
            lambda: setattr(average, "data", other),
        ):
            with pytest.raises(StateMismatchError, match="average is written to after the optimizer step"):
                write()


def test_a_module_that_is_moved_to_where_it_is_has_its_weights_still() -> None:
    layer = torch.nn.Linear(3, 3)
    layer(torch.ones(2, 3)).sum().backward()
    weights = dict(layer.named_parameters())
    with Watch(weights, strict=True):
        layer.to("cpu")
        layer.float()
        kept = layer.weight.detach().clone()
        with pytest.raises(StateMismatchError, match="weight is written to"):
            layer.weight.data = torch.zeros(3, 3)
        with pytest.raises(StateMismatchError, match="weight is written to"):
            layer.double()
    weights = dict(layer.float().named_parameters())
    with Watch(weights, {"weight"}), pytest.raises(StateMismatchError, match="the step reads weight"):
        layer.weight.data.sum().item()
    with Watch(weights):
        aside = layer.weight.detach().clone()
        layer.weight.data = kept
        with pytest.raises(StateMismatchError, match="the step reads weight"):
            layer.weight.sum().item()
        layer.weight.data = aside
        assert layer.weight.sum().item() == aside.sum().item()


def test_operators_are_followed_under_all_their_names() -> None:
    average, seen = torch.zeros(4), []
    with Watch({"average": average}, {"average"}):
        for compute in (
            lambda: average * 2,
            lambda: 2 - average,
            lambda: torch.cat([torch.ones(1), average]),
            lambda: torch.ops.aten.add(average, 1),
            lambda: torch._foreach_add([average], 1)[0],
            lambda: average.view(2, 2).T,
            lambda: torch.nn.functional.linear(torch.ones(1, 4), average.view(1, 4)),
        ):
            with pytest.raises(StateMismatchError, match="reads average"):
                seen.append(compute().sum().item())
    assert seen == []


def test_what_a_recorded_result_was_put_into_is_certain_and_nothing_else_is() -> None:
    gradient = torch.ones(4)
    with Watch({"gradient.0": gradient}, {"gradient.0"}) as watch:
        norm, part, own = gradient.norm(), gradient * 2, gradient.view(2, 2)
        watch.certain([norm, part[:2], own])
        assert norm.item() == 2
        for uncertain in (part, own, gradient * norm):
            with pytest.raises(StateMismatchError, match="reads gradients after its optimizer step"):
                uncertain.sum().item()
