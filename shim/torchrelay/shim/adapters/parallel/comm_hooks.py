"""Register communication hooks of DistributedDataParallel again with a new reducer. Their state is the script's state.

What a hook communicates belongs to the backward, so it is neither recorded nor repeated by itself.

Leans on `DistributedDataParallel._comm_hooks` (hook and state of each), `_register_builtin_comm_hook`,
`torch.distributed._register_comm_hook` and `_register_builtin_comm_hook`, and on the names of the hooks below. Seen on torch
2.13.0.
"""

from __future__ import annotations

import dis
import functools
import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.script import sites

_MODULE = "torch.distributed.algorithms.ddp_comm_hooks."
_KNOWN = frozenset(
    {
        _MODULE + "default_hooks.allreduce_hook",
        _MODULE + "default_hooks.fp16_compress_hook",
        _MODULE + "default_hooks.bf16_compress_hook",
        _MODULE + "default_hooks.fp16_compress_wrapper.<locals>.fp16_compress_wrapper_hook",
        _MODULE + "default_hooks.bf16_compress_wrapper.<locals>.bf16_compress_wrapper_hook",
    }
)
"""Of torch, those that keep nothing, whatever they read of their module."""
_MOVES_ON = ("STORE_GLOBAL", "DELETE_GLOBAL")
_MAKES_GROUPS = frozenset({"new_group", "new_subgroups", "new_subgroups_by_enumeration"})
"""What a hook calls is part of the backward, and nobody sees which groups it makes there."""
_UNCHANGED = (Kind.PLAIN, Kind.OPAQUE, Kind.FUNCTION, Kind.CLASS)
"""Kinds of what a module may hold that nothing of a hook's state is in."""

_builtin: weakref.WeakKeyDictionary[DistributedDataParallel, Any] = weakref.WeakKeyDictionary()
"""Hooks in C++, of which nothing is left in Python."""


def missing() -> list[str]:
    """Return the names that this torch lacks."""
    found = [] if hasattr(DistributedDataParallel, "_register_builtin_comm_hook") else ["_register_builtin_comm_hook"]
    return found + [n for n in ("_register_comm_hook", "_register_builtin_comm_hook") if not hasattr(dist, n)]


def of(ddp: DistributedDataParallel) -> list[Any]:
    """Return the hooks of the wrapper that are Python functions."""
    return [hook for hook, _ in getattr(ddp, "_comm_hooks", ())]


def why_not_carried(ddp: DistributedDataParallel) -> str:
    """Return why some hook cannot be carried over; empty if all can."""
    if getattr(ddp, "mixed_precision", None) is not None:
        return "mixed_precision of DistributedDataParallel cannot be carried over yet"
    for hook in of(ddp):
        if not _is_seen(hook):
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            return f"the communication hook {name} of DistributedDataParallel may keep state that is not seen"
    return ""


def _is_seen(hook: Any) -> bool:
    """Return whether all that the hook changes is in its state object, or in what the walk finds behind the script's own code."""
    function = hook.__func__ if isinstance(hook, types.MethodType) else hook
    if isinstance(function, types.FunctionType) and callables.is_users_function(function):
        return function is hook or not callables.is_foreign(hook.__self__)
    return _keeps_nothing(hook)


def _keeps_nothing(hook: Any) -> bool:
    """Return whether nothing that the hook changes is in variables of functions around it, in itself or in its module."""
    if not isinstance(hook, types.FunctionType) or callables.fields(hook) or callables.rebinds(hook.__code__):
        return False
    known = f"{hook.__module__}.{hook.__qualname__}" in _KNOWN
    if not known and hook.__code__.co_filename not in sites.INSTRUMENTED_FILES and not _leaves_module(hook, set()):
        return False
    cells = [cell.cell_contents for cell in hook.__closure__ or ()]
    defaults = [*(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values()]
    return all(
        type(v) in PLAIN or isinstance(v, (type, dist.ProcessGroup)) or _keeps_nothing(v) for v in cells + defaults
    )


def _leaves_module(function: types.FunctionType, seen: set[types.CodeType]) -> bool:
    """Return whether a package's function, and those of its module that it names, neither bind nor read what can change there.

    Nor may they make process groups.
    """
    codes = [function.__code__]
    for code in codes:
        if code in seen:
            continue
        seen.add(code)
        codes.extend(constant for constant in code.co_consts if isinstance(constant, types.CodeType))
        if not _MAKES_GROUPS.isdisjoint(code.co_names):
            return False
        if any(i.opname in _MOVES_ON for i in dis.get_instructions(code)):
            return False
        for value in (function.__globals__[name] for name in code.co_names if name in function.__globals__):
            if kind_of(type(value)) not in _UNCHANGED:
                return False
            if isinstance(value, types.FunctionType) and value.__module__ == function.__module__:
                codes.append(value.__code__)
    return True


def register_again(ddp: DistributedDataParallel) -> None:
    """Register the wrapper's hooks with its new reducer."""
    for hook, state in getattr(ddp, "_comm_hooks", ()):
        dist._register_comm_hook(ddp.reducer, state, hook)
    if ddp in _builtin:
        dist._register_builtin_comm_hook(ddp.reducer, _builtin[ddp])


def install(left_alone: Callable[[], AbstractContextManager[None]]) -> None:
    """Watch which hooks are registered, and call each within `left_alone`: there collectives are not the script's own."""
    original_builtin: Callable[..., Any] = DistributedDataParallel._register_builtin_comm_hook
    original_register: Callable[..., Any] = dist._register_comm_hook

    @functools.wraps(original_builtin)
    def _register_builtin_comm_hook(self: Any, comm_hook_type: Any) -> Any:
        _builtin[self] = comm_hook_type
        return original_builtin(self, comm_hook_type)

    @functools.wraps(original_register)
    def _register_comm_hook(reducer: Any, state: Any, hook: Any) -> Any:
        @functools.wraps(hook)
        def apart(*args: Any) -> Any:
            with left_alone():
                return hook(*args)

        return original_register(reducer, state, apart)

    setattr(DistributedDataParallel, "_register_builtin_comm_hook", _register_builtin_comm_hook)  # noqa: B010 - mypy forbids it
    setattr(dist, "_register_comm_hook", _register_comm_hook)  # noqa: B010 - the same
