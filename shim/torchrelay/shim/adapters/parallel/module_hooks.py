"""Count the hooks of modules, and remove those that were registered since a moment.

Leans on `torch.utils.hooks.RemovableHandle.next_id`, the number that the next hook of any kind gets, under which its owner keeps
it. Seen on torch 2.13.0; where it is missing, nothing is known of hooks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

NAMES = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)


def next_hook() -> int:
    return int(getattr(RemovableHandle, "next_id", 0))


def hook_counts(named: Sequence[tuple[str, torch.nn.Module]]) -> dict[tuple[str, str], int]:
    """Return how many hooks there are, by the module's path and the name of the attribute that keeps them.

    Torch's own hooks, which `fully_shard` makes in the first forward, come by themselves.
    """
    return {
        (name, kept): count
        for name, module in named
        for kept in NAMES
        if (hooks := module.__dict__.get(kept)) and (count := sum(not _is_torchs(hook) for hook in hooks.values()))
    }


def _is_torchs(hook: Any) -> bool:
    hook = getattr(hook, "hook", hook)
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(getattr(hook, "__func__", hook), "__module__", "")).startswith("torch.")


def remove_hooks_since(modules: Iterable[torch.nn.Module], number: int) -> None:
    """Remove the modules' hooks that were registered with this number or a later one."""
    for module in modules:
        for name in NAMES:
            hooks = module.__dict__.get(name) or {}
            for key in [key for key in hooks if isinstance(key, int) and key >= number]:
                del hooks[key]
