"""Parts of torch, and of what is used beside it, that scripts import when they need them: what each needs when it is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.observe.device_holds import DeviceHold
from torchrelay.shim.script import sites

if TYPE_CHECKING:
    from torchrelay.shim.runtime.runtime import Runtime

FUNCTIONAL = "torch.distributed._functional_collectives"
PIPELINING = "torch.distributed.pipelining.schedules"
SAVE_PLANS = "torch.distributed.checkpoint.default_planner"
SYMMETRIC_MEMORY = "torch.distributed._symmetric_memory"
NVSHMEM = "nvshmem.core"
ASYNC_CHECKPOINT = "torch.distributed.checkpoint._async_thread_executor"


def prepare(runtime: Runtime, module: ModuleType) -> None:
    """Prepare a part that was imported. Raises UnsupportedError, AttributeError where it is built otherwise."""
    _PREPARED[module.__name__](runtime, module)


def _functional(runtime: Runtime, module: ModuleType) -> None:
    from torchrelay.shim.comm.functional_collectives import FunctionalCollectives

    FunctionalCollectives(module, lambda: runtime.engine).install()


def _pipelining(runtime: Runtime, module: ModuleType) -> None:
    from torchrelay.shim.bootstrap import torch_hooks
    from torchrelay.shim.comm import pipelining

    pipelining.hook(module, torch_hooks.pipeline_step(runtime))


def _async_checkpoint(runtime: Runtime, module: ModuleType) -> None:
    from torchrelay.shim.adapters.checkpoints import async_checkpoint

    def begin(staged: Any, options: dict[str, Any]) -> async_checkpoint.TakenSave | None:
        engine = runtime.engine
        return engine.guard.tell(engine.saves.begin, staged, options) if engine is not None else None

    try:
        async_checkpoint.install(module, begin)
    except UnsupportedError as e:
        sites.LEFT_ALONE[str(module.__file__)] = str(e)


def _save_plans(runtime: Runtime, module: ModuleType) -> None:
    from torchrelay.shim.adapters.checkpoints import save_plans

    save_plans.install(module, lambda: runtime.engine.saves.era() if runtime.engine is not None else "", runtime.guard)


def _symmetric_memory(runtime: Runtime, module: ModuleType) -> None:
    from torchrelay.shim.adapters import device_memory

    def opens(is_nvshmem: bool) -> None:
        runtime.device_holds.tell(DeviceHold.NVSHMEM if is_nvshmem else DeviceHold.SYMMETRIC, sys._getframe(1))

    device_memory.watch_symmetric_memory(runtime.guard, module, opens)


def _nvshmem(runtime: Runtime, module: ModuleType) -> None:
    from torchrelay.shim.adapters import device_memory

    device_memory.watch_nvshmem(
        runtime.guard, module, lambda: runtime.device_holds.tell(DeviceHold.NVSHMEM, sys._getframe(1))
    )


_PREPARED: dict[str, Callable[[Runtime, ModuleType], None]] = {
    FUNCTIONAL: _functional,
    PIPELINING: _pipelining,
    ASYNC_CHECKPOINT: _async_checkpoint,
    SAVE_PLANS: _save_plans,
    SYMMETRIC_MEMORY: _symmetric_memory,
    NVSHMEM: _nvshmem,
}
NAMES = tuple(_PREPARED)
