"""Carry objects by value where nothing better is known of them: whatever pickles, and fresh locks where locks were.

That is for objects that set-up may not have made in another process: patterns, loggers, schemas, types of numpy, modules, the
standard streams.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import importlib
import io
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, MutableSequence
from types import ModuleType
from typing import Any

import torch

MOST_BYTES = 64 << 10
_MOST_KEPT = 4096
_MOST_DIGESTED_BYTES = 64 << 20
_ELSEWHERE = frozenset(
    {"asyncio", "concurrent", "io", "_io", "mlflow", "multiprocessing", "select", "selectors", "socket", "ssl"}
    | {"subprocess", "tempfile", "tensorboard", "torchrelay", "wandb", "zipfile"}
)
"""What these modules' objects stand for is elsewhere: a copy of the object would be none of it. So it is
with torch's, but for enums."""


_LOCKS: dict[type, Any] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    threading.Condition: threading.Condition,
    threading.Event: threading.Event,
}
"""Nobody holds them at the head of a step."""


_STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")


def is_standard_stream(obj: Any) -> bool:
    """Return whether each process has such a stream of its own under the same name."""
    return isinstance(obj, io.IOBase) and any(getattr(sys, name, None) is obj for name in _STREAMS)


def is_importable(named: Any) -> bool:
    """Return whether another process that imports the same modules finds this function or class by its name."""
    try:
        return pickle.loads(pickle.dumps(named)) is named
    except (pickle.PickleError, AttributeError, ImportError, TypeError):
        return False


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if is_standard_stream(obj):
            return getattr, (sys, next(name for name in _STREAMS if getattr(sys, name, None) is obj))
        if issubclass(type(obj), ModuleType):
            name = getattr(obj, "__name__", None)
            if name is None or sys.modules.get(name) is not obj:
                raise pickle.PicklingError("a module that is not imported under its name")
            return importlib.import_module, (name,)
        if isinstance(obj, type):
            return _elsewhere_named(obj) or NotImplemented
        return _member(obj) or NotImplemented

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, (torch.Tensor, torch.nn.Module)):
            raise pickle.PicklingError("a tensor or a model is no value")
        return None


_Named = tuple[Callable[..., Any], tuple[Any, str]]
"""How an attribute is had by its name."""
_by_other_names: weakref.WeakKeyDictionary[type, _Named | None] = weakref.WeakKeyDictionary()


def _elsewhere_named(cls: type) -> _Named | None:
    """Return how to get a class that its package has, but not where the class says; None for any other one."""
    if cls not in _by_other_names:
        _by_other_names[cls] = None if is_importable(cls) else _found_in_package(cls)
    return _by_other_names[cls]


def _found_in_package(cls: type) -> _Named | None:
    root = (cls.__module__ or "").partition(".")[0]
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] == root and issubclass(type(module), ModuleType):
            for own, value in [*vars(module).items()]:
                if value is cls:
                    return getattr, (module, own)
    return None


def _member(obj: Any) -> _Named | None:
    """Return how to get a member of an extension's enum, which is one object in each process; None for anything else."""
    cls = type(obj)
    if isinstance(obj, enum.Enum) or "__members__" not in vars(cls):
        return None
    name = getattr(obj, "name", None)
    return (getattr, (cls, name)) if type(name) is str and getattr(cls, name, None) is obj else None


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise OverflowError("too large for a value")
        return super().write(data)


_kept: dict[int, tuple[Any, bytes]] = {}
"""What was written of objects that nothing changes, by id, each with its object, so that the id stays its own."""
_not_values: set[type] = set()


def dumps(obj: Any) -> bytes | None:
    """Pickle the object. Returns None where it cannot be pickled, or is large."""
    written = _Limited()
    try:
        _Pickler(written, pickle.HIGHEST_PROTOCOL).dump(obj)
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return None
    return written.getvalue()


def put_back(obj: Any, written: bytes) -> None:
    """Give an object the content that was pickled of it, where its class has a way: a sequence's elements, pickle's own, or a
    number's attributes.
    """
    with contextlib.suppress(Exception):  # whatever its class does: whether it is as it was is asked afterwards
        made = pickle.loads(written)
        if isinstance(obj, MutableSequence):
            obj[:] = made
        elif hasattr(type(obj), "__setstate__"):
            _, _, *state = made.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            if state and state[0] is not None:
                obj.__setstate__(state[0])
            else:
                _put_attributes_in_c(obj, made)
        elif isinstance(obj, (int, float, str, bytes, complex)):
            object.__setattr__(obj, "__dict__", vars(made))


