"""Make tensors whose content is still to come, and which the script may read before it has come.

A new process that goes through a step without its peers reads such tensors. What it computes of them is replaced at the gate, so
any numbers will do that kernels can be given. Memory that nobody has written will not: an index out of it is an error or ends
the process, and so does a coordinate that is no number (`grid_sample` on the host). An index of zero is one of every table that
has rows. A one can be divided by, and has a root and a logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def stand_in(shape: Sequence[int], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Return a tensor of this form: zeros where it holds whole numbers or truth values, ones else."""
    made = torch.empty(tuple(shape), dtype=dtype, device=device)
    try:
        return made.fill_(1 if dtype.is_floating_point or dtype.is_complex else 0)
    except NotImplementedError:  # numbers of a few bits each, which torch cannot write
        made.untyped_storage().fill_(0)  # type: ignore[attr-defined]  # which torch does not say
        return made
