"""Keep torchrelay's own work out of the script's inference mode: a tensor that is made in it cannot be written to later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def outside_inference() -> Iterator[None]:
    """Leave inference mode for now, if it is on. Gradients stay off, as in that mode."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield
