"""Pipeline schedules across a migration.

The first step of a schedule asks its neighbours for the form of what they send, by running the stage once. A new process has
not done that, so after a migration all do it again; what that run changes in the stage's modules is put back, since the
undisturbed run did it once only. A step without peers is left out: what it leaves behind comes from the journal and a donor.

Leans on `_PipelineSchedule` of torch.distributed.pipelining.schedules: `__init__`, `_initialize_pp_stages`, `_n_microbatches`,
`_internal_losses`, the flags and caches named below, and `step` of its two base classes with its keyword `losses`. Seen on torch
2.13.0.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.models.modules import ModuleTree
from torchrelay.shim.capture.values.device_reads import DeviceReads

_FLAGS = (
    "_stage_forward_initialized",
    "_stage_backward_initialized",
    "_stages_forward_initialized",
    "_stages_backward_initialized",
)
_CACHES = ("bwd_cache", "backward_state", "dw_runner")
"""What a stage keeps of the micro-batches that are under way, beside what it drops at the next step's start."""

_schedules: weakref.WeakSet[Any] = weakref.WeakSet()
_again: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that ask their neighbours once more than in an undisturbed run."""


class Around(Protocol):
    def __call__(self, call: Callable[[], Any], alone: Callable[[], None]) -> Any:
        """Run a step with `call`, or, without peers, with `alone`."""


def hook(module: ModuleType, around: Around) -> None:
    """Wrap the schedules, once the module is imported. Raises UnsupportedError where this torch is built differently."""
    names = ("_PipelineSchedule", "PipelineScheduleSingle", "PipelineScheduleMulti")
    missing = [name for name in names if not hasattr(module, name)]
    if not missing and not hasattr(module._PipelineSchedule, "_initialize_pp_stages"):
        missing.append("_initialize_pp_stages")
    if missing:
        raise UnsupportedError(f"pipelining of torch {torch.__version__} lacks {', '.join(missing)}")
    base = module._PipelineSchedule
    original_init = base.__init__
    original_prepare = base._initialize_pp_stages

    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        _schedules.add(self)

    @functools.wraps(original_prepare)
    def _initialize_pp_stages(self: Any, stages: Any, *args: Any, **kwargs: Any) -> Any:
        if self not in _again:
            return original_prepare(self, stages, *args, **kwargs)
        with _without_wrappers(stages), _unchanged([stage.submod for stage in stages]):
            made = original_prepare(self, stages, *args, **kwargs)
        _again.discard(self)
        return made

    base.__init__ = __init__
    base._initialize_pp_stages = _initialize_pp_stages
    for name in names[1:]:
        _wrap_step(getattr(module, name), around)


def _wrap_step(cls: Any, around: Around) -> None:
    original = cls.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, losses: list[Any] | None = None, **kwargs: Any) -> Any:
        def alone() -> None:
            if losses is not None and any(stage.is_last for stage in _stages(self)):
                losses[:] = [torch.zeros(()) for _ in range(self._n_microbatches)]

        return around(lambda: original(self, *args, losses=losses, **kwargs), alone)

    cls.step = step


def _stages(schedule: Any) -> list[Any]:
    return list(schedule._stages) if hasattr(schedule, "_stages") else [schedule._stage]


def reset(target: int) -> None:
    """Let every schedule ask its neighbours again, before the next step at boundary `target`."""
    for schedule in list(_schedules):
        for flag in _FLAGS:
            if hasattr(schedule, flag):
                setattr(schedule, flag, False)
        schedule._internal_losses.clear()
        for stage in _stages(schedule):
            stage.clear_runtime_states()
            for name in _CACHES:
                getattr(stage, name, {}).clear()
        if target > 0:
            _again.add(schedule)
        else:
            _again.discard(schedule)


@contextmanager
def _without_wrappers(stages: list[Any]) -> Iterator[None]:
    """Take data parallel wrappers off: a forward through one arms its reducer, which reduces at other moments in that step then."""
    wrapped = [stage.submod for stage in stages]
    for stage, module in zip(stages, wrapped):
        if isinstance(module, DistributedDataParallel):
            stage.submod = module.module
    try:
        yield
    finally:
        for stage, module in zip(stages, wrapped):
            stage.submod = module


@contextmanager
def _unchanged(roots: list[torch.nn.Module]) -> Iterator[None]:
    """Leave buffers, flags, attributes and gradients of the modules, and the generators, afterwards as before."""
    trees = [ModuleTree(root, DeviceReads()) for root in roots]
    contents = [tree.take() for tree in trees]
    large = [(b, b.detach().clone()) for root in roots for b in root.buffers()]
    gradients = [(p, p.grad) for root in roots for p in root.parameters()]
    generators = rng.capture()
    try:
        yield
    finally:
        rng.restore(generators)
        for tree, content in zip(trees, contents):
            tree.undo(content)
        with torch.no_grad():
            for buffer, value in large:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
