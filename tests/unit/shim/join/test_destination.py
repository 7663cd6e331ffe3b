from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.rng import byte_tensor
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.gradients.gradient_record import GradientRecord
from torchrelay.shim.join.destination import Destination
from torchrelay.shim.journal import payload
from torchrelay.shim.replicas.own_tensor_copies import OwnCopy
from torchrelay.shim.transfer import TensorInfo


def trained(parts: Sequence[str]) -> tuple[torch.nn.ModuleDict, torch.optim.Optimizer, HostState]:
    """Each step uses one part of the model, so that parameters have optimizer state in the order of their first use."""
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("head", "body", "tail")})
    optimizer = torch.optim.AdamW(model.parameters())
    for name in parts:
        optimizer.zero_grad()
        model[name](torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return model, optimizer, take({"model": model, "optimizer": optimizer})


def in_order(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for parameter in optimizer.state]


def test_optimizer_state_is_in_the_order_in_which_the_donor_has_it() -> None:
    donor, donors, state = trained(["tail", "head", "body"])
    tensors = device.whole(state, state.roots)
    infos = [TensorInfo(path, t.dtype, tuple(t.shape), t.numel() * t.element_size()) for path, t in tensors.items()]
    model, optimizer, own = trained(
        ["body"]
    )  # a step that the joiner did by itself, with gradients for a part of the model
    Destination(own, (), {}).place(infos)
    assert in_order(model, optimizer) == in_order(donor, donors)
    assert in_order(model, optimizer)[0] == "tail.weight"


def test_optimizer_state_that_the_donor_alone_has_is_left_to_it() -> None:
    _, _, state = trained(["tail", "head"])
    tensors = device.whole(state, state.roots)
    infos = [TensorInfo(path, t.dtype, tuple(t.shape), t.numel() * t.element_size()) for path, t in tensors.items()]
    model, optimizer, own = trained([])
    for parameter in model.parameters():
        optimizer.state[parameter]["flag"] = True  # as some optimizers are built
    lacking = {path for path in tensors if path.startswith(("optimizer0.4.", "optimizer0.5."))}
    destination = Destination(own, (), {}, lacking=lacking)
    for tried in (destination, destination.again()):
        assert tried.place(infos).keys() == tensors.keys()
        assert in_order(model, optimizer) == [name for name, _ in model.named_parameters()]
        assert {len(optimizer.state[p]) for p in model["head"].parameters()} == {4}
        assert {len(optimizer.state[p]) for p in model["tail"].parameters()} == {1}


def test_a_model_that_the_donor_alone_has_is_left_to_it() -> None:
    donor = take({"model": torch.nn.Linear(2, 2), "with_average": torch.nn.Linear(3, 3)})
    tensors = device.whole(donor, donor.roots)
    infos = [TensorInfo(path, t.dtype, tuple(t.shape), t.numel() * t.element_size()) for path, t in tensors.items()]
    own = torch.nn.Linear(2, 2)
    found = Destination(take({"model": own}), (), {}).place(infos)
    assert {path for path in found if path.startswith("module1.")} == {"module1.weight", "module1.bias"}
    assert found["module0.weight"].data_ptr() == own.weight.data_ptr()
    stranger = TensorInfo("module0.another", torch.float32, (1,), 4)
    with pytest.raises(StateMismatchError, match=r"no tensor module0\.another"):
        Destination(take({"model": own}), (), {}).place([stranger])


def test_what_a_donor_has_bound_anew_between_two_loops_is_received_as_it_was() -> None:
    old, new, own = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3), torch.nn.Linear(2, 2)
    before = take({"model": old})
    tensors = {f"{device.BEFORE}{path}": t for path, t in device.catalogue(before, before.roots).items()}
    now = take({"model": new})
    tensors |= device.catalogue(now, now.roots)
    infos = [TensorInfo(path, t.dtype, tuple(t.shape), t.numel() * t.element_size()) for path, t in tensors.items()]
    behind = Destination(take({"model": own}), (), {}, behind=True)
    found = behind.place(infos)
    assert found.keys() == tensors.keys()
    assert found["before.module0.weight"].data_ptr() == own.weight.data_ptr()
    assert found["module0.weight"].data_ptr() != own.weight.data_ptr()
    next_own = torch.nn.Linear(3, 3)
    found = behind.again(take({"model": next_own})).place(infos)
    assert found["module0.weight"].data_ptr() == next_own.weight.data_ptr()


def test_gradients_of_the_update_come_into_those_that_this_process_has() -> None:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    model.bias.grad = None  # this process's step has not come by it
    destination = Destination(take({"model": model}), (), {})
    own = device.catalogue(take({"model": model}), [model])
    held = {f"{device.UPDATED}{device.GRADIENT}{path}": t for path, t in own.items()}
    for path, tensor in destination.place([_info(path, t) for path, t in {**own, **held}.items()]).items():
        if path.startswith(device.UPDATED):
            tensor.fill_(7.0)
    assert destination.take_updated_gradients() == {"gradient.module0.weight"}
    assert model.weight.grad is not None
    assert model.weight.grad.eq(7).all()
    assert model.bias.grad is None


def test_nothing_of_a_donor_whose_connection_broke_counts_where_the_next_one_does_not_have_it() -> None:
    """It may have come in part, or from somebody in between: what the update has left is unpickled."""
    model = torch.nn.Linear(2, 2)
    destination = Destination(take({"model": model}), (), {})
    own = device.catalogue(take({"model": model}), [model])
    written = torch.frombuffer(bytearray(b"no record"), dtype=torch.uint8)
    more = {device.EFFECTS: written, f"{device.GRADIENT}module0.weight": torch.ones(2, 2)}
    more[f"{device.UPDATED}module0.weight"] = torch.ones(2, 2)
    more["collective.g.0.0"] = torch.ones(9)
    placed = destination.place([_info(path, t) for path, t in {**own, **more}.items()])
    for path in more:
        placed[path].fill_(65)
    destination.place([_info(path, t) for path, t in own.items()])
    before = model.weight.detach().clone()
    assert destination.effects() is None
    assert (destination.gradients, destination.results) == ({}, {})
    destination.take_updated()
    assert torch.equal(model.weight, before)


