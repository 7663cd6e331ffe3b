"""Read the state of torch's default generator of the CPU in memory: asking for it makes a tensor.

The generator's object points to an `at::CPUGeneratorImpl` behind its header, which holds an `at::mt19937` (seed, two counters, 624
words) and then the second halves of pairs of normal numbers, `optional<float>` and `optional<double>`. What
`torch.Generator.get_state` returns is a `CPUGeneratorImplState`: the same with words of 64 bits, and in another order. Seen on
torch 2.13.0, CPython 3.10 to 3.13 (64 bits, with the GIL). Tried out on a generator when first used. Where it disagrees with
`get_state`, that is asked instead.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import torch

from torchrelay.shim.adapters.raw_memory.memory import read, view

_HEADER_BYTES = object.__basicsize__
_IN_MEMORY = struct.Struct("<QiB3xI624I4xfB3xdB7x")
"""`seed_`, `left_`, `seeded_`, `next_`, `state_`; `next_float_normal_sample_`, `next_double_normal_sample_`."""
_BEFORE_WORDS = 8 + 4 + 4 + 4
_WORDS = struct.Struct("624I")
_AS_TOLD = struct.Struct("<Qiiq624QdddixxxxfB3x")
"""`the_initial_seed`, `left`, `seeded`, `next`, `state`, `normal_x`, `normal_y`, `normal_rho`, `normal_is_valid`; the float."""
_TOLD_WORDS = struct.Struct("624Q")
_TOLD_WORDS_AT = 24
_WORDS_WITHIN = 128
"""Before the words are `c10::GeneratorImpl` and the engine's counters: no more bytes than this."""


def _state_of(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    return read(state.data_ptr(), state.numel())


def _find(generator: torch.Generator) -> int:
    """Return the address of the generator's engine; 0 if not found."""
    if type(generator).__basicsize__ < _HEADER_BYTES + ctypes.sizeof(ctypes.c_void_p):
        return 0
    body = ctypes.c_void_p.from_address(id(generator) + _HEADER_BYTES).value
    told = _state_of(generator)
    if not body or len(told) != _AS_TOLD.size:
        return 0
    words = _WORDS.pack(*_TOLD_WORDS.unpack_from(told, _TOLD_WORDS_AT))
    at = read(body, _WORDS_WITHIN + _WORDS.size).find(words)
    return body + at - _BEFORE_WORDS if at >= _BEFORE_WORDS else 0


def as_told(data: bytes) -> bytes:
    """Return what `torch.set_rng_state` takes, from what `TorchGenerator.read` has returned in a process with the same torch."""
    if len(data) != _IN_MEMORY.size:
        return data
    seed, left, seeded, following, *words, single, has_single, double, has_double = _IN_MEMORY.unpack(data)
    second = double if has_double else 0.0
    rest = (0.0, second, 0.0, has_double, single if has_single else 0.0, has_single)
    return _AS_TOLD.pack(seed, left, seeded, following, *words, *rest)


def _works(generator: torch.Generator) -> bool:
    """Return whether memory tells what `get_state` does.

    Each second normal number is kept beside the words: that has to be seen too.
    """
    address = _find(generator)
    if not address:
        return False
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float32, torch.float64, torch.float64):
        before = read(address, _IN_MEMORY.size)
        torch.randn(1, generator=generator, dtype=dtype, device="cpu")
        now = read(address, _IN_MEMORY.size)
        if now == before or as_told(now) != _state_of(generator):
            return False
    return True


class TorchGenerator:
    """Read the default generator, which is the same object for as long as the process lives."""

    def __init__(self) -> None:
        address = _find(torch.default_generator) if _works(torch.Generator("cpu")) else 0
        self.in_memory: Any = view(address, _IN_MEMORY.size) if address else None

    def read(self) -> bytes:
        """Return the same bytes as before if and only if the generator is unchanged."""
        data: bytes = self.in_memory.raw if self.in_memory is not None else _state_of(torch.default_generator)
        return data
