"""No device is there: stand-ins play what torch calls on one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.failing_guard import FAILING

from torchrelay.shim.adapters import device_memory


class Graph:
    """Plays torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.story: list[str] = []

    def capture_begin(self, pool: Any = None) -> None:
        self.story.append("begins")

    def capture_end(self) -> None:
        self.story.append("ends")


def test_a_capture_is_told_where_it_begins_and_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    for name in ("capture_begin", "capture_end"):
        monkeypatch.setattr(Graph, name, getattr(Graph, name))
    graph = Graph()
    device_memory.watch_graphs(FAILING, lambda: graph.story.append("told"), lambda: graph.story.append("told again"))
    graph.capture_begin(pool=None)
    graph.capture_end()
    assert graph.story == ["begins", "told", "ends", "told again"]


def test_the_names_that_are_watched_are_torch_s() -> None:
    import torch.distributed._symmetric_memory as symmetric

    assert all(hasattr(torch.cuda.CUDAGraph, name) for name in ("capture_begin", "capture_end"))
    assert all(hasattr(torch.UntypedStorage, name) for name in (device_memory._SHARES, device_memory._TAKES))
    assert all(hasattr(symmetric, name) for name in (*device_memory._OPENS, "get_backend"))


class Storage:
    """Plays torch.UntypedStorage."""

    def _share_cuda_(self) -> str:
        return "handle"

    @staticmethod
    def _new_shared_cuda(handle: str) -> str:
        return f"opened {handle}"


@pytest.mark.parametrize("use", [lambda: Storage()._share_cuda_(), lambda: Storage._new_shared_cuda("handle")])
def test_memory_that_is_given_to_another_process_or_taken_from_one_is_told(
    use: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "UntypedStorage", Storage)
    expected, told = use(), []
    for name in ("_share_cuda_", "_new_shared_cuda"):
        monkeypatch.setattr(Storage, name, vars(Storage)[name])
    device_memory.watch_shared_memory(FAILING, lambda: told.append(True))
    assert use() == expected
    assert told == [True]


def symmetric(backend: Callable[[Any], str | None]) -> Any:
    return SimpleNamespace(empty=lambda *size: "memory", rendezvous=lambda *asked: "handle", get_backend=backend)


def fails(device: Any) -> str:
    raise RuntimeError("no such device")


@pytest.mark.parametrize(
    ("backend", "is_nvshmem"), [(lambda device: "CUDA", False), (lambda device: "NVSHMEM", True), (fails, False)]
)
def test_symmetric_memory_is_told_with_whose_it_is(backend: Callable[[Any], str | None], is_nvshmem: bool) -> None:
    module, told = symmetric(backend), []
    device_memory.watch_symmetric_memory(FAILING, module, told.append)
    assert (module.empty(4), module.rendezvous(1, "group")) == ("memory", "handle")
    assert told == [is_nvshmem] * 2
    assert not hasattr(module, "get_symm_mem_workspace"), "what a torch lacks is left out"


def test_nvshmem_is_told_where_a_script_begins_to_use_it() -> None:
    module, told = ModuleType("nvshmem.core"), []
    module.init = lambda **asked: "begun"  # type: ignore[attr-defined]  # a stand-in's
    device_memory.watch_nvshmem(FAILING, module, lambda: told.append(True))
    assert module.init(device=0) == "begun"
    assert told == [True]
