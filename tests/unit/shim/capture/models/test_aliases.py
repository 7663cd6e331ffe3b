"""Tensors that share a parameter's memory follow it in the process that takes a rank over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import aliases, device
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.BatchNorm1d(1024))


MAKES: dict[str, Callable[[torch.nn.Module], Any]] = {
    "state_dict": lambda m: m.state_dict(),
    "data": lambda m: {"w": m[0].weight.data},  # type: ignore[index]  # a Sequential
    "detach": lambda m: {"w": m[0].bias.detach()},  # type: ignore[index]  # as above
    "a part of one": lambda m: {"w": m[0].weight.data[3:7].t()},  # type: ignore[index]  # as above
    "a buffer": lambda m: {"w": m[1].running_mean.view(2, 512)},  # type: ignore[index]  # as above
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("in_set_up", [False, True])
def test_what_shares_a_parameters_memory_does_so_in_another_process(
    make: Callable[[torch.nn.Module], Any], in_set_up: bool
) -> None:
    source: dict[str, Any] = {"model": model(), "held": {}}
    target: dict[str, Any] = {"model": model(), "held": {}}
    source["held"] = make(source["model"])
    if in_set_up:
        target["held"] = make(target["model"])
    carry(source, target)
    with torch.no_grad():
        for tensor in [*target["model"].parameters(), *target["model"].buffers()]:
            tensor += 1
    wanted = make(target["model"])
    assert target["held"].keys() == wanted.keys()
    assert all(torch.equal(target["held"][name], tensor) for name, tensor in wanted.items())
    assert all(target["held"][name].data_ptr() == tensor.data_ptr() for name, tensor in wanted.items())


ARRAYS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "large": lambda m: m[0].weight.detach().numpy(),  # type: ignore[index]  # a Sequential
    "small": lambda m: m[0].bias.detach().numpy(),  # type: ignore[index]  # as above
    "a part of one": lambda m: m[0].weight.data.numpy()[3:7].T,  # type: ignore[index]  # as above
    "a buffer": lambda m: m[1].running_mean.numpy(),  # type: ignore[index]  # as above
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("before", [None, "its own", "another"])
def test_an_array_of_numpy_that_shares_a_parameters_memory_does_so_in_another_process(
    make: Callable[[torch.nn.Module], Any], before: str | None
) -> None:
    source: dict[str, Any] = {"model": model(), "held": None}
    target: dict[str, Any] = {"model": model(), "held": None}
    source["held"] = make(source["model"])
    if before is not None:
        target["held"] = make(target["model"]) if before == "its own" else source["held"].copy()
    kept = target["held"]
    carry(source, target)
    assert target["held"] is kept or before != "its own"
    with torch.no_grad():
        for tensor in [*target["model"].parameters(), *target["model"].buffers()]:
            tensor += 1
    assert (target["held"] == make(target["model"])).all()
    assert np.shares_memory(target["held"], make(target["model"]))


def test_an_array_that_shares_a_parameters_memory_is_not_written_to_when_a_step_is_taken_back() -> None:
    namespace: dict[str, Any] = {"model": model()}
    namespace["held"] = namespace["model"][0].bias.detach().numpy()
    state = take(namespace)
    with torch.no_grad():
        namespace["model"][0].bias.add_(1)
    wanted = namespace["model"][0].bias.detach().clone()
    for node in state.nodes:
        undo.undo_node(node)
    assert torch.equal(namespace["model"][0].bias, wanted)


def test_a_large_array_of_a_tensor_that_is_no_parameter_is_named_and_has_no_node() -> None:
    held = torch.zeros(1 << 15).numpy()
    state = take({"held": held})
    assert [name for name in state.unknown if name.startswith("script.held ")]
    assert id(held) not in state.index


def test_an_array_between_two_elements_of_a_parameter_is_no_alias_of_it() -> None:
    namespace: dict[str, Any] = {"model": model()}
    whole = namespace["model"][0].bias.detach().numpy()
    namespace["held"] = whole.view(np.uint8)[1:41].view(np.float32)
    state = take(namespace)
    content = state.nodes[state.index[id(namespace["held"])]].content
    assert isinstance(content, np.ndarray)
    assert content.tobytes() == namespace["held"].tobytes()


def test_an_alias_is_no_device_state_of_its_own() -> None:
    source = {"model": model()}
    plain = device.whole(take(source), [source["model"]]).keys()
    source["held"] = source["model"].state_dict()  # type: ignore[assignment]  # a dict of tensors
    assert device.whole(take(source), [source["model"]]).keys() == plain


def test_memory_that_a_parameter_is_given_between_two_walks_is_its_own() -> None:
    source: dict[str, Any] = {"model": model(), "held": {}}
    trees = ModuleTrees()
    take(source, trees)
    source["held"] = {"w": source["model"][0].weight.detach().clone()}
    source["model"][0].weight.data = source["held"]["w"]
    target: dict[str, Any] = {"model": model(), "held": {}}
    carry(source, target, trees)
    assert target["held"]["w"].data_ptr() == target["model"][0].weight.data_ptr()


def test_an_optimizers_state_under_another_name_has_all_of_its_entries() -> None:
    """Its content comes with the optimizer's own; an optimizer that finds some entries looks for the others."""
    source, target = ({"model": model(), "slow": {}} for _ in range(2))
    for namespace in (source, target):
        namespace["optimizer"] = optimizer = torch.optim.Adam(namespace["model"].parameters())  # type: ignore[attr-defined]  # a module
        namespace["fast"] = optimizer.state  # type: ignore[assignment]  # a dict of its own
    source["model"](torch.rand(4, 64)).sum().backward()  # type: ignore[operator]  # a module
    source["optimizer"].step()  # type: ignore[attr-defined]  # an optimizer
    carry(source, target)
    target["optimizer"].step()  # type: ignore[attr-defined]  # an optimizer
    for entries in target["fast"].values():
        assert entries.keys() == {"step", "exp_avg", "exp_avg_sq"}


