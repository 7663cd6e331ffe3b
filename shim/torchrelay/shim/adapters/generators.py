"""Whether a process-wide random generator was used, told from its memory: asking for its state takes fifty times as long.

Reads `RandomObject` of CPython (an index and 624 words behind the object's header; the second half of a pair of normal
numbers is an attribute) and, through numpy's public `bit_generator.ctypes`, the words of MT19937 together with the body of
`RandomState`, which holds the second half. Seen on CPython 3.10 to 3.13 (64 bits, with the GIL) and numpy 2.4; checked
against the generator's own answer when first used, and None where that disagrees.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any

_HEADER_BYTES = object.__basicsize__
_WORDS = struct.Struct("624I")
_POSITION = struct.Struct("i")


class PythonMarker:
    """`read` returns the same as before if and only if the generator is as it was before; None if that cannot be told."""

    def __init__(self) -> None:
        self._generator: Any = random.getstate.__self__  # type: ignore[attr-defined]  # a method of the hidden instance
        self._address = id(self._generator) + _HEADER_BYTES
        self.works = type(self._generator) is random.Random and self._agrees()

    def _agrees(self) -> bool:
        size = random.Random.__mro__[1].__basicsize__ - _HEADER_BYTES
        if size < _POSITION.size + _WORDS.size:
            return False
        raw = self._raw()
        *words, position = self._generator.getstate()[1]
        return _POSITION.unpack_from(raw) == (position,) and list(_WORDS.unpack_from(raw, _POSITION.size)) == words

    def _raw(self) -> bytes:
        return ctypes.string_at(self._address, _POSITION.size + _WORDS.size)

    def read(self) -> Any:
        return (self._raw(), self._generator.gauss_next) if self.works else None


class NumpyMarker:
    """The same for numpy's legacy generator; its bit generator can be replaced by the script."""

    def __init__(self) -> None:
        self._bits: Any = None
        self._address = 0

    def read(self) -> Any:
        state: Any = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
        bits = getattr(state, "_bit_generator", None)
        if bits is None:
            return None
        if bits is not self._bits:
            self._bits, self._address = bits, self._find(state, bits)
        if not self._address:
            return None
        body = ctypes.string_at(id(state) + _HEADER_BYTES, type(state).__basicsize__ - _HEADER_BYTES)
        return ctypes.string_at(self._address, _WORDS.size + _POSITION.size), body

    @staticmethod
    def _find(state: Any, bits: Any) -> int:
        """Where the words are; 0 if not found."""
        if type(bits).__name__ != "MT19937" or type(state).__name__ != "RandomState":
            return 0
        address = int(bits.ctypes.state_address)
        raw = ctypes.string_at(address, _WORDS.size + _POSITION.size)
        _, words, position, *_ = state.get_state()
        same = _WORDS.unpack_from(raw) == tuple(words.tolist()) and _POSITION.unpack_from(raw, _WORDS.size) == (
            position,
        )
        return address if same else 0
