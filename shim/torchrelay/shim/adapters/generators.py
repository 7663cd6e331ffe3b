"""Whether a process-wide random generator was used, told from its memory: asking for its state takes fifty times as long.

All three are a Mersenne Twister: a counter goes with each number drawn, and when it starts anew, or with another seed, all
624 words change (Matsumoto, Nishimura 1998). So the counter and the first words tell it; the others are not looked at.

Reads `RandomObject` of CPython (an index and 624 words behind the object's header; the second half of a pair of normal
numbers is an attribute), through numpy's public `bit_generator.ctypes` the words of MT19937 together with the body of
`RandomState`, which holds the second half, and torch's `at::CPUGeneratorImpl`, to which the generator's object points behind
its header: `at::mt19937` (seed, two counters, 624 words), then the second halves. Seen on CPython 3.10 to 3.13 (64 bits,
with the GIL), numpy 2.4 and torch 2.13.0; checked against the generator's own answer when first used, and None where that
disagrees.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
import sys
from operator import attrgetter
from typing import Any

import torch

from torchrelay.shim.adapters.memory import read, view

_RAW = attrgetter("raw")
_HEADER_BYTES = object.__basicsize__
_WORDS = struct.Struct("624I")
_SAMPLE_BYTES = 16 * 4
"""Of the words: two different states have 16 in common once in 2 ** 480."""
_POSITION = struct.Struct("i")
_LEGACY_WORDS, _LEGACY_WORDS_AT = struct.Struct("624Q"), 24
"""In what `torch.Generator.get_state` returns: behind the seed, `left`, `seeded` and `next`."""
_BEFORE_WORDS = 8 + 4 + 4 + 4
"""`seed_`, `left_`, `seeded_`, `next_` of `at::mt19937`."""
_BEHIND_WORDS = 4 + 8 + 16
"""Padding, `optional<float>` and `optional<double>`."""
_WORDS_WITHIN = 128
"""Before the words are `c10::GeneratorImpl` and the engine's counters: no more bytes than this."""


class PythonMarker:
    """`read` returns the same as before if and only if the generator is as it was before; None if that cannot be told."""

    def __init__(self) -> None:
        self._generator: Any = random.getstate.__self__  # type: ignore[attr-defined]  # a method of the hidden instance
        self.works = type(self._generator) is random.Random and self._agrees()
        self._sample = view(id(self._generator) + _HEADER_BYTES, _POSITION.size + _SAMPLE_BYTES) if self.works else None

    def _agrees(self) -> bool:
        size = random.Random.__mro__[1].__basicsize__ - _HEADER_BYTES
        if size < _POSITION.size + _WORDS.size:
            return False
        raw = read(id(self._generator) + _HEADER_BYTES, _POSITION.size + _WORDS.size)
        *words, position = self._generator.getstate()[1]
        return _POSITION.unpack_from(raw) == (position,) and list(_WORDS.unpack_from(raw, _POSITION.size)) == words

    def read(self) -> Any:
        return (self._sample.raw, self._generator.gauss_next) if self._sample is not None else None


class NumpyMarker:
    """The same for numpy's legacy generator; its bit generator can be replaced by the script."""

    def __init__(self) -> None:
        self._bits: Any = None
        self._state: Any = None
        self._views: tuple[Any, ...] = ()

    def read(self) -> Any:
        state: Any = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
        bits = getattr(state, "_bit_generator", None)
        if bits is None:
            return None
        if bits is not self._bits or state is not self._state:
            self._bits, self._state, self._views = bits, state, self._look(state, bits)
        return [*map(_RAW, self._views)] or None

    def _look(self, state: Any, bits: Any) -> tuple[Any, ...]:
        address = self._find(state, bits)
        if not address:
            return ()
        body = view(id(state) + _HEADER_BYTES, type(state).__basicsize__ - _HEADER_BYTES)
        return view(address, _SAMPLE_BYTES), view(address + _WORDS.size, _POSITION.size), body

    @staticmethod
    def _find(state: Any, bits: Any) -> int:
        """Where the words are; 0 if not found."""
        if type(bits).__name__ != "MT19937" or type(state).__name__ != "RandomState":
            return 0
        address = int(bits.ctypes.state_address)
        raw = read(address, _WORDS.size + _POSITION.size)
        _, words, position, *_ = state.get_state()
        same = _WORDS.unpack_from(raw) == tuple(words.tolist()) and _POSITION.unpack_from(raw, _WORDS.size) == (
            position,
        )
        return address if same else 0


class TorchMarker:
    """The same for torch's default generator of the CPU, which is the same object for as long as the process lives."""

    def __init__(self) -> None:
        address = _torch_engine(torch.default_generator) if _tells_each_use(torch.Generator("cpu")) else 0
        self._views = _views_of_engine(address) if address else ()

    def read(self) -> Any:
        return [*map(_RAW, self._views)] or None


def _views_of_engine(address: int) -> tuple[Any, ...]:
    """Behind the words of the engine, and in front of them with the first words."""
    behind = address + _BEFORE_WORDS + _WORDS.size
    return view(behind, _BEHIND_WORDS), view(address, _BEFORE_WORDS + _SAMPLE_BYTES)


def _torch_engine(generator: torch.Generator) -> int:
    """Where its engine is in memory; 0 if not found."""
    if type(generator).__basicsize__ < _HEADER_BYTES + ctypes.sizeof(ctypes.c_void_p):
        return 0
    body = ctypes.c_void_p.from_address(id(generator) + _HEADER_BYTES).value
    state = generator.get_state().numpy(force=True).tobytes()
    if not body or len(state) < _LEGACY_WORDS_AT + _LEGACY_WORDS.size:
        return 0
    words = _WORDS.pack(*_LEGACY_WORDS.unpack_from(state, _LEGACY_WORDS_AT))
    at = read(body, _WORDS_WITHIN + _WORDS.size).find(words)
    return body + at - _BEFORE_WORDS if at >= _BEFORE_WORDS else 0


def _tells_each_use(generator: torch.Generator) -> bool:
    """Each second normal number comes from what is kept beside the words: that has to be seen too."""
    address = _torch_engine(generator)
    if not address:
        return False
    views = _views_of_engine(address)
    seen = [[*map(_RAW, views)]]
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float64):
        torch.randn(1, generator=generator, dtype=dtype, device="cpu")
        seen.append([*map(_RAW, views)])
    return all(now != before for before, now in itertools.pairwise(seen))