def test_parameters_are_looked_at_once_for_all_views_of_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    source: dict[str, Any] = {"model": model(), "held": []}
    trees = ModuleTrees()
    take(source, trees)
    looks: list[None] = []
    plain = aliases._addresses
    monkeypatch.setattr(aliases, "_addresses", lambda trees: looks.append(None) or plain(trees))
    source["held"] = [*torch.rand(100, 8)]
    take(source, trees)
    assert len(looks) == 1


@pytest.mark.parametrize("size", [8, 256])
def test_a_tensor_of_an_optimizers_state_under_another_name_is_one_object(size: int) -> None:
    """Training that keeps a moment reads what the optimizer goes on to write."""
    source, target = ({"model": torch.nn.Linear(size, size), "held": []} for _ in range(2))
    for namespace in (source, target):
        namespace["optimizer"] = torch.optim.Adam(namespace["model"].parameters())  # type: ignore[attr-defined, assignment]  # a module
    weight = source["model"].weight  # type: ignore[attr-defined]  # a module
    source["model"](torch.rand(4, size)).sum().backward()  # type: ignore[operator]  # a module
    source["optimizer"].step()  # type: ignore[attr-defined]  # an optimizer
    source["held"] = [source["optimizer"].state[weight]["exp_avg"]]  # type: ignore[attr-defined]  # an optimizer
    carry(source, target)
    entries = target["optimizer"].state[target["model"].weight]  # type: ignore[attr-defined]  # an optimizer, a module
    assert target["held"][0] is entries["exp_avg"]  # type: ignore[index]  # a list
    assert [*entries] == ["step", "exp_avg", "exp_avg_sq"], "an optimizer that finds some of them looks for all"


def test_a_tensor_that_an_optimizer_has_had_is_state_of_its_own() -> None:
    trees = ModuleTrees()
    source: dict[str, Any] = {"model": torch.nn.Linear(256, 256)}
    source["optimizer"] = optimizer = torch.optim.SGD(source["model"].parameters(), momentum=0.9)
    values = optimizer.state[source["model"].weight]
    values["momentum_buffer"] = source["held"] = torch.rand(256, 256)
    assert not take(source, trees).large
    values["momentum_buffer"] = torch.rand(256, 256)
    assert [*take(source, trees).large.values()] == [source["held"]]
    source["held"] = values["momentum_buffer"]
    assert [*take(source, trees).large.values()] == [source["held"]], "the next update may leave it alone, too"


def test_a_copy_is_state_of_its_own() -> None:
    source = {"model": model(), "held": {}}
    source["held"] = {"w": source["model"][0].weight.detach().clone()}  # type: ignore[index]  # a Sequential
    assert any(path.startswith("value.") for path in device.whole(take(source), [source["model"]]))


def test_a_tensor_that_cannot_share_the_memory_here_is_refused() -> None:
    source: dict[str, Any] = {"model": model(), "held": {}}
    with torch.inference_mode():
        target: dict[str, Any] = {"model": model(), "held": {"w": torch.zeros(1024, 64)}}
    source["held"] = {"w": source["model"][0].weight.detach()}
    with pytest.raises(StateMismatchError, match=r"shares other memory than that of 0\.weight"):
        carry(source, target)


@pytest.mark.parametrize("size", [8, 1 << 18])
def test_what_shared_a_buffers_memory_in_a_new_process_is_not_written_through(size: int) -> None:
    """A new process is put where an epoch begins, and from there to a later step, at which another buffer is bound."""
    source, target = ({"model": torch.nn.Module(), "held": None} for _ in range(2))
    for namespace in (source, target):
        namespace["model"].register_buffer("center", torch.zeros(size))  # type: ignore[union-attr]  # a module
    source["held"] = source["model"].center.detach()  # type: ignore[union-attr]  # a module
    carry(source, target)
    source["model"].center = torch.ones(size)  # type: ignore[union-attr]  # a module
    carry(source, target)
    held, center = target["held"], target["model"].center  # type: ignore[union-attr]  # a module
    assert held.data_ptr() != center.data_ptr()  # type: ignore[union-attr]  # a tensor
    if size == 8:
        assert torch.equal(held, source["held"])  # type: ignore[arg-type]  # tensors
        assert torch.equal(center, source["model"].center)  # type: ignore[arg-type, union-attr]  # tensors


@pytest.mark.parametrize("size", [8, 1 << 18])
def test_parameters_that_are_parts_of_a_flat_tensor_stay_parts_of_it(size: int) -> None:
    source, target = ({"model": torch.nn.Module(), "flat": torch.zeros(2 * size)} for _ in range(2))
    for namespace in (source, target):
        for number, part in enumerate(namespace["flat"].split(size)):  # type: ignore[operator]  # a tensor
            namespace["model"].register_parameter(f"p{number}", torch.nn.Parameter(part))  # type: ignore[union-attr]  # a module
    source["flat"].fill_(3.0)  # type: ignore[operator]  # a tensor
    carry(source, target)
    target["flat"].fill_(5.0)  # type: ignore[operator]  # a tensor
    assert [float(p.detach()[0]) for p in target["model"].parameters()] == [5.0, 5.0]  # type: ignore[union-attr]  # a module
