"""Which errors say that a peer went away."""

from __future__ import annotations

import torch.distributed as dist

from torchrelay.shim.backends import registry


def is_communication_failure(error: BaseException) -> bool:
    """Whether an error says that a peer went away; such errors have no type of their own, and wrappers give them new ones."""
    if error.__cause__ is not None and is_communication_failure(error.__cause__):
        return True
    text = str(error)
    marks = (
        "Connection closed",
        "Connection reset",
        "Broken pipe",
        "Socket closed",
        "Software caused connection abort",
    )
    return isinstance(error, RuntimeError) and (
        isinstance(error, dist.DistError) or any(m in text for m in marks) or registry.is_peer_failure(text)
    )
