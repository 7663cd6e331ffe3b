"""Seen on torch 2.13."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.parallel import ddp, ddp_layouts


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(**options: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8) for _ in range(4)]
    return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.0003, **options)


def train(module: DistributedDataParallel) -> None:
    module(torch.ones(2, 8)).sum().backward()


def rebuilt(module: DistributedDataParallel) -> str:
    """Rebuilt in the second step, told in the third."""
    return str(module._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))


def test_the_layout_that_a_rebuild_will_make_is_known_right_after_the_first_backward() -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    layouts.built(module)
    layouts.note(0)
    assert json.loads(layouts.as_text(0)) == {"0": [[], 0]}
    train(module)
    layouts.note(1)
    ((foretold, _),) = json.loads(layouts.as_text(1)).values()
    train(module)
    train(module)
    assert [ddp_layouts._indices(bucket) for bucket in rebuilt(module).split(",")] == foretold
    assert len(foretold) > 2


def test_in_the_gate_the_layout_of_the_boundary_is_still_known() -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    layouts.built(module)
    layouts.note(0)
    train(module)
    layouts.note(1)
    assert json.loads(layouts.as_text(0)) == {"0": [[], 0]}
    assert json.loads(layouts.as_text(1)) != {"0": [[], 0]}


def test_a_backward_without_synchronisation_says_nothing_about_the_order() -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    layouts.built(module)
    with module.no_sync():
        train(module)
    layouts.note(1)
    assert json.loads(layouts.as_text(1)) == {"0": [[], 0]}


def test_a_new_reducer_has_the_wanted_layout_and_trains_on() -> None:
    module = wrapped()
    for _ in range(3):
        train(module)
    wanted = [ddp_layouts._indices(bucket) for bucket in rebuilt(module).split(",")]
    assert len(wanted) > 2
    joiner = wrapped()
    layouts = ddp_layouts.Layouts()
    layouts.built(joiner)
    ddp_layouts.prepare_joiner(layouts.wrappers, json.dumps({0: [wanted, 0]}), 5)
    train(joiner)
    train(joiner)
    data = joiner._get_ddp_logging_data()
    assert data["num_buckets_reduced"] == len(wanted)
    assert data["bucket_sizes"] == module._get_ddp_logging_data()["rebuilt_bucket_sizes"]


@pytest.mark.parametrize("frozen", [8, 3])
def test_parameters_that_are_frozen_at_the_moment_are_the_reducers_all_the_same(frozen: int) -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    ddp.note_built(module)
    layouts.built(module)
    train(module)
    for parameter in [*module.parameters()][:frozen]:
        parameter.requires_grad_(False)
    layouts.note(1)
    ((foretold, _),) = json.loads(layouts.as_text(1)).values()
    ddp.new_reducer(module, foretold)
    assert [p.requires_grad for p in module.parameters()] == [False] * frozen + [True] * (8 - frozen)
    module.requires_grad_(True)
    for _ in range(3):
        train(module)
    assert sorted(index for bucket in foretold for index in bucket) == [*range(8)]
    assert [ddp_layouts._indices(bucket) for bucket in rebuilt(module).split(",")] == foretold


def test_a_parameter_that_was_frozen_when_the_wrapper_was_built_is_none_of_the_reducers() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(2)))
    model[0].requires_grad_(False)
    module = DistributedDataParallel(model)
    ddp.note_built(module)
    model.requires_grad_(True)
    with ddp.as_built(module):
        assert len(module._build_params_for_reducer()[0]) == 2
    assert all(p.requires_grad for p in model.parameters())


def test_layouts_survive_a_migration_until_the_reducers_are_rebuilt() -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    layouts.built(module)
    for _ in range(3):
        train(module)
    layouts.note(3)
    before = layouts.as_text(3)
    layouts.migrated(3)
    assert layouts.as_text(3) == before
    assert json.loads(before) != {"0": [[], 0]}


def test_a_new_reducer_rebuilds_its_buckets_at_the_gate_behind_its_first_backward() -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    layouts.built(module)
    train(module)
    layouts.note(1)
    layouts.prepare_survivor(1)
    layouts.migrated(1)
    train(module)
    layouts.rebuild()
    assert not module.reducer._rebuild_buckets(), "the gate has left that to the next forward"


def test_a_reducer_whose_rebuild_has_failed_is_not_asked_until_it_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    layouts.built(module)
    train(module)
    layouts.note(1)
    layouts.migrated(1)
    asked: list[int] = []

    def lost() -> bool:
        raise RuntimeError("Connection closed by peer")

    with monkeypatch.context() as broken:
        broken.setattr(module, "reducer", SimpleNamespace(_rebuild_buckets=lost))
        broken.setattr(module, "_get_ddp_logging_data", lambda: asked.append(1) or {})
        layouts.rebuild()
        layouts.note(2)
        assert not asked
        layouts.migrated(2)
        layouts.note(3)
        assert asked


def test_a_joiner_can_tell_the_layout_that_it_was_given() -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    layouts.built(module)
    told = {"0": [[[7, 6], [5, 4, 3, 2, 1, 0]], 0]}
    layouts.adopt(5, ddp_layouts.prepare_joiner(layouts.wrappers, json.dumps(told), 5))
    assert json.loads(layouts.as_text(5)) == told
    layouts.note(5)
    assert json.loads(layouts.as_text(5)) == told


def test_a_joiner_gives_each_wrapper_its_own_layout_though_it_has_not_built_the_earlier_ones() -> None:
    survivor, joiner = ddp_layouts.Layouts(), ddp_layouts.Layouts()
    first, second, own = wrapped(), wrapped(), wrapped()
    joiner.wrappers.built = 1  # as the recorded head of the loop has it, in which they are built
    for layouts, module in ((survivor, first), (survivor, second), (joiner, own)):
        layouts.built(module)
    for _ in range(3):
        train(first)
    survivor.note(3)
    given = ddp_layouts.prepare_joiner(joiner.wrappers, survivor.as_text(3), 3)
    joiner.adopt(3, given)
    assert json.loads(joiner.as_text(3)) == {"1": [[], 0]}
    assert given[0].layout != []


def test_a_wrapper_that_nobody_holds_is_let_go_of() -> None:
    layouts = ddp_layouts.Layouts()
    layouts.built(wrapped())
    kept = wrapped()
    layouts.built(kept)
    train(kept)
    gc.collect()
    layouts.note(1)
    assert [*layouts.wrappers] == [kept]
    assert json.loads(layouts.as_text(1)).keys() == {"1"}


@pytest.mark.parametrize("steps", [1, 2])
def test_a_survivors_reducer_is_ready_after_an_interrupted_backward(steps: int) -> None:
    module, layouts = wrapped(), ddp_layouts.Layouts()
    layouts.built(module)
    for number in range(steps):
        layouts.note(number)
        train(module)
    layouts.note(steps)

    def interrupt(_: torch.Tensor) -> None:
        raise RuntimeError("lost")

    parameter = module.module[1].weight
    handle = parameter.register_hook(interrupt)
    with pytest.raises(RuntimeError, match="lost"):
        train(module)
    handle.remove()
    layouts.prepare_survivor(steps)
    module.zero_grad()
    train(module)
    assert all(p.grad is not None for p in module.parameters())


def test_a_survivor_that_has_rebuilt_its_buckets_since_the_boundary_goes_back_to_the_layout_of_then() -> None:
    module, layouts, fresh = wrapped(), ddp_layouts.Layouts(), wrapped()
    layouts.built(module)
    layouts.note(0)
    for _ in range(3):  # all in the first step
        train(module)
    assert _shapes(module) != _shapes(fresh)
    layouts.prepare_survivor(0)
    assert _shapes(module) == _shapes(fresh)
    train(module)
    train(module)


def _shapes(module: DistributedDataParallel) -> list[list[tuple[int, ...]]]:
    return [[tuple(p.shape) for p in bucket.parameters()] for bucket in module.reducer._get_zeros_like_grad_buckets()]


def test_wrappers_are_told_of_and_forwards_are_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__", "_pre_forward"):
        monkeypatch.setattr(DistributedDataParallel, name, getattr(DistributedDataParallel, name))
    built: list[Any] = []
    entered: list[Any] = []

    def before(module: Any, call: Callable[[], Any]) -> Any:
        entered.append(module)
        return call()

    ddp.install(built.append, before)
    module = wrapped()
    train(module)
    assert built == [module]
    assert entered == [module]


@pytest.mark.parametrize("name", ["_ddp_init_helper", "_build_params_for_reducer", "_get_ddp_logging_data"])
def test_a_torch_without_a_private_name_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ddp.check_supported()
    monkeypatch.delattr(DistributedDataParallel, name)
    with pytest.raises(UnsupportedError, match=f"lacks {name}"):
        ddp.check_supported()


def with_buffer(values: torch.Tensor, **options: Any) -> DistributedDataParallel:
    layer = torch.nn.Linear(8, 8)
    layer.register_buffer("kept", values)
    return DistributedDataParallel(layer, **options)


def test_a_forward_that_takes_positions_from_rank_0_takes_indices() -> None:
    assert ddp.Wrappers().takes_indices(with_buffer(torch.arange(4)))
    assert not ddp.Wrappers().takes_indices(with_buffer(torch.arange(4), forward_sync_buffers=False)), (
        "nothing is taken"
    )


@pytest.mark.parametrize("values", [torch.ones(4), torch.tensor(3), torch.tensor([True])])
def test_statistics_counters_and_masks_are_no_indices(values: torch.Tensor) -> None:
    assert not ddp.Wrappers().takes_indices(with_buffer(values))


def test_a_buffer_that_is_bound_anew_is_looked_at_anew() -> None:
    module, wrappers = with_buffer(torch.ones(4)), ddp.Wrappers()
    assert not wrappers.takes_indices(module)
    module.module.kept = torch.arange(4)
    module._assign_modules_buffers()  # as the wrapper does after each forward that takes buffers
    assert wrappers.takes_indices(module)


def stepped(module: DistributedDataParallel, step: Callable[[], None]) -> ddp_layouts.Layouts:
    """After a gate that follows `step`."""
    layouts = ddp_layouts.Layouts()
    ddp.install(layouts.built, lambda wrapper, call: (layouts.forward_begins(wrapper), call())[1])
    layouts.built(module)
    layouts.step_begins()
    step()
    layouts.gate_passed()
    return layouts


@pytest.mark.parametrize("static", [False, True])
def test_a_wrapper_whose_module_is_called_instead_of_it_has_averaged_nothing(
    static: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("__init__", "_pre_forward"):
        monkeypatch.setattr(DistributedDataParallel, name, getattr(DistributedDataParallel, name))
    module = wrapped(static_graph=static)

    def inside() -> None:
        module.module(torch.ones(2, 8)).sum().backward()

    def accumulated() -> None:
        with module.no_sync():
            train(module)
        train(module)

    def evaluated_then_inside() -> None:
        with torch.no_grad():
            module(torch.ones(2, 8))
        inside()

    assert stepped(module, inside).bypassed == [module]
    assert stepped(module, evaluated_then_inside).bypassed == [module]
    assert stepped(module, lambda: train(module)).bypassed == []
    assert stepped(module, accumulated).bypassed == []


def test_a_wrapper_that_another_step_went_past_is_forgotten_with_the_next_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__", "_pre_forward"):
        monkeypatch.setattr(DistributedDataParallel, name, getattr(DistributedDataParallel, name))
    module = wrapped()
    layouts = stepped(module, lambda: module.module(torch.ones(2, 8)).sum().backward())
    layouts.step_begins()
    assert layouts.bypassed == [module]  # until the next gate: the others may still ask for it
    layouts.forward_begins(module)
    train(module)
    layouts.gate_passed()
    assert layouts.bypassed == []


def test_a_wrapper_is_seen_to_average_nothing_also_once_its_buckets_are_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("__init__", "_pre_forward"):
        monkeypatch.setattr(DistributedDataParallel, name, getattr(DistributedDataParallel, name))
    module = wrapped()
    layouts = stepped(module, lambda: train(module))
    for boundary in (1, 2, 3):
        train(module)
        layouts.note(boundary)
    for step, bypassed in (
        (lambda: module.module(torch.ones(2, 8)).sum().backward(), [module]),
        (lambda: train(module), []),
        (lambda: module.zero_grad(set_to_none=True), []),
    ):
        layouts.step_begins()
        step()
        layouts.gate_passed()
        assert layouts.bypassed == bypassed