def _info(path: str, tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(path, tensor.dtype, tuple(tensor.shape), tensor.numel() * tensor.element_size())


def infos_of(tensors: Mapping[str, torch.Tensor]) -> list[TensorInfo]:
    return [TensorInfo(path, t.dtype, tuple(t.shape), t.numel() * t.element_size()) for path, t in tensors.items()]


def at_the_next_head(
    before: dict[str, Any], donors: dict[str, Any], own: dict[str, Any], carried: Collection[str] = ()
) -> bool:
    """A joiner that holds `before` comes to `own`, and its donor, which held the same, has come to `donors`.

    Whether any tensor is called otherwise by now.

    `carried`: paths of what the lost rank alone held.
    """
    state, now = take(before), take(donors)
    old = device.whole(state, state.roots)
    names = byte_tensor(payload.dump(device.names_before(old, device.whole(now, now.roots))))
    kept = {f"{device.BEFORE}{path}": tensor for path, tensor in old.items()}
    given = {**device.catalogue(now, now.roots), **kept, device.NAMES: names}
    joiner = Destination(state, (), {}, behind=True, carried=carried)
    joiner.place(infos_of(given))[device.NAMES].copy_(names)
    return joiner.check_names(take(own))


def test_names_of_the_next_loop_have_to_be_those_of_the_donor() -> None:
    first, second, third = (torch.nn.Linear(2, 2) for _ in range(3))
    before = {"m": first}
    both = {"a": second, "m": first}
    assert at_the_next_head(before, both, {"a": third, "m": first})
    assert not at_the_next_head(before, {"m": first, "z": second}, before)
    for own in (before, {"m": first, "z": third}, {"a": third, "b": second, "m": first}):
        with pytest.raises(StateMismatchError, match="is another tensor on the donor"):
            at_the_next_head(before, both, own)


def test_what_the_lost_rank_alone_held_has_to_be_called_as_before_and_nothing_new_may_be_made_of_it() -> None:
    first, second = (torch.nn.Linear(2, 2) for _ in range(2))
    before = {"m": first, "z": second}
    own = [f"module1.{name}" for name, _ in second.named_parameters()]
    at_the_next_head(before, dict(before), dict(before), own)
    turned = {"m": second, "z": first}
    at_the_next_head(before, dict(turned), dict(turned))
    more = {**before, "zz": torch.nn.Linear(2, 2)}
    at_the_next_head(before, dict(more), dict(more))
    for now in (turned, more):
        with pytest.raises(StateMismatchError, match="what they are called by now is not known for sure"):
            at_the_next_head(before, dict(now), dict(now), own)


def test_new_models_are_not_told_apart_by_order_where_the_donor_has_one_more() -> None:
    first, second, third = (torch.nn.Linear(2, 2) for _ in range(3))
    with pytest.raises(StateMismatchError, match="here nothing, there new"):
        at_the_next_head({"a": first}, {"a": first, "b": second, "c": third}, {"a": first, "c": torch.nn.Linear(2, 2)})


def test_a_gradient_that_the_lost_rank_has_copied_alone_is_not_the_donors() -> None:
    """Ranks may hold a parameter alike, and parts of its gradient."""
    model = torch.nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert model.weight.grad is not None
    path = f"{device.GRADIENT}module0.weight"
    destination = Destination(take({"m": model}), (), {}, copy=OwnCopy({path: torch.full((2, 2), 3.0)}))
    destination.place(infos_of({path: torch.empty(2, 2)}))[path].fill_(1.0)
    destination.put_copied_gradients()
    assert destination.put_gradients(GradientRecord()) == {"module0.bias"}
    assert model.weight.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    model.weight.grad = None
    with pytest.raises(StateMismatchError, match=r"gradient of module0\.weight"):
        destination.put_copied_gradients()


@pytest.mark.parametrize(
    ("compared", "left"), [((), {"module0.weight", "module0.bias"}), (("module0.weight",), {"module0.bias"})]
)
def test_a_gradient_that_ranks_hold_alike_is_the_donors_where_its_parameter_is_copied(
    compared: tuple[str, ...], left: set[str]
) -> None:
    model = torch.nn.Linear(2, 2)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    copy = OwnCopy({"module0.weight": torch.full((2, 2), 3.0), "module0.bias": torch.zeros(2)})
    destination = Destination(take({"m": model}), (), {}, copy=copy, compared=compared)
    given = {f"{device.GRADIENT}module0.{name}": torch.empty_like(p) for name, p in model.named_parameters()}
    for tensor in destination.place(infos_of(given)).values():
        tensor.fill_(1.0)
    assert destination.put_gradients(GradientRecord()) == left
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[float(bool(compared))] * 2] * 2


def test_what_the_step_has_made_beside_models_is_no_donors() -> None:
    made = torch.ones(20_000)
    model = torch.nn.Linear(2, 2)
    destination = Destination(take({"m": model, "made": made}), (), {}, behind=True)
    (path,) = (path for path in destination.tensors() if path.startswith(device.VALUE))
    destination.place(infos_of({f"module0.{name}": p for name, p in model.named_parameters()}))
    assert destination.tensors().keys() == {"module0.weight", "module0.bias"}
    assert destination.carried()[path] is made
