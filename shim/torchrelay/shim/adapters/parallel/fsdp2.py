"""Put modules that fully_shard has sharded to idle in a migration.

A forward or backward that was interrupted leaves parameter groups unsharded and gathers half done. A rank that is put back so skips
all-gathers that a new process makes: gloo then ends the process over sizes that differ, or parameters are mixed up where the sizes
agree. So every rank puts its sharded modules to idle before it exchanges its communicators.

Leans on `FSDPState` (`init`, `_is_root`), `FSDPParamGroup` (`_all_gather_result`, `post_backward`, `fsdp_params`), `FSDPParam`
(`sharded_param`, `_unsharded_param`, `unsharded_accumulated_grad`, and `_module_info` with `module`, `param_name`,
`shared_modules`, `shared_param_names`), and on what `fsdp2_idle` leans on. Seen on torch 2.11.0 and 2.13.0.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from torchrelay.shim.adapters.parallel.fsdp2_idle import groups_of, missing, put_to_idle

GROUP_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

_states: weakref.WeakSet[Any] = weakref.WeakSet()


def hook(module: ModuleType, unsupported: Callable[[str], None]) -> None:
    """Put a hook on FSDPState. To be called once its module is imported.

    `unsupported` is told why a module that the script shards cannot be migrated with this torch; a script that shards none need not
    know.
    """
    state_class = module.FSDPState
    lacking = missing(state_class, module.FSDPParamGroup)
    original = state_class.init

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _states.add(self)
        if lacking:
            unsupported(f"fully_shard of torch {torch.__version__} lacks {lacking}")

    state_class.init = init


def in_use() -> bool:
    return bool(_states)


def reset() -> None:
    """Put every sharded module to where it is between two steps. The gradients of its shards stay: the caller has to drop them."""
    for state in list(_states):
        for group in groups_of(state):
            _forget_gather(group)
            for parameter in group.fsdp_params:
                _forget_gradient(parameter)
    for state in list(_states):
        if state._is_root:
            put_to_idle(state)


def has_unreduced() -> bool:
    """Return whether some gradient is not reduced yet.

    That is so after a backward without `set_requires_gradient_sync`, and within a backward.
    """
    return any(
        parameter.unsharded_accumulated_grad is not None
        or getattr(getattr(parameter, "_unsharded_param", None), "grad", None) is not None
        for state in list(_states)
        for parameter in _parameters(state)
    )


def _forget_gradient(parameter: Any) -> None:
    """Drop a gradient that its group had not reduced yet. Torch's own reset leaves it, and the next backward would add to it."""
    if hasattr(parameter, "_unsharded_param"):
        parameter._unsharded_param.grad = None
    parameter.unsharded_accumulated_grad = None


def _forget_gather(group: Any) -> None:
    result = group._all_gather_result
    work = getattr(result, "all_gather_work", None)
    if work is None:
        return
    try:
        work.wait()
    except RuntimeError:
        group._all_gather_result = None  # it was in flight when the communicator broke


def sharded_parameters(modules: Iterable[torch.nn.Module]) -> dict[int, torch.Tensor]:
    """Return id of a parameter that is gathered at the moment -> this rank's shard of it, for the modules of a tree."""
    if not _states:
        return {}
    wanted = set(map(id, modules))
    return {
        id(parameter._unsharded_param): parameter.sharded_param
        for state in list(_states)
        if any(id(module) in wanted for module in state._modules)
        for parameter in _parameters(state)
        if hasattr(parameter, "_unsharded_param")
    }


def shard_of(bound: Any) -> Any:
    """Return this rank's shard of a parameter that is gathered at the moment; anything else as it is."""
    of_all = (parameter for state in list(_states) for parameter in _parameters(state))
    return next((p.sharded_param for p in of_all if getattr(p, "_unsharded_param", None) is bound), bound)


def _parameters(state: Any) -> Iterator[Any]:
    return (parameter for group in groups_of(state) for parameter in group.fsdp_params)


def managed_names(modules: Iterable[torch.nn.Module]) -> set[tuple[int, str]]:
    """Return (id of a module, name of a parameter) for parameters that fully_shard exchanges with gathered ones and back."""
    if not _states:
        return set()
    wanted = set(map(id, modules))
    infos = [parameter._module_info for state in list(_states) for parameter in _parameters(state)]
    found = {(id(info.module), info.param_name) for info in infos}
    for info in infos:
        found |= {(id(m), name) for m, name in zip(info.shared_modules, info.shared_param_names)}
    return {entry for entry in found if entry[0] in wanted}


@contextmanager
def after_each_group(call: Callable[[], None]) -> Iterator[None]:
    """Let `call` run, in a backward, whenever the gradients of a parameter group have been reduced."""
    module = sys.modules.get(GROUP_MODULE)
    if module is None:
        yield
        return
    group_class: Any = module.FSDPParamGroup
    original = group_class.post_backward

    @functools.wraps(original)
    def post_backward(self: Any, *args: Any) -> None:
        original(self, *args)
        call()

    group_class.post_backward = post_backward
    try:
        yield
    finally:
        group_class.post_backward = original
