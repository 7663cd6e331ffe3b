"""Put sharded modules to where they are between two steps, after a forward or backward that was interrupted.

torch 2.13 does it by itself (`FSDPState._reset_iter_state`). Before that it is done here, on `FSDPState` (`_comm_ctx`,
`_state_ctx`, `_training_state`, `_fsdp_param_group`) and `FSDPParamGroup` (the attributes below, `_to_sharded`). Seen on torch
2.11.0 and 2.13.0.
"""

from __future__ import annotations

from typing import Any

_BY_TORCH = "_reset_iter_state"
_OF_GROUP = (
    "_all_gather_result",
    "_post_reduce_event",
    "_all_reduce_state",
    "_reshard_after_forward_event",
    "_partial_reduce_output",
)
"""What a parameter group keeps from one part of a step to the next: None in between."""
_SHARED = (
    "all_gather_state",
    "reduce_scatter_state",
    "reduce_scatter_states",
    "post_forward_order",
    "_last_post_reduce_events",
)
"""What all groups of a root keep together: None or empty in between. No version has all of it."""


def missing(state_class: Any, group_class: Any) -> str:
    """Return what this torch lacks; empty where a module can be put to idle."""
    if hasattr(state_class, _BY_TORCH):
        return ""
    return "" if hasattr(group_class, "_to_sharded") else f"{_BY_TORCH} and _to_sharded"


def groups_of(state: Any) -> list[Any]:
    """Return the parameter groups of a sharded module; torch before 2.13 has one at most."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def put_to_idle(root: Any) -> None:
    """Reset the state of a root module and of all below it. Gathers in flight are over, or broken."""
    if hasattr(root, _BY_TORCH):
        root._reset_iter_state()
        return
    if root._device.type != "cpu":
        root._device_handle.synchronize()  # no stream still uses what is let go of
    for name, value in vars(root._comm_ctx).items():
        if name in _SHARED:
            setattr(root._comm_ctx, name, type(value)() if isinstance(value, (list, dict)) else None)
    for state in root._state_ctx.all_states:
        state._modules_to_run_forward.clear()
        state._training_state = _idle_like(state._training_state)
        for group in groups_of(state):
            _reset(group)
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False


def _reset(group: Any) -> None:
    for name in _OF_GROUP:
        setattr(group, name, None)
    group._post_forward_indices.clear()
    group._training_state = _idle_like(group._training_state)
    group._to_sharded()


def _idle_like(state: Any) -> Any:
    return type(state).IDLE
