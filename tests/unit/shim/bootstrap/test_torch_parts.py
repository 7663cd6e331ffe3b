from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.failing_guard import FAILING

from torchrelay.shim.backends import registry
from torchrelay.shim.bootstrap import torch_hooks, torch_parts
from torchrelay.shim.observe.device_holds import DeviceHolds


def kinds(runtime: Any) -> list[str]:
    return [gap.kind for gap in runtime.device_holds.gaps()]


@pytest.fixture
def runtime() -> Any:
    return SimpleNamespace(guard=FAILING, device_holds=DeviceHolds())


@pytest.mark.parametrize(("backend", "kind"), [("CUDA", "symmetric-memory"), ("NVSHMEM", "nvshmem")])
def test_symmetric_memory_is_a_gap_once_the_script_makes_some(backend: str, kind: str, runtime: Any) -> None:
    module: Any = ModuleType(torch_parts.SYMMETRIC_MEMORY)
    module.empty, module.get_backend = lambda *size: "memory", lambda device: backend
    torch_parts.prepare(runtime, module)
    assert kinds(runtime) == []
    assert module.empty(4) == "memory"
    assert kinds(runtime) == [kind]


def test_nvshmem_is_a_gap_once_the_script_begins_with_it(runtime: Any) -> None:
    module: Any = ModuleType(torch_parts.NVSHMEM)
    module.init = lambda: None
    torch_parts.prepare(runtime, module)
    module.init()
    assert kinds(runtime) == ["nvshmem"]


class Graph:
    """Plays torch.cuda.CUDAGraph."""

    def capture_begin(self) -> None: ...

    def capture_end(self) -> None: ...


class Storage:
    """Plays torch.UntypedStorage."""

    def _share_cuda_(self) -> str:
        return "handle"


@pytest.fixture
def called(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As many as it has entries: collectives that the libraries have counted."""
    counted: list[str] = []
    monkeypatch.setattr(registry, "called_on_devices", lambda: len(counted))
    for owner, name, stand_in in ((torch.cuda, "CUDAGraph", Graph), (torch, "UntypedStorage", Storage)):
        monkeypatch.setattr(owner, name, stand_in)
        for method in [method for method in vars(stand_in) if not method.startswith("__")]:
            monkeypatch.setattr(stand_in, method, vars(stand_in)[method])
    torch_hooks._watch_device(runtime)
    return counted


def test_a_graph_is_a_gap_if_a_library_has_counted_collectives_while_it_was_captured(
    called: list[str], runtime: Any
) -> None:
    called.append("before")
    for meanwhile in ([], ["all_reduce"]):
        assert kinds(runtime) == []
        Graph().capture_begin()
        called += meanwhile
        Graph().capture_end()
    assert kinds(runtime) == ["device-graph"]


def test_memory_that_is_shared_with_another_process_is_a_gap(called: list[str], runtime: Any) -> None:
    Storage()._share_cuda_()
    assert kinds(runtime) == ["shared-device-memory"]
