"""Take and put process-wide random generators: python, numpy (if the script uses it), torch on the CPU and on each used device."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.raw_memory.generators import NumpyMarker, PythonMarker
from torchrelay.shim.adapters.raw_memory.memory import read
from torchrelay.shim.adapters.raw_memory.torch_generator import TorchGenerator, as_told
from torchrelay.shim.adapters.used_devices import UsedDevices
from torchrelay.shim.tensors.tensor_bytes import await_writes


class RngState(NamedTuple):
    """The generators' states as bytes, so that they can go into a journal.

    Generators that were not used since share their bytes.
    """

    torch_cpu: bytes
    python: bytes
    numpy: bytes = b""
    cuda: tuple[tuple[int, bytes], ...] = ()


def _python_state() -> bytes:
    return pickle.dumps(random.getstate(), pickle.HIGHEST_PROTOCOL)


def _numpy_state() -> bytes:
    name, keys, *rest = sys.modules["numpy.random"].get_state()
    return pickle.dumps((name, keys.tobytes(), *rest), pickle.HIGHEST_PROTOCOL)


class _Generators:
    """Keep what was seen of each generator last, and its written state, which is made anew only when the generator was used.

    Most scripts use one of three. It is one function, since it is called several times in a step.
    """

    def __init__(self) -> None:
        self._torch = TorchGenerator()
        self._python = PythonMarker()
        self._numpy = NumpyMarker()
        self._python_seen: Any = None
        self._numpy_seen: Any = None
        self._latest = RngState(b"", b"")

    def capture(self) -> RngState:
        _, python, numpy, _ = latest = self._latest
        torch_cpu = self._torch.read()
        if torch_cpu == latest.torch_cpu:
            torch_cpu = latest.torch_cpu
        seen = self._python.read()
        if seen is None or seen != self._python_seen:
            python = _python_state()
            self._python_seen = seen
        if "numpy.random" in sys.modules:
            seen = self._numpy.read()
            if seen is None or seen != self._numpy_seen:
                numpy = _numpy_state()
                self._numpy_seen = seen
        cuda = _of_devices() if torch.cuda.is_initialized() else ()
        now = RngState(torch_cpu, python, numpy, cuda)
        if now != latest:
            self._latest = now
        return self._latest


_used = UsedDevices()


def _of_devices() -> tuple[tuple[int, bytes], ...]:
    return tuple((device, tensor_bytes(torch.cuda.get_rng_state(device))) for device in _used.indices())


capture = _Generators().capture


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Return the content of a small tensor on any device."""
    flat = tensor
    if not (tensor.is_cpu and tensor.is_contiguous()) or tensor.is_conj() or tensor.is_neg():
        await_writes(tensor.device)
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return read(flat.data_ptr(), flat.numel() * flat.element_size())


def byte_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def restore(state: RngState) -> None:
    """Put the generators to this state. Raises StateMismatchError where a device is not there that had been drawn on."""
    torch.set_rng_state(byte_tensor(as_told(state.torch_cpu)))
    random.setstate(pickle.loads(state.python))
    generators = sys.modules.get("numpy.random")
    if state.numpy and generators is not None:
        name, keys, *rest = pickle.loads(state.numpy)
        generators.set_state((name, memoryview(keys).cast("I"), *rest))
    if missing := [device for device, _ in state.cuda if device >= torch.cuda.device_count()]:
        raise StateMismatchError(
            f"the rank has drawn random numbers on device {missing[0]}, which this process does not have"
        )
    for device, data in state.cuda:
        torch.cuda.set_rng_state(byte_tensor(data), device)
    _used.add(device for device, _ in state.cuda)


def same(a: RngState, b: RngState) -> bool:
    """Return whether the generators would go on alike: in memory a generator may also have what it does not use.

    A device that was in use for only one of the two had nothing to go on with for the other.
    """
    both = {device for device, _ in a.cuda} & {device for device, _ in b.cuda}
    told = [
        state._replace(
            torch_cpu=as_told(state.torch_cpu), cuda=tuple(entry for entry in state.cuda if entry[0] in both)
        )
        for state in (a, b)
    ]
    return told[0] == told[1]