def _put_attributes_in_c(obj: Any, made: Any) -> None:
    for base in type(obj).__mro__:
        for name, descriptor in vars(base).items():
            if type(descriptor) in (types.GetSetDescriptorType, types.MemberDescriptorType) and name != "__dict__":
                with contextlib.suppress(AttributeError, TypeError):  # one that is only read
                    setattr(obj, name, getattr(made, name))


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


_pickles: dict[type, bool] = {}


def pickles(obj: Any) -> bool:
    """Return whether the object says by itself what it is, however large that is. One object of each class is asked."""
    cls = type(obj)
    if cls not in _pickles:
        try:
            _Pickler(_Nowhere(), pickle.HIGHEST_PROTOCOL, buffer_callback=lambda _: None).dump(obj)
            _pickles[cls] = True
        except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
            _pickles[cls] = False
    return _pickles[cls]


def told_as_bytes(obj: Any) -> bytes | None:
    """Return a digest of what the object's class tells of it, if bytes are among that which are no attribute of the object.

    So tokenizers write down the model that they keep in C. None for what tells of its attributes alone, as most environments do.
    Numbers among the attributes count as well: an object that counts its steps is another one with each.
    """
    if getattr(type(obj), "__getstate__", None) is getattr(object, "__getstate__", None):
        return None
    try:
        state = obj.__getstate__()
        own = vars(obj)
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return None
    parts = state.values() if type(state) is dict else state if type(state) is tuple else (state,)
    attributes = {*map(id, own.values())}
    if not any(type(part) is bytes and id(part) not in attributes for part in parts):
        return None
    return digest((state, {name: value for name, value in own.items() if type(value) in (bool, int, float, str)}))


def content(obj: Any) -> bytes | None:
    """Return bytes that are the same for two objects that are alike, whichever of their parts are one object.

    None where `dumps` returns None, and where parts form a circle.
    """
    written = _Limited()
    pickler = _Pickler(written, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    try:
        pickler.dump(obj)
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return None
    return written.getvalue()


def is_as_written(obj: Any, written: bytes) -> bool:
    """Return whether an object has the content that `dumps` has written of one, whichever of their parts are one object."""
    if dumps(obj) == written:
        return True
    now = content(obj)
    try:
        return now is not None and now == content(pickle.loads(written))
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return False


class _Digest(io.RawIOBase):
    """Take a digest of what is written. Raises OverflowError once that is much."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._left = _MOST_DIGESTED_BYTES

    def write(self, data: Any) -> int:
        if self._left <= 0:
            raise OverflowError("much of it is written")
        view = memoryview(data).cast("B")
        self.hash.update(view[: self._left])
        self._left -= view.nbytes
        return view.nbytes


def digest(obj: Any) -> bytes:
    """Return a digest that is the same for two objects that are alike; of a large one, of its beginning.

    For an object that does not pickle it is that of what it writes until it fails: its class, most often.
    """
    written = _Digest()
    pickler = _Pickler(written, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    with contextlib.suppress(Exception):  # whatever the script's objects do when they are asked, it goes on
        pickler.dump(obj)
    return written.hash.digest()


def comes_back(written: bytes) -> bool:
    """Return whether another process can make the object of what was written."""
    try:
        pickle.loads(written)
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return False
    return True


def is_equal(written: bytes, obj: Any) -> bool:
    """Return whether a dict that holds `obj` as a key finds it by what another process makes of `written`."""
    try:
        made = pickle.loads(written)
        return hash(made) == hash(obj) and bool(made == obj)
    except Exception:  # noqa: BLE001 - whatever the script's objects do when they are asked, it goes on
        return False


def constant(obj: Any) -> bytes | None:
    """Pickle an object that does not change, or whose changes are no state; None where it is not carried so. Each is asked once."""
    known = _kept.get(id(obj))
    if known is not None:
        return known[1]
    cls = type(obj)
    if is_standard_stream(obj):
        return dumps(obj)
    if never(cls):
        return None
    lock = _LOCKS.get(cls)
    written = pickle.dumps(functools.partial(lock)) if lock is not None else dumps(obj)
    if written is None or not comes_back(written):
        _not_values.add(cls)
        return None
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[id(obj)] = obj, written
    return written


def never(cls: type) -> bool:
    """Return whether no object of this class is carried so."""
    root = (cls.__module__ or "").partition(".")[0]
    return cls in _not_values or root in _ELSEWHERE or (root == "torch" and not hasattr(cls, "__members__"))


def loaded(written: bytes, there: Any) -> Any:
    """Return the object. `there`: what stands in its place; kept if it is of the same value."""
    made = pickle.loads(written)
    if type(made) is functools.partial:  # a lock
        return there if type(there) in _LOCKS else made()
    return there if type(there) is type(made) and dumps(there) == written else made
