"""Tell in which order autograd has recorded what gradients are computed through.

Leans on `torch._C._autograd._get_sequence_nr` and on `_sequence_nr` of a graph's nodes, which count up in each thread. Seen on
torch 2.13; where they are missing, every graph counts as recorded just now.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

_MOST_NODES = 64
"""How many nodes a graph is followed, along the first input of each."""

_now: Callable[[], int] | None = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None)


def now() -> int:
    """Return the number that the next node gets."""
    return _now() if _now is not None else 0


def oldest(tensors: torch.Tensor | Sequence[torch.Tensor]) -> int:
    """Return the number of the oldest node on the way that leads from these tensors, as far as it is followed."""
    found = sys.maxsize
    for tensor in [tensors] if isinstance(tensors, torch.Tensor) else tensors:
        node: Any = getattr(tensor, "grad_fn", None)
        for _ in range(_MOST_NODES):
            if node is None:
                break
            # A leaf that collects gradients has the highest number that there is.
            found = min(found, int(node._sequence_nr())) if hasattr(node, "_sequence_nr") else found
            node = next((following for following, _ in node.next_functions if following is not None), None)
    return found
