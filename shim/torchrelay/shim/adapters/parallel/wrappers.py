"""Wrappers of torch that a migration knows no way back from, once they were interrupted: what the protection report says of them.

Leans on `FullyShardedDataParallel` keeping its own state, and nothing of the user's, in its attributes. Seen on torch 2.13.0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


def is_fsdp1(module: torch.nn.Module) -> bool:
    """Whether it is a wrapper of the first FSDP; what `fully_shard` makes is none."""
    defined = sys.modules.get(_FSDP1)
    return defined is not None and isinstance(module, defined.FullyShardedDataParallel)


def limits(roots: Iterable[torch.nn.Module]) -> list[str]:
    """What cannot be done for a job with these models, in words."""
    found = []
    if any(is_fsdp1(module) for root in roots for module in root.modules()):
        found.append(
            "FullyShardedDataParallel: a rank can be moved, but one that is lost is not replaced (fully_shard can)"
        )
    return found
