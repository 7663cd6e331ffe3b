"""Tell when graphs of a device are captured, and when its memory is opened to other processes.

Leans on `torch.cuda.CUDAGraph.capture_begin` and `capture_end`; on `UntypedStorage._share_cuda_` and `_new_shared_cuda`, with which
torch.multiprocessing gives and takes a tensor; on `empty`, `rendezvous`, `get_symm_mem_workspace` and `get_backend` of
torch.distributed._symmetric_memory; and on `init` of nvshmem.core. A name that is missing is left out. Read in torch 2.13.0, and
seen on no device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torchrelay.shim.script.guard import Guard

_OPENS = ("empty", "rendezvous", "get_symm_mem_workspace")
_SHARES = "_share_cuda_"
_TAKES = "_new_shared_cuda"


def watch_graphs(guard: Guard, begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Call `begins` when the capture of a graph has begun, and `ends` when one is over."""
    for name, tell in (("capture_begin", begins), ("capture_end", ends)):
        _wrap(guard, torch.cuda.CUDAGraph, name, tell)


def watch_shared_memory(guard: Guard, shares: Callable[[], None]) -> None:
    """Call `shares` when this process gives memory of its device to another one, or takes another one's."""
    _wrap(guard, torch.UntypedStorage, _SHARES, shares)
    _wrap(guard, torch.UntypedStorage, _TAKES, shares, static=True)


def watch_symmetric_memory(guard: Guard, module: ModuleType, opens: Callable[[bool], None]) -> None:
    """Call `opens` when such memory is made, with whether it is NVSHMEM's."""

    def told() -> None:
        opens(_backend(module) == "NVSHMEM")

    for name in _OPENS:
        _wrap(guard, module, name, told)


def _backend(module: ModuleType) -> str | None:
    try:
        return module.get_backend("cuda")  # type: ignore[no-any-return]  # the module is torch's
    except (AttributeError, RuntimeError):
        return None  # before torch 2.9, or where none was chosen


def watch_nvshmem(guard: Guard, module: ModuleType, begins: Callable[[], None]) -> None:
    _wrap(guard, module, "init", begins)


def _wrap(guard: Guard, owner: Any, name: str, tell: Callable[[], None], *, static: bool = False) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return

    def ours(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        guard.tell(tell)
        return result

    wrapper = functools.wraps(original)(guard.entry(original, ours))
    setattr(owner, name, staticmethod(wrapper) if static else wrapper)
