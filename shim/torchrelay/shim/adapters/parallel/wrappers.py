"""Tell the protection report of torch's wrappers that cannot be put back once they were interrupted.

Leans on `FullyShardedDataParallel` keeping its own state, and nothing of the user's, in its attributes. Seen on torch 2.13.0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


def is_fsdp1(module: torch.nn.Module) -> bool:
    """Return whether the module is a wrapper of the first FSDP; what `fully_shard` makes is none."""
    defined = sys.modules.get(_FSDP1)
    return defined is not None and isinstance(module, defined.FullyShardedDataParallel)


def limits(roots: Iterable[torch.nn.Module]) -> list[str]:
    """Return, in words, what cannot be done for a job with these models."""
    found = []
    if any(is_fsdp1(module) for root in roots for module in root.modules()):
        found.append(
            "FullyShardedDataParallel: a rank can be moved, but one that is lost is not replaced (fully_shard can)"
        )
    return found
