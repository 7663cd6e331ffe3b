"""Read and write the local variables of a running frame.

Python 3.13 and newer read and write through `f_locals` (PEP 667). Before, `f_locals` is a dictionary that the frame keeps and that
is filled anew each time it is asked for, and `PyFrame_LocalsToFast` copies it back. The script has that dictionary if it has called
`locals()`. So variables are read past it (`frame_memory`), and what writing does to it is taken back. Seen on 3.10, 3.11, 3.12,
3.13.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, GeneratorType
from typing import Any

from torchrelay.shim.adapters.cpython import frame_memory

_WRITE_THROUGH = sys.version_info >= (3, 13)
MODULE = "<module>"
"""The name of a module's code."""


def is_module_frame(frame: FrameType) -> bool:
    return frame.f_code.co_name == MODULE


def ended_frame() -> FrameType:
    """Return a frame that runs no more, and holds nothing: neither variables nor a frame that has called it."""
    generator = _nothing()
    assert isinstance(generator, GeneratorType)
    frame = generator.gi_frame
    assert frame is not None  # it has not ended yet
    generator.close()
    return frame


def _nothing() -> Iterator[None]:
    yield


def read_locals(frame: FrameType, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a copy of the local variables that are bound. `names`: only of these.

    Nothing of it lives on in the frame: what the script rebinds, a batch or its logits, is free at once.
    """
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    if frame_memory.WORKS and is_function and frame_memory.given_by_locals(frame) is not None:
        return frame_memory.variables(frame, names)
    kept = frame.f_locals
    values = {} if names is not None else dict(kept)
    for name in names or ():
        if name in kept:
            values[name] = kept[name]
    # If the script has asked for it too, it is the script's.
    if not _WRITE_THROUGH and is_function and sys.getrefcount(kept) <= _ONLY_THE_FRAME:
        kept.clear()
    return values


_ONLY_THE_FRAME = 3
"""The number of references to the frame's dictionary: the frame's, the variable's, and that of the call that counts."""


def set_locals(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Bind names in the frame. In a function, names that are no locals of it are ignored."""
    if is_module_frame(frame):
        frame.f_globals.update(values)
        return
    # What the frame of a class's body keeps is the class's own namespace, and not for us to put back.
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    given = frame_memory.given_by_locals(frame) if frame_memory.WORKS and is_function else None
    before = dict(given) if given is not None else {}
    known = set(frame.f_code.co_varnames) | set(frame.f_code.co_cellvars) | set(frame.f_code.co_freevars)
    proxy = frame.f_locals
    for name, value in values.items():
        if name in known:
            proxy[name] = value
    if not _WRITE_THROUGH:
        ctypes.PyDLL(None).PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        if given is not None:
            given.clear()
            given.update(before)
