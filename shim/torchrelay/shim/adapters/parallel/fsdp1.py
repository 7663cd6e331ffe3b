"""Put modules of the first FSDP to where they are between two steps, after a forward or backward that was interrupted.

Such a part of a step leaves parameters gathered, gradients half reduced, and hooks that the next one would count on. A rank that
is put back so skips all-gathers that a new process makes. What stays is the shard of each parameter, and a gradient that was
reduced.

Leans on `_FSDPState` (`_handle`, `_is_root`, `training_state`, `_exec_order_data`, `_post_backward_callback_queued`,
`_unshard_event`, `compute_device`, `_device_handle`), on `FlatParamHandle` (the attributes below, `reshard`, `post_reshard`) and on
attributes of its flat parameter (`_local_shard`, `_params`, `_post_backward_hook_state`, `_saved_grad_shard`,
`_post_backward_called`). Seen on torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.parallel.wrappers import is_fsdp1

_OF_HANDLE = ("_ran_pre_backward_hook", "_needs_pre_backward_unshard", "_needs_pre_forward_unshard", "_prefetched")
"""What a handle notes from one part of a step to the next: False in between."""
_NEEDED = ("reshard", "post_reshard", "_training_state", "uses_sharded_strategy", "flat_param")


def lacks(modules: Iterable[torch.nn.Module]) -> str:
    """Return what this torch lacks for modules among these to be put to idle; empty where nothing is missing."""
    for module in modules:
        if is_fsdp1(module) and (handle := getattr(module, "_handle", None)) is not None:
            return ", ".join(name for name in _NEEDED if not hasattr(handle, name))
    return ""


def limits(roots: Iterable[torch.nn.Module]) -> list[str]:
    """Return, in words, what cannot be done for a job with these models."""
    lacking = lacks(module for root in roots for module in root.modules())
    return [f"FullyShardedDataParallel: without {lacking} a lost rank is not replaced"] if lacking else []


def reset(modules: Iterable[torch.nn.Module]) -> None:
    """Put the wrappers among these modules to idle. Gradients that were not reduced yet are dropped.

    Raises UnsupportedError where this torch lacks something.
    """
    states: list[Any] = [module for module in modules if is_fsdp1(module)]
    if not states:
        return
    if lacking := lacks(states):
        raise UnsupportedError(f"FullyShardedDataParallel of torch {torch.__version__} lacks {lacking}")
    for state in states:
        if state._is_root and state.compute_device.type != "cpu":
            state._device_handle.synchronize()  # no stream still uses what is let go of
    with torch.no_grad():
        for state in states:
            _put_to_idle(state)


def _put_to_idle(state: Any) -> None:
    state.training_state = type(state.training_state).IDLE
    state._unshard_event = None
    if state._is_root:
        state._post_backward_callback_queued = False
        order = state._exec_order_data
        order.handles_post_forward_order.clear()
        order.current_order_index = 0
    if state._handle is not None:
        _reset(state._handle)


def _reset(handle: Any) -> None:
    flat = handle.flat_param
    handle._training_state = type(handle._training_state).IDLE
    for name in _OF_HANDLE:
        setattr(handle, name, False)
    handle._post_forward_index = None
    hooked = flat.__dict__.pop("_post_backward_hook_state", None)
    if hooked is not None:
        hooked[-1].remove()
    flat.__dict__.pop("_saved_grad_shard", None)
    flat._post_backward_called = False
    if not hasattr(flat, "_local_shard"):
        return  # it was never gathered
    if handle.uses_sharded_strategy:
        for held in _low_precision(handle):
            held.untyped_storage().resize_(0)
    handle.reshard(handle.uses_sharded_strategy)
    handle.post_reshard()
    _drop_unreduced(flat)


def _low_precision(handle: Any) -> Iterator[torch.Tensor]:
    """Yield the shard in another dtype, which is there from its making to the gather."""
    if handle._uses_param_mixed_precision and getattr(handle.flat_param, "_mp_shard", None) is not None:
        yield handle.flat_param._mp_shard


def _drop_unreduced(flat: Any) -> None:
    if flat.grad is not None and flat.grad.shape != flat.shape:
        for parameter in (flat, *(flat._params or ())):
            parameter.grad = None
