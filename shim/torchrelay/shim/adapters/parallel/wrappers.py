"""Tell which modules the first FSDP has wrapped, and what the script keeps in attributes of their parameters.

Leans on `FullyShardedDataParallel` keeping its own state, and nothing of the user's, in its attributes, and on its flat parameters,
whose own attributes `FlatParameter` annotates. Seen on torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
_FLAT = "torch.distributed.fsdp._flat_param"
_NOT_ANNOTATED = {"_fsdp_flattened", "_is_flat_param", "_post_backward_called"}


def is_fsdp1(module: torch.nn.Module) -> bool:
    """Return whether the module is a wrapper of the first FSDP; what `fully_shard` makes is none."""
    defined = sys.modules.get(_FSDP1)
    return defined is not None and isinstance(module, defined.FullyShardedDataParallel)


def kept_beside_flat(roots: Iterable[torch.nn.Module]) -> list[str]:
    """Return the names under which the script keeps tensors as attributes of flat parameters."""
    defined = sys.modules.get(_FLAT)
    if defined is None:
        return []
    own = {*defined.FlatParameter.__annotations__, *_NOT_ANNOTATED}
    flat = (p for root in roots for p in root.parameters() if getattr(p, "_is_flat_param", False))
    found = {n for p in flat for n, v in vars(p).items() if n not in own and isinstance(v, torch.Tensor)}
    return sorted(found)
