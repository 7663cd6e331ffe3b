"""Wrappers of torch that a migration knows no way back from, once they were interrupted: what the protection report says of them.

Leans on `FullyShardedDataParallel` keeping its own state, and nothing of the user's, in its attributes; on `_comm_hooks` and
`static_graph` of `DistributedDataParallel`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


def is_fsdp1(module: torch.nn.Module) -> bool:
    """Whether it is a wrapper of the first FSDP; what `fully_shard` makes is none."""
    defined = sys.modules.get(_FSDP1)
    return defined is not None and isinstance(module, defined.FullyShardedDataParallel)


def limits(roots: Iterable[torch.nn.Module], wrapped: Sequence[Any]) -> list[str]:
    """What cannot be done for a job with these models and data parallel wrappers, in words."""
    found = []
    if any(is_fsdp1(module) for root in roots for module in root.modules()):
        found.append(
            "FullyShardedDataParallel: a rank can be moved, but one that is lost is not replaced (fully_shard can)"
        )
    if any(getattr(ddp, "_comm_hooks", None) for ddp in wrapped):
        found.append("a communication hook of DistributedDataParallel: no rank can be replaced")
    if any(ddp.static_graph for ddp in wrapped):
        found.append("static_graph of DistributedDataParallel: no rank can be replaced")
    return found
