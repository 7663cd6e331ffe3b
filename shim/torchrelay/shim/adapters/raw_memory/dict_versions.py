"""Tell whether dictionaries were written to, from the versions that CPython keeps of them (PEP 509) instead of their content.

Reads `ma_version_tag` of `PyDictObject`, behind the header and the number of items: a number that no other state of any dictionary
of this process has had. CPython 3.10 to 3.13 have it (64 bits, with the GIL; seen on 3.11, where writing what is there already
leaves it as it was); 3.14 has not. Tried out when this module is imported, for modules and for attributes of instances by
themselves: those can be written past their dictionary. Where it does not hold, nothing is known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

TAG_OFFSET = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
_VALUE = attrgetter("value")
_OFTEN = 64
"""Writes until the interpreter has surely specialized the instruction."""


def version(space: dict[str, Any]) -> ctypes.c_uint64:
    """Return an object whose `value` is the version, as long as the dictionary lives. Only where it works."""
    return ctypes.c_uint64.from_address(id(space) + TAG_OFFSET)


class Versions:
    """The versions of dictionaries that live as long as this does."""

    def __init__(self, spaces: Iterable[dict[str, Any]], *, works: bool) -> None:
        self._spaces = [*spaces] if works else []
        self._tags = [version(space) for space in self._spaces]

    def take(self) -> list[int]:
        """Return the same as before if no dictionary was written to since, and only then; empty where that cannot be told."""
        return [*map(_VALUE, self._tags)]


class _Sample:
    def __init__(self) -> None:
        self.a = self.b = 0


_WRITES: tuple[Callable[[dict[str, Any]], object], ...] = (
    lambda space: space.update(a=object()),
    lambda space: space.setdefault("c", 1),
    lambda space: space.pop("c"),
    lambda space: space.__setitem__("b", object()),
    lambda space: space.clear(),
    lambda space: space.__ior__({"a": 1}),
    lambda space: space.popitem(),
)


def _tells_writes(space: dict[str, Any], assign: Callable[[int], None]) -> bool:
    seen = Versions([space], works=True)
    taken = [seen.take()]
    for number in range(_OFTEN):
        assign(number + 1000)
        taken.append(seen.take())
    for write in _WRITES:
        write(space)
        taken.append(seen.take())
    return len({version for (version,) in taken}) == len(taken) and seen.take() == taken[-1]


def _of_modules() -> bool:
    space: dict[str, Any] = {"a": 0, "b": 0}
    exec("def assign(value):\n    global a\n    a = value", space)
    return dict.__basicsize__ >= TAG_OFFSET + 8 and _tells_writes(space, space["assign"])


def _of_instances() -> bool:
    """Return whether it works for instances whose dictionaries share their keys, and for instances with keys of their own."""
    return OF_MODULES and _of_instance(_Sample()) and _of_instance(_unlike_others())


def _of_instance(sample: _Sample) -> bool:
    def assign(value: int) -> None:
        sample.b = value

    return _tells_writes(vars(sample), assign)


def _unlike_others() -> _Sample:
    sample = _Sample()
    sample.__dict__ = {"b": 0, "a": 0}
    return sample


OF_MODULES = _of_modules()
OF_INSTANCES = _of_instances()
