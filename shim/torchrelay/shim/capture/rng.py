"""The process-wide random number generators: python, numpy (if the script uses it), torch on the CPU and on each device."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchrelay.shim.adapters.generators import NumpyMarker, PythonMarker, TorchMarker
from torchrelay.shim.adapters.memory import read


class RngState(NamedTuple):
    """Bytes only, so that it can be written to a journal; generators that were not used since share their bytes."""

    torch_cpu: bytes
    python: bytes
    numpy: bytes = b""
    cuda: tuple[tuple[int, bytes], ...] = ()


class _Kept:
    """A generator's written state, made anew only when the generator was used: most scripts use one of the three."""

    def __init__(self, marker: PythonMarker | NumpyMarker | TorchMarker, state: Callable[[], bytes]) -> None:
        self._marker, self._state = marker, state
        self._seen: Any = None
        self._data = b""

    def data(self) -> bytes:
        now = self._marker.read()
        if now is None or now != self._seen:
            self._data = self._state()
            self._seen = now
        return self._data


def _python_state() -> bytes:
    return pickle.dumps(random.getstate(), pickle.HIGHEST_PROTOCOL)


def _numpy_state() -> bytes:
    name, keys, *rest = sys.modules["numpy.random"].get_state()
    return pickle.dumps((name, keys.tobytes(), *rest), pickle.HIGHEST_PROTOCOL)


def _torch_state() -> bytes:
    state = torch.default_generator.get_state()
    return read(state.data_ptr(), state.numel())


_python, _numpy = _Kept(PythonMarker(), _python_state), _Kept(NumpyMarker(), _numpy_state)
_torch = _Kept(TorchMarker(), _torch_state)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The content of a small tensor on any device."""
    flat = tensor
    if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.is_conj() or tensor.is_neg():
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return read(flat.data_ptr(), flat.numel() * flat.element_size())


def byte_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def capture() -> RngState:
    numpy = _numpy.data() if "numpy.random" in sys.modules else b""
    return RngState(_torch.data(), _python.data(), numpy, _cuda() if torch.cuda.is_initialized() else ())


def _cuda() -> tuple[tuple[int, bytes], ...]:
    device = torch.cuda.current_device()
    return ((device, tensor_bytes(torch.cuda.get_rng_state(device))),)


def restore(state: RngState) -> None:
    torch.set_rng_state(byte_tensor(state.torch_cpu))
    random.setstate(pickle.loads(state.python))
    generators = sys.modules.get("numpy.random")
    if state.numpy and generators is not None:
        name, keys, *rest = pickle.loads(state.numpy)
        generators.set_state((name, memoryview(keys).cast("I"), *rest))
    for device, data in state.cuda:
        torch.cuda.set_rng_state(byte_tensor(data), device)
