"""The process-wide random number generators: python, numpy (if the script uses it), torch on the CPU and on each device."""

from __future__ import annotations

import ctypes
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class RngState:
    """Plain values only, so that it can be written to a journal."""

    torch_cpu: bytes
    python: tuple[Any, ...]
    numpy: Any = None
    cuda: tuple[tuple[int, bytes], ...] = ()


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The content of a small tensor on any device."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def byte_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def capture() -> RngState:
    numpy = sys.modules.get("numpy")
    cuda: tuple[tuple[int, bytes], ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        device = torch.cuda.current_device()
        cuda = ((device, tensor_bytes(torch.cuda.get_rng_state(device))),)
    return RngState(
        tensor_bytes(torch.get_rng_state()),
        random.getstate(),
        numpy.random.get_state() if numpy is not None and hasattr(numpy, "random") else None,
        cuda,
    )


def restore(state: RngState) -> None:
    torch.set_rng_state(byte_tensor(state.torch_cpu))
    random.setstate(state.python)
    if state.numpy is not None:
        import numpy as np

        np.random.set_state(state.numpy)
    for device, data in state.cuda:
        torch.cuda.set_rng_state(byte_tensor(data), device)
