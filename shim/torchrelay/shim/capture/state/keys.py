"""Write keys of dicts and elements of sets so that another process finds the same one, or one that is equal to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torchrelay.shim.capture.state import addresses
from torchrelay.shim.capture.state.host_state import Nth
from torchrelay.shim.capture.state.tags import OPAQUE, PARTIAL, TUPLE, VALUE
from torchrelay.shim.capture.values import by_value
from torchrelay.shim.capture.values.base_types import tuple_items
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import Encoder


class Key(NamedTuple):
    """A key that is no plain value. `written`: as `Encoder.value` writes it, with tuples in place of lists."""

    written: tuple[Any, ...]


def is_value(key: Any) -> bool:
    """Return whether a key is written as it is."""
    cls = type(key)
    if cls in PLAIN:
        return cls is not int or not addresses.may_be_one(key)
    if issubclass(cls, frozenset):
        return all(map(is_value, frozenset.__iter__(key)))
    kind = kind_of(cls)
    return kind is Kind.PLAIN or (kind is Kind.TUPLE and all(map(is_value, tuple_items(key))))


def write(encoder: Encoder, key: Any) -> Any:
    """Return the `Key` of what is no value, or None if another process cannot know it. A number of no object is itself."""
    written = _written(encoder, key)
    if type(written) is int:
        return written
    return None if _has_unknown(written) else Key(written)


def by_place(content: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the content of a written dict with places in place of keys that are no values."""
    return {Nth(place) if type(key) is Key else key: value for place, (key, value) in enumerate(content.items())}


def _written(encoder: Encoder, key: Any) -> Any:
    cls = type(key)
    if is_value(key):
        return key if cls in PLAIN or kind_of(cls) is not Kind.TUPLE else _tuple(encoder, key)
    if cls is int:
        return encoder.number(key)
    kind = kind_of(cls)
    if kind is Kind.TUPLE:
        return _tuple(encoder, key)
    if issubclass(cls, frozenset):
        return (TUPLE, cls, tuple(sorted((_written(encoder, part) for part in frozenset.__iter__(key)), key=repr)))
    if kind in (Kind.ATTRS, Kind.OPAQUE, Kind.UNKNOWN) and _has_own_hash(cls):
        # Known by what it is. Its attributes may be filled later than the dict, so it must bring its hash along.
        return _equal_one(key)
    written = encoder.value(key)
    return (OPAQUE, cls.__qualname__) if type(written) is tuple and written[0] in (PARTIAL, OPAQUE) else written


def _has_own_hash(cls: Any) -> bool:
    return cls.__hash__ is not object.__hash__


def _tuple(encoder: Encoder, key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (
        TUPLE,
        None if type(key) is tuple else type(key),
        tuple(_written(encoder, part) for part in tuple_items(key)),
    )


def _equal_one(key: Any) -> tuple[Any, ...]:
    written = by_value.constant(key)
    if written is not None and by_value.is_equal(written, key):
        return (VALUE, written)
    return (OPAQUE, type(key).__qualname__)


def _has_unknown(written: Any) -> bool:
    if type(written) is not tuple:
        return False
    return written[0] == OPAQUE or any(map(_has_unknown, written[2] if written[0] == TUPLE else written[1:]))
