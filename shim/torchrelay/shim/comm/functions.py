"""Functions of torch.distributed in whose place ours are called."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torchrelay.shim.script.guard import Guard


def replace(guard: Guard, name: str, ours: Callable[..., Any]) -> None:
    """Put a function that calls `ours(plain, *args, **kwargs)` into all modules of torch that have function `name`.

    Does nothing where there is no such function. To be done as soon as torch is there: later a script may have it under a name of
    its own (`from torch.distributed import ...`).
    """
    original = getattr(c10d, name, None) or getattr(dist, name, None)
    if original is None:
        return
    wrapper = functools.wraps(original)(guard.entry(original, ours))
    for module in [m for n, m in sys.modules.copy().items() if n.split(".")[:2] == ["torch", "distributed"]]:
        if vars(module).get(name) is original:  # some have it under its own name: device_mesh has new_group
            setattr(module, name, wrapper)
