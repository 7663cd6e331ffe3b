"""Read and write containers and attributes by the base type's own methods, never by those of the object's class.

A subclass may forbid a method (`update` of transformers' ModelOutput), count its calls, or keep something beside its items that the
method would write to as well: that is state by itself. Only the stored items are read and written here.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Mapping
from operator import is_
from types import BuiltinFunctionType, MappingProxyType, WrapperDescriptorType
from typing import Any

_ORDERED = collections.OrderedDict
_SIZED = (tuple, list, dict, set, frozenset, collections.deque)
_MISSING = object()
_POINTER_BYTES = tuple.__itemsize__


def dict_items(obj: Any) -> dict[Any, Any]:
    """Return a shallow copy of a dict's items, in its own order."""
    cls = type(obj)
    if cls is dict:
        return dict(obj)
    if issubclass(cls, _ORDERED):
        return {key: dict.__getitem__(obj, key) for key in _ORDERED.__iter__(obj)}
    return dict(dict.items(obj))


def put_dict_items(obj: Any, items: Mapping[Any, Any]) -> None:
    """Let a dict hold these items, in this order. Where it has the same keys already, a running iteration over it may go on."""
    set_item = _ORDERED.__setitem__ if issubclass(type(obj), _ORDERED) else dict.__setitem__
    if _are_the_same_keys(dict_items(obj), items):
        for key, value in items.items():
            if dict.__getitem__(obj, key) is not value:
                set_item(obj, key, value)
        return
    if issubclass(type(obj), _ORDERED):  # it keeps its order beside the items
        _ORDERED.clear(obj)
        for key, value in items.items():
            _ORDERED.__setitem__(obj, key, value)
        return
    dict.clear(obj)
    dict.update(obj, items)


def _are_the_same_keys(mine: Mapping[Any, Any], others: Mapping[Any, Any]) -> bool:
    """Return whether the keys are the same, in the same order. Keys of the script's own classes are not asked."""
    pairs = zip(mine, others)
    return len(mine) == len(others) and all(a is b or (type(a) is type(b) is str and a == b) for a, b in pairs)


def length_of(obj: Any) -> int:
    """Return how many items a container has, whatever its class says of `len`."""
    cls = type(obj)
    if cls in _SIZED:
        return len(obj)
    base: Any = next((base for base in _SIZED if issubclass(cls, base)), None)
    return len(obj) if base is None else int(base.__len__(obj))


def get_item(obj: Any, key: Any, default: Any) -> Any:
    """Return an item of a dict."""
    return dict.get(obj, key, default)


def list_items(obj: Any) -> list[Any]:
    items: list[Any] = list.__getitem__(obj, slice(None))
    return items


def put_list_items(obj: Any, items: Iterable[Any]) -> None:
    list.__setitem__(obj, slice(None), items)


def tuple_items(obj: Any) -> tuple[Any, ...]:
    items: tuple[Any, ...] = tuple.__getitem__(obj, slice(None))
    return items


def set_items(obj: Any) -> set[Any]:
    return {*set.__iter__(obj)}


def put_set_items(obj: Any, items: Iterable[Any]) -> None:
    set.clear(obj)
    set.update(obj, items)


def deque_items(obj: Any) -> list[Any]:
    return [*collections.deque.__iter__(obj)]


def put_deque_items(obj: Any, items: Iterable[Any]) -> None:
    collections.deque.clear(obj)
    collections.deque.extend(obj, items)


def fields(obj: Any) -> dict[str, Any] | None:
    """Return the dict that holds an object's attributes, whatever its class says of `__dict__`; None if it has none.

    Of a `threading.local` it is that of the calling thread.
    """
    try:
        found = _attribute_of(type(obj))(obj, "__dict__")
    except AttributeError:
        return None
    return found if type(found) is dict else None


def file_of(module: Any) -> str | None:
    """Return the file of a module, None if it does not say. The module is not asked: a lazy one would import what it stands for."""
    return (fields(module) or {}).get("__file__")


