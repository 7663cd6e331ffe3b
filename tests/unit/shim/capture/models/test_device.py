from __future__ import annotations

import torch
from support.host_state import take

from torchrelay.shim.capture.models import device


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_parameters_optimizer_state_and_large_values_are_listed_by_path() -> None:
    model, optimizer = trained()
    model.register_buffer("cache", torch.zeros(100_000))
    state = take({"model": model, "optimizer": optimizer, "average": {"w": torch.zeros(50_000)}})
    found = device.catalogue(state, state.roots)
    assert [p for p in found if p.startswith("module0")] == [
        "module0.0.weight",
        "module0.0.bias",
        "module0.1.weight",
        "module0.1.bias",
        "module0.cache",
    ]
    assert [p for p in found if p.startswith("optimizer0.1.")] == [
        f"optimizer0.1.{k}" for k in optimizer.state[model[0].bias]
    ]  # type: ignore[index]  # declared wider than it is here
    assert "value.script.average.w" in found
    assert found["module0.0.weight"].data_ptr() == model[0].weight.data_ptr()  # type: ignore[index]  # declared wider than it is here


def test_tensors_without_content_are_nothing_to_compare_or_send() -> None:
    with torch.device("meta"):
        planned = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.BatchNorm1d(200))
    state = take({"model": planned, "cache": torch.empty(100_000, device="meta")})
    assert device.catalogue(state, state.roots) == {}
    planned.to_empty(device="cpu")
    assert "module0.0.weight" in device.catalogue(state, state.roots)


def test_what_a_data_parallel_wrapper_keeps_equal_is_named() -> None:
    model, optimizer = trained()
    other, others = trained()
    state = take({"model": model, "optimizer": optimizer, "other": other, "others": others})
    paths = device.kept_paths(state.roots, state, {id(p): "" for p in model.parameters()})
    assert {path.split(".")[0] for path in paths} == {"module0", "optimizer0"}
    assert set(paths) <= set(device.catalogue(state, state.roots))


def test_modules_without_tensors_do_not_count_in_the_paths_of_the_others() -> None:
    """One rank may log what another does not, and each such metric is a module."""
    plain, metric, model = take({}), torch.nn.Identity(), torch.nn.Linear(2, 2)
    assert (
        device.whole(plain, [metric, model]).keys()
        == device.whole(plain, [model]).keys()
        == {"module0.weight", "module0.bias"}
    )


def test_a_tensor_that_a_variable_of_the_step_holds_too_is_found_under_its_other_name() -> None:
    made = torch.rand(200, 200)
    state = take({"w": made, "store": {"w": made, "b": torch.rand(200, 200)}})
    (name,) = (path for path, tensor in device.whole(state, []).items() if tensor is made)
    (other,) = {"value.script.w", "value.script.store.w"} - {name}
    found = device.under_other_names(state, {other, "value.script.store.c"})
    assert found.keys() == {other}
    assert found[other][0] == name
    assert found[other][1].data_ptr() == made.data_ptr()


def test_a_small_buffer_that_an_optimizer_holds_is_given_as_it_was_at_the_boundary() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.register_buffer("gathered", torch.zeros(3))
    optimizer = torch.optim.SGD([layer.weight, layer.gathered], lr=0.1)
    state = take({"layer": layer, "optimizer": optimizer})
    layer.gathered.add_(1)
    given = device.recorded_buffers(state)
    assert {path: tensor.tolist() for path, tensor in given.items()} == {"parameter0.1": [0.0, 0.0, 0.0]}
    assert given.keys() <= device.catalogue(state, state.roots, as_taken=True).keys()
    assert layer.gathered.tolist() == [1.0, 1.0, 1.0]
