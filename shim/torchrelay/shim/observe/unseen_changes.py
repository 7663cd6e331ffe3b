"""Which objects that cannot be captured training changes: a replay buffer in an array, an emulator behind an environment.

A new process has what its own set-up made of them, and would go on with other numbers once that is something else. An array tells
by its content, one that cannot be written to by being there. An object that does not pickle shows nothing: it counts as changed
once the objects on the way to it hold other values than before, as those do that count its steps.

A namespace is not on that way: it holds variables of all kinds, as a module does. So does a trainer, whose method the training
loop stands in. It is not on the way to what hangs below an object whose class says how it is pickled, as a tokenizer's does: that
one tells of itself what it is. An emulator tells of itself nothing, and its trainer may be the only one who counts its steps.
What hangs below an object whose class writes it down as bytes is told by these bytes, whatever leads there.

Objects of the standard library are connections and the like, from which no numbers of training come. What digests data tells by
its digest.
"""

from __future__ import annotations

import subprocess
import sys
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

from torchrelay.shim.adapters.tensors.own_refs import OwnRef
from torchrelay.shim.capture.records.children import child
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values import by_value, callables, large_arrays
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.capture.values.large_arrays import LargeArrays

_EACH = 8
"""Boundaries at which every array is looked at; after these, powers of two."""
_MOST_BYTES = 1 << 30
"""Of arrays at one boundary: the content of further ones is not looked at."""
_VARIABLES = (Kind.FRAME, Kind.GLOBALS)
_NAMESPACES = {("types", "SimpleNamespace"), ("argparse", "Namespace")}
"""Modules and names of classes whose objects hold a script's options, and whatever else it likes to have together."""
_PICKLED_BY = ("__getstate__", "__reduce__", "__reduce_ex__")


class UnseenChanges:
    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        """Name in the host state -> how it is known to change."""
        self._arrays: dict[str, int] = {}
        self._read_only: dict[str, weakref.ref[Any]] = {}
        self._holders: dict[str, list[Any]] = {}
        self._digests: dict[str, bytes] = {}
        """Of objects that digest what they are given (`hashlib.md5()`), what they told at the first look."""
        self._told: dict[str, bytes | None] = {}
        """Of what hangs below an object that is written down as bytes: their digest at the first look. None for anything else."""

    def look(self, state: HostState, boundary: int, arrays: LargeArrays) -> None:
        """Look which objects have changed.

        `arrays`: those that training writes to are carried from the next boundary on, if they may be.
        """
        without_order = (name for name in state.unknown if name.endswith(callables.WITHOUT_ORDER))
        self.found |= dict.fromkeys(without_order, "no other process knows which one is meant")
        is_due = boundary <= _EACH or boundary.bit_count() == 1
        left_bytes = _MOST_BYTES if is_due else 0
        asked: dict[int, bytes | None] = {}
        for name in state.unknown:
            place = state.places.get(name)
            if name in self.found or place is None:
                continue
            parent, key = place
            obj = child(state.nodes[parent].kind, state.nodes[parent].obj, key)
            kind = kind_of(type(obj))
            if name.endswith(large_arrays.NEW_READ_ONLY):
                self.found[name] = "training has put it there"
            elif name.endswith(large_arrays.READ_ONLY):
                if self._read_only.setdefault(name, OwnRef(obj))() is not obj:
                    self.found[name] = "training has put another one in its place"
            elif kind is Kind.NDARRAY and obj.dtype.kind != "O" and obj.nbytes <= left_bytes:
                left_bytes -= obj.nbytes
                now = _content(obj)
                if self._arrays.setdefault(name, now) != now:
                    self.found[name] = "training writes to it"
                    arrays.carry_written(obj)
            elif kind is Kind.HANDLE:
                self._look_at_handle(name, obj)
            elif kind is Kind.UNKNOWN:
                self._look_at_unknown(state, name, parent, obj, asked if is_due else None)

    def _look_at_handle(self, name: str, obj: Any) -> None:
        """Look whether it is a program that may be read from."""
        if isinstance(obj, subprocess.Popen) and obj.stdout is not None and obj.returncode is None:
            self.found[name] = "training may read what it sends"

    def _look_at_unknown(
        self, state: HostState, name: str, parent: int, obj: Any, asked: dict[int, bytes | None] | None
    ) -> None:
        """Look at an object that does not pickle. `asked`: as of `_told`; None where holders are not due to be asked."""
        if hasattr(type(obj), "hexdigest"):
            if self._digests.setdefault(name, obj.digest()) != obj.digest():
                self.found[name] = "training goes on with it"
        elif not _is_of_python(obj) and not by_value.pickles(obj):
            if name not in self._told:
                self._told[name] = _told(state, parent, {} if asked is None else asked)
            if self._told[name] is None:
                self._look_at_holders(state, name, parent)
            elif asked is not None and self._told[name] != _told(state, parent, asked):
                self.found[name] = "training changes what its class makes of it"

    def _look_at_holders(self, state: HostState, name: str, parent: int) -> None:
        way = [*_way(state, parent, _trainers(state))]
        if name in self._holders and state.takes_over and state.renewed.isdisjoint(way):
            return
        now = [_values(state.nodes[number].content) for number in way]
        if not alike(self._holders.setdefault(name, now), now):
            self.found[name] = "what leads to it changes while training runs"


