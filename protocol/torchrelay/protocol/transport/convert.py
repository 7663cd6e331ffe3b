"""The one conversion between the dataclasses of `messages` and the protocol buffers of relay.proto.

A dataclass and its protobuf have the same name and fields, so the conversion reads both and needs no code per message.
A union (`FromAgent`, `ToAgent`, `ShimReport`, `ShimOrder`) is a protobuf with the `oneof` "kind".
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from torchrelay.protocol import messages, relay_pb2
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.transport.wire import field_types, member_name

P = TypeVar("P", bound=Message)

UNIONS = ("ShimReport", "ShimOrder", "FromAgent", "ToAgent")
_ONEOF = "kind"


@functools.cache
def _union_members(union: str) -> dict[str, type]:
    return {member_name(c.__name__): c for c in typing.get_args(getattr(messages, union))}


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType)


def to_proto(message: Any) -> Any:
    """Return the protobuf of the same name. Raises FrameError for a value that does not fit, such as an integer of 65 bits."""
    target = getattr(relay_pb2, type(message).__name__)()
    _fill(target, message)
    return target


def wrap(envelope: type[P], message: Any) -> P:
    """Put `message` into a union's protobuf: `wrap(relay_pb2.FromAgent, Progress(...))`. Raises FrameError."""
    target = envelope()
    _fill_member(target, message)
    return target


def from_proto(source: Message) -> Any:
    """Return the dataclass of the same name; for a union's protobuf, its member. Raises FrameError if a union is empty."""
    name = source.DESCRIPTOR.name
    if name in UNIONS:
        member = source.WhichOneof(_ONEOF)
        if member is None:
            raise FrameError(f"{name} holds no message that this version knows")
        return _read(_union_members(name)[member], getattr(source, member))
    return _read(getattr(messages, name), source)


def _fill_member(target: Any, message: Any) -> None:
    union = target.DESCRIPTOR.name
    member = member_name(type(message).__name__)
    if _union_members(union).get(member) is not type(message):
        raise FrameError(f"{type(message).__name__} is no member of {union}")
    inner = getattr(target, member)
    inner.SetInParent()
    _fill(inner, message)


def _fill(target: Any, message: Any) -> None:
    cls: Any = type(message)
    for name, hint in field_types(cls).items():
        value = getattr(message, name)
        try:
            _fill_field(target, name, hint, value)
        except (TypeError, ValueError) as e:
            raise FrameError(f"{type(message).__name__}.{name} cannot be sent: {e}") from e


def _fill_field(target: Any, name: str, hint: Any, value: Any) -> None:
    if _is_union(hint):
        _fill_member(getattr(target, name), value)
    elif dataclasses.is_dataclass(hint):
        getattr(target, name).SetInParent()
        _fill(getattr(target, name), value)
    elif typing.get_origin(hint) is dict:
        getattr(target, name).update({_scalar(k): _scalar(v) for k, v in value.items()})
    elif typing.get_origin(hint) is tuple:
        if dataclasses.is_dataclass(typing.get_args(hint)[0]):
            for item in value:
                _fill(getattr(target, name).add(), item)
        else:
            getattr(target, name).extend(_scalar(v) for v in value)
    else:
        setattr(target, name, _scalar(value))


def _scalar(value: Any) -> Any:
    # Python's text may hold undecodable bytes of a file name or a message as lone surrogates; protobuf's may not.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _read(cls: Any, source: Any) -> Any:
    return cls(*[getattr(source, n) if read is None else read(getattr(source, n)) for n, read in _readers(cls)])


@functools.cache
def _readers(cls: Any) -> tuple[tuple[str, Callable[[Any], Any] | None], ...]:
    """Return for each field, in the order of the class, a function that converts its protobuf value; None if it needs none."""
    return tuple((name, _reader(hint)) for name, hint in field_types(cls).items())


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    if _is_union(hint):
        return from_proto
    if dataclasses.is_dataclass(hint):
        return functools.partial(_read, hint)
    if typing.get_origin(hint) is dict:
        return dict
    if typing.get_origin(hint) is tuple:
        item: Any = typing.get_args(hint)[0]
        return functools.partial(_read_each, item) if dataclasses.is_dataclass(item) else tuple
    return None


def _read_each(item: Any, values: Any) -> tuple[Any, ...]:
    return tuple(_read(item, value) for value in values)
