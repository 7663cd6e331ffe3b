"""Functions of torch.distributed under names that others have given them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torchrelay.shim.bootstrap import torch_hooks
from torchrelay.shim.capture.scripted_calls import ScriptedCalls
from torchrelay.shim.comm import collectives, point_to_point
from torchrelay.shim.comm.functions import replace
from torchrelay.shim.observe.device_holds import DeviceHolds
from torchrelay.shim.script.guard import Guard


@pytest.fixture
def torch_as_it_is(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of torch's that has such functions under names of its own; all without what tests before have put in their place."""
    utilities = importlib.import_module("torch.distributed.tensor._collective_utils")
    names = (*collectives.FUNCTIONS, *point_to_point.FUNCTIONS, "init_process_group", "new_group")
    plain = {name: inspect.unwrap(getattr(c10d, name)) for name in names if hasattr(c10d, name)}
    for module in (c10d, dist, utilities, importlib.import_module("torch.distributed.device_mesh")):
        for name in names:
            if name in plain and hasattr(module, name):
                monkeypatch.setattr(module, name, plain[name])
    return utilities


def test_modules_of_torch_that_were_imported_before_get_it_too(torch_as_it_is: Any) -> None:
    replace(Guard(lambda: None), "scatter", lambda plain, *args: ("ours", args))
    assert torch_as_it_is.scatter(3) == dist.scatter(3) == c10d.scatter(3) == ("ours", (3,))


def test_a_function_that_a_script_has_imported_before_there_is_an_engine_is_seen_once_there_is_one(
    torch_as_it_is: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_hooks.optimizers, "register_optimizer_step_pre_hook", lambda hook: None)
    monkeypatch.setattr(torch_hooks.optimizers, "register_optimizer_step_post_hook", lambda hook: None)
    monkeypatch.setattr(torch_hooks.torch.autograd, "backward", torch_hooks.torch.autograd.backward)
    monkeypatch.setattr(torch_hooks, "_watch_device", lambda runtime: None)
    runtime: Any = SimpleNamespace(engine=None, guard=Guard(lambda: None), device_holds=DeviceHolds())
    torch_hooks.install(runtime, SimpleNamespace(init_process_group=None, new_group=None), ScriptedCalls())
    from torch.distributed import all_reduce

    with pytest.raises(TypeError, match="Expected parameter"):
        all_reduce(None)
    runtime.engine = SimpleNamespace(communications={"all_reduce": lambda plain, *args: "seen"})
    assert all_reduce(None) == "seen"
