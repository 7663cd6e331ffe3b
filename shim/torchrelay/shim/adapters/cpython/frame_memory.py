"""Read in memory the variables of a function's running frame where the script has called `locals()`.

Before Python 3.13 `locals()` returns the dictionary that the frame keeps, and that is filled anew at each access to `f_locals`: the
script may be iterating over it just then, or save it later. Leans on `PyFrameObject` and `_PyInterpreterFrame`. What is read of a
sample is compared with what Python says of it, and where they differ `WORKS` is False. Seen on CPython 3.11 (64 bits, with the
GIL); 3.10 and 3.12 by the layouts that `generator_frames` has.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterable
from types import CellType, CodeType, FrameType
from typing import Any, NamedTuple

from torchrelay.shim.adapters.cpython.generator_frames import names

_WORD = ctypes.sizeof(ctypes.c_void_p)


class _Layout(NamedTuple):
    """Places of a frame's parts. `inner`: of the pointer from the frame's object to the interpreter's frame; 0 where they are one.

    From there, `kept`: the dictionary. `slots`: the variables.
    """

    inner: int
    kept: int
    slots: int


_LAYOUTS = {(3, 10): _Layout(0, 56, 352), (3, 11): _Layout(24, 24, 72), (3, 12): _Layout(24, 40, 72)}
_LAYOUT = _LAYOUTS.get(sys.version_info[:2], _Layout(0, 0, 0))


@functools.lru_cache(maxsize=1024)
def _places(code: CodeType) -> tuple[dict[str, int], frozenset[str], Any, Any]:
    """Return the slots by name, the names that are shared with other functions, and types of all slots: as words, as objects."""
    found = {name: place for place, name in enumerate(names(code))}
    shared = frozenset((*code.co_cellvars, *code.co_freevars))
    return found, shared, ctypes.c_void_p * len(found), ctypes.py_object * len(found)


def _inner(frame: FrameType) -> int:
    return ctypes.c_size_t.from_address(id(frame) + _LAYOUT.inner).value if _LAYOUT.inner else id(frame)


def given_by_locals(frame: FrameType) -> dict[str, Any] | None:
    """Return the dictionary that `locals()` has given to the script, as it is; None if nobody has it. Only where it WORKS."""
    address = _inner(frame) + _LAYOUT.kept
    kept = ctypes.c_size_t.from_address(address).value
    if kept == 0 or ctypes.c_ssize_t.from_address(kept).value == 1:
        return None
    holder: Any = ctypes.py_object.from_address(address)
    found: dict[str, Any] = holder.value
    return found


def variables(frame: FrameType, wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the variables that are bound. `wanted`: only of these names."""
    places, shared, words_type, values_type = _places(frame.f_code)
    inner = _inner(frame)
    words = words_type.from_address(inner + _LAYOUT.slots)[:]
    values = values_type.from_address(inner + _LAYOUT.slots)
    found = {}
    for name in places if wanted is None else wanted:
        place = places.get(name, -1)
        if place < 0 or words[place] is None:
            continue
        try:
            value = values[place]
            found[name] = value.cell_contents if name in shared and type(value) is CellType else value
        except ValueError:  # a cell that is empty, or unbound by its thread meanwhile
            continue
    return found


def _sample(first: Any, second: Any = 2) -> bool:
    third = [first]
    again = "again"
    gone = second

    def inner() -> Any:
        return third, later

    del gone
    frame = sys._getframe()
    nothing = given_by_locals(frame)
    told = variables(frame)
    later = 1
    said = frame.f_locals
    before = dict(said)
    assert inner() == (third, later)
    told_later = variables(frame, ("again", "gone", "unknown", "said"))
    if given_by_locals(frame) is not said or said != before or told_later != {"again": again, "said": said}:
        return False
    del said, told_later
    if nothing is not None or given_by_locals(frame) is not None:
        return False
    return [*told] == _OF_SAMPLE and all(told[name] is before[name] for name in _OF_SAMPLE)


_OF_SAMPLE = ["first", "second", "again", "inner", "frame", "nothing", "third"]


def _works() -> bool:
    if not _LAYOUT.slots or sys.implementation.name != "cpython" or _WORD != 8 or hasattr(sys, "gettotalrefcount"):
        return False
    return _sample(object()) and _sample(1, second=object())


WORKS = _works()
