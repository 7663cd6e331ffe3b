"""Tell from memory whether Python's or numpy's process-wide generator was used: to ask the generator takes fifty times as long.

Both are a Mersenne Twister. A counter goes up with each number drawn, and when it starts anew, or with another seed, all 624 words
change (Matsumoto, Nishimura 1998). So the counter and the first words tell it; the others are not looked at.

Reads `RandomObject` of CPython (an index and 624 words behind the object's header; the second half of a pair of normal numbers is
an attribute), and through numpy's public `bit_generator.ctypes` the words of MT19937 together with the body of `RandomState`, which
holds the second half. Seen on CPython 3.10 to 3.13 (64 bits, with the GIL) and numpy 2.4; checked against the generator's own
answer when first used, and None where that disagrees. Torch's own: `torch_generator.py`.
"""

from __future__ import annotations

import random
import struct
import sys
from operator import attrgetter
from typing import Any

from torchrelay.shim.adapters.raw_memory.memory import read, view

_RAW = attrgetter("raw")
_HEADER_BYTES = object.__basicsize__
_WORDS = struct.Struct("624I")
_SAMPLE_BYTES = 16 * 4
"""How many bytes of the words are looked at: two different states have 16 words in common once in 2 ** 480."""
_POSITION = struct.Struct("i")


class PythonMarker:
    """Mark Python's generator. `read` returns the same as before if and only if the generator is unchanged; None if unknown."""

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
    """Mark numpy's legacy generator in the same way. The script can replace its bit generator."""

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
            self._views = self._look(state, bits)
            self._bits = bits
            self._state = state
        return [*map(_RAW, self._views)] or None

    def _look(self, state: Any, bits: Any) -> tuple[Any, ...]:
        address = self._find(state, bits)
        if not address:
            return ()
        body = view(id(state) + _HEADER_BYTES, type(state).__basicsize__ - _HEADER_BYTES)
        return view(address, _SAMPLE_BYTES), view(address + _WORDS.size, _POSITION.size), body

    @staticmethod
    def _find(state: Any, bits: Any) -> int:
        """Return where the words are; 0 if not found."""
        if type(bits).__name__ != "MT19937" or type(state).__name__ != "RandomState":
            return 0
        address = int(bits.ctypes.state_address)
        raw = read(address, _WORDS.size + _POSITION.size)
        _, words, position, *_ = state.get_state()
        same = _WORDS.unpack_from(raw) == tuple(words.tolist()) and _POSITION.unpack_from(raw, _WORDS.size) == (
            position,
        )
        return address if same else 0
