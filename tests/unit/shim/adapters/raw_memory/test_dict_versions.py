"""Versions of dictionaries tell each write."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from torchrelay.shim.adapters.raw_memory import dict_versions
from torchrelay.shim.adapters.raw_memory.dict_versions import Versions
from torchrelay.shim.capture.models.modules import ModuleTree
from torchrelay.shim.capture.state.parts import Bindings
from torchrelay.shim.capture.values.device_reads import DeviceReads

needs_versions = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="CPython 3.14 keeps no versions: the content is compared"
)


@needs_versions
def test_this_python_has_versions_of_modules_that_can_be_trusted() -> None:
    assert dict_versions.OF_MODULES


def test_a_write_to_any_of_several_dictionaries_is_seen() -> None:
    spaces: list[dict[str, Any]] = [{"a": 1}, {"a": 1}, {}]
    versions = Versions(spaces, works=dict_versions.OF_MODULES)
    before = versions.take()
    assert versions.take() == before
    for space in spaces:
        space["a"] = object()
        now = versions.take()
        assert now != before or not now
        before = now


def test_where_versions_do_not_work_nothing_is_known() -> None:
    assert Versions([{"a": 1}], works=False).take() == []


def test_a_dictionary_whose_version_stays_the_same_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dict_versions, "TAG_OFFSET", 0)  # the count of references
    assert not dict_versions._of_modules()


@pytest.mark.parametrize("trusted", [True, False])
def test_bindings_hold_until_a_name_is_bound_anew(trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dict_versions, "OF_MODULES", trusted and dict_versions.OF_MODULES)
    space: dict[str, Any] = {"step": 1000, "loss": [1]}
    bindings = Bindings(space, of_module=True)
    assert bindings.still_true(space)
    space["step"] = space["step"]
    assert bindings.still_true(space)
    kept = space.pop("step")
    space["step"] = kept
    assert not bindings.still_true(space)  # the same content in another order
    bindings = Bindings(space, of_module=True)
    space["loss"] = [1]
    assert not bindings.still_true(space)
    assert not bindings.still_true(dict(space))


@pytest.mark.parametrize("trusted", [True, False])
def test_a_tree_of_modules_is_looked_at_again_after_each_write(trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrelay.shim.capture.models.modules.OF_INSTANCES", trusted and dict_versions.OF_INSTANCES)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1))
    tree = ModuleTree(model, DeviceReads())
    assert tree.is_current()
    first = tree.take()
    assert tree.is_still(first) == (trusted and dict_versions.OF_INSTANCES)
    model[1].p = 0.3
    assert not tree.is_still(first)
    assert tree.is_current()
    second = tree.take()
    assert first.values != second.values
    assert first.flags == second.flags
    model.eval()
    assert tree.is_current()
    third = tree.take()
    assert third.flags == [False, False, False]
    assert not tree.is_still(second)
    model.add_module("more", torch.nn.ReLU())
    assert not tree.is_current()


def test_content_that_was_taken_without_a_look_is_not_taken_for_the_latest() -> None:
    """A child was added since the tree was made: whoever asks later has to be told so."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    tree = ModuleTree(model, DeviceReads())
    tree.take()
    model.add_module("more", torch.nn.ReLU())
    content = tree.take()
    assert not tree.is_still(content)
    assert not tree.is_current()
