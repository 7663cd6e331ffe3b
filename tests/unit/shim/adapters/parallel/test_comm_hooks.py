"""Which communication hooks of `DistributedDataParallel` are carried. Seen on torch 2.13."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)

from torchrelay.shim.adapters.parallel import comm_hooks
from torchrelay.shim.script import sites

OF_A_PACKAGE = """
table, seen, number = {"a": 1}, [], 0

def of_its_arguments(state, bucket):
    return helper(bucket)

def helper(bucket):
    return (lambda: bucket)()

def of_a_table(state, bucket):
    return table["a"]

def by_a_helper(state, bucket):
    return counting(bucket)

def counting(bucket):
    seen.append(bucket)

def binding(state, bucket):
    global number
    number += 1

def around(hook):
    def inner(state, bucket):
        return hook(state, bucket)

    return inner

def numbering():
    calls = 0

    def inner(state, bucket):
        nonlocal calls
        calls += 1

    return inner
"""


def of_package() -> Any:
    module = types.ModuleType("a_package")
    exec(compile(OF_A_PACKAGE, "/somewhere/a_package.py", "exec"), module.__dict__)
    return module


def why_not(*hooks: Any) -> str:
    wrapper: Any = types.SimpleNamespace(_comm_hooks=[(hook, None) for hook in hooks])
    return comm_hooks.why_not_carried(wrapper)


@pytest.mark.parametrize(
    "hook",
    [
        powerSGD_hook.powerSGD_hook,
        powerSGD_hook.batched_powerSGD_hook,
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
        quantization_hooks.quantization_pertensor_hook,
        debugging_hooks.noop_hook,
    ],
)
def test_hooks_of_torch_that_keep_all_in_their_state_object_are_carried(hook: Any) -> None:
    assert why_not(hook) == ""


def test_so_are_those_of_packages_that_neither_change_nor_read_what_changes_in_their_module() -> None:
    package = of_package()
    assert why_not(package.of_its_arguments, package.around(package.of_its_arguments)) == ""


@pytest.mark.parametrize("name", ["of_a_table", "by_a_helper", "binding"])
def test_those_that_do_are_not(name: str) -> None:
    package = of_package()
    assert "may keep state that is not seen" in why_not(getattr(package, name))
    assert why_not(package.around(getattr(package, name)))


def test_nor_are_those_that_make_process_groups_in_a_backward() -> None:
    assert why_not(post_localSGD_hook.post_localSGD_hook)


def test_nor_are_those_that_bind_a_variable_around_them() -> None:
    assert why_not(of_package().numbering())


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def hook(self, state: Any, bucket: Any) -> None:
        self.calls += 1


def closing_over(seen: list[Any]) -> Callable[[Any, Any], None]:
    def hook(state: Any, bucket: Any) -> None:
        seen.append(bucket)

    return hook


def test_what_the_scripts_own_hooks_hold_is_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sites, "INSTRUMENTED_FILES", {__file__})
    assert why_not(closing_over([]), Counting().hook) == ""
    assert why_not(default_hooks.fp16_compress_wrapper(closing_over([])))


def test_what_those_of_packages_hold_is_not() -> None:
    assert why_not(closing_over([]))
    assert why_not(Counting().hook)
    assert why_not(torch.nn.Linear(1, 1))
