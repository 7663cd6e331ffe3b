"""Handle arrays of numpy that look into the memory of another one: slices, reshaped and transposed arrays.

They have no content of their own. The walk looks through them, at the array that owns the memory, and a journal holds which part of
it they look at: written by value, two arrays that share memory would each be written to memory that is the other's as well. Numpy
makes no chains: the base of a slice of a slice is the owner.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.values.small import SMALL_BYTES

_SIMPLE = frozenset("biufcmMSU")
"""Kinds of numbers and characters for which the short name of the form tells all."""


class Window(NamedTuple):
    """A part of the owner's memory. `offset`: of its first element, in bytes from the owner's first one.

    `strides`: in bytes, negative if it goes backwards.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    is_writeable: bool

    def in_words(self) -> str:
        return f"a part {list(self.shape)} of an array, at byte {self.offset} of it"

    def over(self, owner: Any, there: Any) -> Any:
        """Return an array that looks at this part of the owner's memory: `there`, if it does.

        Raises StateMismatchError where that memory is ordered otherwise, or too short.
        """
        if type(there) is type(owner) and there.base is owner and is_window(there) and window_of(there) == self:
            return there
        try:
            if not owner.flags.c_contiguous:
                raise ValueError("ordered otherwise")
            made = type(owner)(self.shape, self.dtype, owner, self.offset, self.strides)
        except (TypeError, ValueError) as e:
            raise StateMismatchError(f"an array has no place in the memory of another one: {e}") from e
        if not self.is_writeable:
            made.flags.writeable = False
        return made


def is_window(array: Any) -> bool:
    """Return whether the array looks into the memory of another small array, which a journal can hold by value."""
    owner = array.base
    return (
        owner is not None
        and type(owner) is type(array)
        and type(owner).__module__ == "numpy"
        and owner.base is None
        and owner.nbytes <= SMALL_BYTES
        and array.size > 0
        and owner.flags.c_contiguous
        and array.dtype.kind in _SIMPLE
        and owner.dtype.kind in _SIMPLE
    )


def window_of(array: Any) -> Window:
    """Return what `array` looks at. `is_window` has to be true of it."""
    offset = _address(array) - _address(array.base)
    return Window(offset, array.shape, array.strides, array.dtype.str, bool(array.flags.writeable))


def _address(array: Any) -> int:
    """Return the address of the array's first element."""
    return int(array.__array_interface__["data"][0])
