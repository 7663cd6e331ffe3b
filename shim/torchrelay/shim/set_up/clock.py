"""The time and the name of the machine as set-up sees them: names of runs are made of them, and seeds.

Written down where the user's own code asks. What installed packages ask is written down only if it is the local time or the
machine's name, of which names are made (`runs/Nov23_06-40-00_host`): requests to servers are signed with UTC, and have to be
signed with that of the present. Python's own library is never given anything but the present.
"""

from __future__ import annotations

import _socket
import datetime
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.set_up.outside import Outside, asking, key_of, whose

Call = Callable[..., Any]
_NETWORK = ("torch.distributed", "torch.multiprocessing")
_WITHOUT_TIME = {"localtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}
"""Functions of `time` that take the present if they are given no more than so many arguments."""


def divert_clock(diversions: Diversions, outside: Outside) -> None:
    """Divert what asks for the time and the machine's name. Raises UnsupportedError where this Python is built otherwise."""
    diversions.divert(time.time, lambda original: _epoch(original, outside, "time"))
    diversions.divert(time.time_ns, lambda original: _epoch(original, outside, "time_ns"))
    diversions.divert(time.gmtime, lambda original: _of_present(original, outside, "gmtime", 0, ("own",)))
    for name, arguments in _WITHOUT_TIME.items():
        function = getattr(time, name)
        diversions.divert(function, _local(outside, name, arguments))
    diversions.divert_method(datetime.datetime, "now", lambda original: _now(original, outside))
    diversions.divert_method(datetime.datetime, "utcnow", lambda original: _utcnow(original, outside))
    diversions.divert(_socket.gethostname, lambda original: _host(original, outside))


def _asked_by(frame: FrameType | None, owners: tuple[str, ...]) -> FrameType | None:
    """Return the frame, if it is the one that asks, and one of these owners'."""
    return frame if frame is not None and asking(frame) is frame and whose(frame.f_code.co_filename) in owners else None


def _epoch(original: Call, outside: Outside, name: str) -> Call:
    """Answer in a joiner that asks again from the lost rank's time on: a deadline that was set there is not over at once."""
    ahead: Any = 0

    def epoch() -> Any:
        nonlocal ahead
        frame = _asked_by(sys._getframe(1).f_back, ("own",))
        if frame is None:
            return original()
        key = key_of(name, frame)
        if outside.knows(key):
            given = outside.answer(key, original)
            ahead = given - original()
            return given
        return outside.answer(key, lambda: original() + ahead)

    return epoch


def _local(outside: Outside, name: str, arguments: int) -> Callable[[Call], Call]:
    return lambda original: _of_present(original, outside, name, arguments, ("own", "package"))


def _of_present(original: Call, outside: Outside, name: str, arguments: int, owners: tuple[str, ...]) -> Call:
    def asked(*args: Any) -> Any:
        frame = _asked_by(sys._getframe(1).f_back, owners)
        if frame is None or len(args) > arguments:
            return original(*args)
        return outside.answer(key_of(name, frame), lambda: original(*args))

    return asked


def _now(original: Any, outside: Outside) -> Any:
    def now(cls: type, tz: Any = None) -> Any:
        ask = original.__get__(None, cls)
        frame = _asked_by(sys._getframe(1), ("own", "package") if tz is None else ("own",))
        if frame is None or cls is not datetime.datetime or not (tz is None or type(tz) is datetime.timezone):
            return ask(tz)
        return outside.answer(key_of("now", frame), lambda: ask(tz))

    return classmethod(now)


def _utcnow(original: Any, outside: Outside) -> Any:
    def utcnow(cls: type) -> Any:
        frame = _asked_by(sys._getframe(1), ("own",))
        ask = original.__get__(None, cls)
        if frame is None or cls is not datetime.datetime:
            return ask()
        return outside.answer(key_of("utcnow", frame), ask)

    return classmethod(utcnow)


def _host(original: Call, outside: Outside) -> Call:
    def gethostname() -> Any:
        frame = asking(sys._getframe(1).f_back)
        if frame is None or str(frame.f_globals.get("__name__", "")).startswith(_NETWORK):
            return original()
        return outside.answer(key_of("gethostname", frame), original)

    return gethostname
