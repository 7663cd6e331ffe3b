"""Keeping frames of the shim out of what users see of their own exceptions."""

from __future__ import annotations

from types import FrameType, TracebackType

_OURS = "torchrelay.shim"
_NAMED_TUPLE = "namedtuple_"
"""Begins the name that `collections.namedtuple` gives to what makes an instance."""


def hide_this_frame(error: BaseException) -> None:
    """Take the calling frame out of the traceback. For an except clause that ends with a bare `raise`.

    Works because a bare `raise` adds no entry. Up to Python 3.10 the interpreter keeps a traceback of its own; there the entry
    stays until `hide_all` takes it out.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def hide_our_frames(error: BaseException) -> None:
    """Take frames of the shim out of the traceback where several follow each other."""
    error.__traceback__ = _without_ours(error.__traceback__)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and is_ours(traceback.tb_frame):
        traceback = traceback.tb_next
    entry = traceback
    while entry is not None:
        following = entry.tb_next
        while following is not None and is_ours(following.tb_frame):
            following = following.tb_next
        if following is not entry.tb_next:
            entry.tb_next = following
        entry = following
    return traceback


def is_ours(frame: FrameType) -> bool:
    """Return whether the frame runs code of the shim, or makes a named tuple for it, whose code has globals of its own."""
    name = frame.f_globals.get("__name__")
    if not isinstance(name, str):
        return False
    if name.startswith(_NAMED_TUPLE) and frame.f_back is not None:
        return is_ours(frame.f_back)
    return name == _OURS or name.startswith(_OURS + ".")


def hide_all(error: BaseException) -> None:
    """Take every entry of the shim out of the traceback of `error` and of the exceptions that it is chained to."""
    to_visit = [error]
    seen = set()
    while to_visit:
        current = to_visit.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_ours(current.__traceback__)
        to_visit.extend(e for e in (current.__cause__, current.__context__) if e is not None)
        to_visit.extend(getattr(current, "exceptions", ()))