def _is_of_python(obj: Any) -> bool:
    return type(obj).__module__.partition(".")[0] in sys.stdlib_module_names


def _way(state: HostState, start: int, trainers: set[int]) -> Iterator[int]:
    """Yield the objects that lead to a node, itself included, up to the variable, namespace or trainer."""
    number = start
    tells = False
    while number >= 0 and state.nodes[number].kind not in _VARIABLES and not _is_namespace(state.nodes[number].obj):
        obj = state.nodes[number].obj
        if tells and id(obj) in trainers:
            return
        tells = tells or (bool(trainers) and _says_how_it_is_pickled(obj))
        yield number
        number = state.nodes[number].parent


def _told(state: HostState, start: int, asked: dict[int, bytes | None]) -> bytes | None:
    """Return a digest of what the nearest holder that is written down as bytes tells of itself; None if there is none.

    `asked`: what holders have told at this boundary, by their numbers. It can take long to write one down.
    """
    number = start
    while number >= 0 and state.nodes[number].kind not in _VARIABLES:
        if number not in asked:
            asked[number] = by_value.told_as_bytes(state.nodes[number].obj)
        if (told := asked[number]) is not None:
            return told
        number = state.nodes[number].parent
    return None


def _says_how_it_is_pickled(obj: Any) -> bool:
    own = (getattr(type(obj), name, None) is not getattr(object, name, None) for name in _PICKLED_BY)
    return any(own) and by_value.pickles(obj)


def _trainers(state: HostState) -> set[int]:
    """Return the ids of the objects whose methods the script's functions around the step are."""
    found = set()
    for number in range(len(state.nodes)):
        node = state.nodes[number]
        if node.kind is not Kind.FRAME:
            break  # they are the first of a walk
        code = node.obj.f_code
        owner = node.content.get(code.co_varnames[0]) if code.co_argcount else None
        if hasattr(type(owner), code.co_name):
            found.add(id(owner))
    return found


def _is_namespace(obj: Any) -> bool:
    cls = type(obj)
    return (cls.__module__, cls.__qualname__) in _NAMESPACES


def _values(content: Any) -> Any:
    """Return the numbers, strings and the like that the content holds."""
    if type(content) is dict:
        return {key: value for key, value in content.items() if kind_of(type(value)) is Kind.PLAIN}
    return [value for value in content if kind_of(type(value)) is Kind.PLAIN] if type(content) is list else None


def _content(array: Any) -> int:
    data = array if array.flags.c_contiguous else array.copy()
    return zlib.crc32(data.reshape(-1).view("u1"))
