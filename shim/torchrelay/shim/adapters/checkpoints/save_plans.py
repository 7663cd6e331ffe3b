"""Renew the plans of checkpoints that are kept from one save to the next (`DefaultSavePlanner(enable_plan_caching=True)`).

A rank whose plan is unchanged sends none, and is sent none: each rank relies on the plans that the others have kept. A new rank has
kept nothing. So from its first save on all ranks have to begin anew. The plans are kept by `_cached_plans_key`, which is exchanged
in `set_up_planner`, in dicts of the class `SavePlanner`. Seen on torch 2.13.0; a planner without that attribute keeps nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchrelay.shim.script.guard import Guard

_KEY = "_cached_plans_key"
_KEPT = ("_cached_save_plan", "_cached_final_save_plan", "_cached_all_plans", "_cached_global_plan", "_cached_metadata")


def install(module: ModuleType, era: Callable[[], str], guard: Guard) -> None:
    """Keep plans only within an era. `era()` returns its name, the same one on all ranks."""
    planner: Any = getattr(module, "DefaultSavePlanner", None)
    original = getattr(planner, "set_up_planner", None)
    if original is None:
        return  # it keeps nothing that is known of

    def set_up_planner(plain: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(self, _KEY):
            key = f"{type(self).__name__}@{era()}"
            setattr(self, _KEY, key)
            _forget(self, type(self).__name__, key)
        return plain(self, *args, **kwargs)

    planner.set_up_planner = functools.wraps(original)(guard.entry(original, set_up_planner))


def _forget(planner: Any, name: str, key: str) -> None:
    """Forget the plans that were kept in other eras."""
    for kept in (getattr(planner, attribute, {}) for attribute in _KEPT):
        for other in [k for k in kept if k.startswith(f"{name}@") and k != key]:
            del kept[other]
