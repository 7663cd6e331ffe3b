"""The process-wide random number generators: python, numpy (if the script uses it), torch on the CPU and on each device."""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
from typing import Any, NamedTuple

import torch


class RngState(NamedTuple):
    """Bytes only, so that it can be written to a journal; generators that were not used since share their bytes."""

    torch_cpu: bytes
    python: bytes
    numpy: bytes = b""
    cuda: tuple[tuple[int, bytes], ...] = ()


class _Unchanged:
    """The pickled state of a generator, made anew only when the state is another one: most scripts use one generator."""

    def __init__(self) -> None:
        self._state: Any = None
        self._data = b""

    def data(self, state: Any) -> bytes:
        if state != self._state:
            self._state, self._data = state, pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        return self._data


_python, _numpy = _Unchanged(), _Unchanged()


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The content of a small tensor on any device."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def byte_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def capture() -> RngState:
    cuda: tuple[tuple[int, bytes], ...] = ()
    if torch.cuda.is_initialized():
        device = torch.cuda.current_device()
        cuda = ((device, tensor_bytes(torch.cuda.get_rng_state(device))),)
    return RngState(tensor_bytes(torch.get_rng_state()), _python.data(random.getstate()), _numpy_data(), cuda)


def _numpy_data() -> bytes:
    """The legacy generator's state, if the script has imported numpy."""
    generators = sys.modules.get("numpy.random")
    if generators is None:
        return b""
    name, keys, *rest = generators.get_state()
    return _numpy.data((name, keys.tobytes(), *rest))


def restore(state: RngState) -> None:
    torch.set_rng_state(byte_tensor(state.torch_cpu))
    random.setstate(pickle.loads(state.python))
    generators = sys.modules.get("numpy.random")
    if state.numpy and generators is not None:
        name, keys, *rest = pickle.loads(state.numpy)
        generators.set_state((name, memoryview(keys).cast("I"), *rest))
    for device, data in state.cuda:
        torch.cuda.set_rng_state(byte_tensor(data), device)
