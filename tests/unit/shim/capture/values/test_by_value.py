"""Objects that are carried by value: what comes back is what another process has itself, where each process has one."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from torchrelay.shim.capture.values import by_value

MEMBERS = [
    torch.nn.attention.SDPBackend.MATH,
    torch._C._distributed_c10d.DebugLevel.OFF,
    torch._C._autograd.DeviceType.CPU,
]


@pytest.mark.parametrize("member", MEMBERS, ids=str)
def test_a_member_of_an_extensions_enum_is_the_one_that_each_process_has(member: Any) -> None:
    written = by_value.constant(member)
    assert written is not None
    assert pickle.loads(written) is member


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    outer, inner = ModuleType("renamed"), ModuleType("renamed.inner")
    monkeypatch.setitem(sys.modules, "renamed", outer)
    monkeypatch.setitem(sys.modules, "renamed.inner", inner)
    return inner


def test_an_object_is_carried_whose_class_its_package_has_under_another_name(package: ModuleType) -> None:
    cls = type("Told", (), {"__module__": "renamed", "__slots__": ("value",)})
    package.Other = cls  # type: ignore[attr-defined]  # an attribute of a module that was made here
    made = cls()
    made.value = 3
    written = by_value.dumps(made)
    assert written is not None
    back = pickle.loads(written)
    assert (type(back), back.value) == (cls, 3)


def test_an_object_is_not_carried_whose_class_nobody_finds(package: ModuleType) -> None:
    cls = type("Told", (), {"__module__": "renamed"})
    assert by_value.dumps(cls()) is None


def test_an_object_is_as_written_whichever_of_its_parts_are_one_object() -> None:
    name = "".join(["ne", "ar"])
    apart = ["".join(["ne", "ar"]), name]
    written = by_value.dumps([name, name])
    assert written is not None
    assert by_value.dumps(apart) != written
    assert by_value.is_as_written(apart, written)
    assert not by_value.is_as_written([name, "far"], written)