_attributes_of: dict[type, Any] = {}


def _attribute_of(cls: type) -> Any:
    """Return how attributes are read, past what is written in Python. A base in C may keep them elsewhere than `object` does."""
    known = _attributes_of.get(cls)
    if known is None:
        found = (vars(base).get("__getattribute__") for base in cls.__mro__)
        known = next(method for method in found if isinstance(method, WrapperDescriptorType))
        _attributes_of[cls] = known
    return known


def maker_of(cls: type) -> type | None:
    """Return the nearest base in C, by whose `__new__` an object is made; None if it keeps more of an object than its attributes.

    Nothing has written down what such a base keeps in memory of its own. For a `threading.local` that is attributes.
    """
    base = next(base for base in cls.__mro__ if isinstance(vars(base).get("__new__"), BuiltinFunctionType))
    known = object.__basicsize__ + _POINTER_BYTES * ((base.__dictoffset__ > 0) + (base.__weakrefoffset__ > 0))
    return base if base is threading.local or (base.__basicsize__ == known and not base.__itemsize__) else None


def make_object(cls: type, args: tuple[Any, ...] = (), named: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Make an object without attributes, past its class's own `__new__`. Returns None where it cannot be made so.

    `args`, `named`: for what a base in C keeps of them.
    """
    base: Any = maker_of(cls)
    try:
        return None if base is None else base.__new__(cls, *args, **named)
    except TypeError:  # of a class that is made by its own functions alone
        return None


def make_by_its_class(cls: Any) -> Any:
    """Make an object without attributes by its class's own `__new__`, as `copy` and `pickle` do. Returns None where it makes none.

    A class may note there what all its objects use, such as a lock, when its first one is made.
    """
    new = next(vars(base)["__new__"] for base in cls.__mro__ if "__new__" in vars(base))
    if not isinstance(new, staticmethod):  # it is one of C, which notes nothing
        return None
    try:
        made = cls.__new__(cls)
    except Exception:  # noqa: BLE001 - whatever the class asks for: the object is made past it
        return None
    return made if type(made) is cls and not fields(made) else None


def slot_names(cls: type) -> list[tuple[type, str]]:
    """Return the names of attributes in slots, each with the class that defines it."""
    found = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{name}"
            found.append((base, name))
    return found


def slot_value(base: type, name: str, obj: Any, default: Any = _MISSING) -> Any:
    """Return the value of a slot. Raises AttributeError where it holds nothing, unless there is a default."""
    descriptor = vars(base).get(name)
    try:
        if descriptor is None:
            raise AttributeError(name)
        return descriptor.__get__(obj, type(obj))
    except AttributeError:
        if default is _MISSING:
            raise
        return default


_CONTAINERS: tuple[type, ...] = (
    _ORDERED, collections.defaultdict, collections.deque, dict, list, set, bytearray,
)  # fmt: skip


def make_empty(cls: type) -> Any:
    """Make a container of this class, past its own `__new__` and `__init__`, which may require arguments."""
    base: Any = next(base for base in _CONTAINERS if issubclass(cls, base))
    return base.__new__(cls)


def same_elements(there: Any, items: list[Any]) -> bool:
    """Return whether a tuple, or a frozenset in any order, holds these objects."""
    if isinstance(there, tuple):
        return len(tuple_items(there)) == len(items) and all(map(is_, tuple_items(there), items))
    return {*map(id, frozenset.__iter__(there))} == {*map(id, items)}


def make_tuple(cls: Any, items: list[Any]) -> Any:
    """Make a tuple, or a frozenset, of this class."""
    if issubclass(cls, frozenset):
        return frozenset.__new__(cls, items)
    if hasattr(cls, "n_sequence_fields"):  # `time.struct_time` and the like have a `__new__` of their own in C
        return cls(items)
    return tuple.__new__(cls, items)
