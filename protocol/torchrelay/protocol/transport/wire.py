"""Frames on the unix socket between shim and agent: 4 bytes of length, then one message as JSON."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import re
import socket
import struct
import types
import typing
from typing import Any, TypeVar

from torchrelay.protocol import messages
from torchrelay.protocol.errors import ChannelClosedError, FrameError
from torchrelay.protocol.names import MAX_FRAME_BYTES

M = TypeVar("M")
_LENGTH = struct.Struct("!I")
_INT_LIMIT = 1 << 63
REPORTS: dict[str, type] = {c.__name__: c for c in typing.get_args(messages.ShimReport)}
ORDERS: dict[str, type] = {c.__name__: c for c in typing.get_args(messages.ShimOrder)}


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the resolved type of each field of a message class, by name."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def member_name(class_name: str) -> str:
    """Return the name of a class as a member of a union: `ToWorker` -> `to_worker`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def _typed(hint: Any, value: Any) -> Any:
    origin = typing.get_origin(hint)
    if hint is bytes:
        return base64.b64decode(value, validate=True)
    if origin is dict:
        key, item = typing.get_args(hint)
        return {key(k): _typed(item, v) for k, v in value.items()}
    if origin is tuple:
        if type(value) is not list:
            raise FrameError(f"expected a list, got {type(value).__name__}")
        return tuple(_typed(typing.get_args(hint)[0], v) for v in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    if origin in (typing.Union, types.UnionType):
        raise FrameError(f"a union cannot travel as a field: {hint}")
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise FrameError(f"expected {hint.__name__}, got {type(value).__name__}")
    if hint is int and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise FrameError("an integer of more than 64 bits, which no other part could take")
    return value


def from_plain(cls: Any, values: Any) -> Any:
    """Make a dataclass of plain values from what JSON made of it. Raises FrameError for what does not fit."""
    if type(values) is not dict:
        raise FrameError(f"expected an object, got {type(values).__name__}")
    hints = field_types(cls)
    try:
        return cls(**{k: _typed(hints[k], v) for k, v in values.items()})
    except (KeyError, TypeError) as e:
        raise FrameError(f"not a {cls.__name__} of this version: {e}") from e


def encode(message: Any) -> bytes:
    """Return the message as one frame. Raises FrameError if it would be larger than the other side accepts."""
    body = {"@message": type(message).__name__}
    body.update({f.name: _plain(getattr(message, f.name)) for f in dataclasses.fields(message)})
    data = json.dumps(body, separators=(",", ":")).encode()
    if len(data) > MAX_FRAME_BYTES:
        raise FrameError(
            f"{type(message).__name__} of {len(data)} bytes is larger than a frame may be ({MAX_FRAME_BYTES})"
        )
    return _LENGTH.pack(len(data)) + data


def decode(data: bytes, kinds: dict[str, type]) -> Any:
    """Return the message in `data` (without its length). Raises FrameError for anything that is no message of `kinds`."""
    try:
        body = json.loads(data)
        cls = kinds[body.pop("@message")]
        hints = field_types(cls)
        return cls(**{k: _typed(hints[k], v) for k, v in body.items()})
    except FrameError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise FrameError(f"not a message of this protocol: {type(e).__name__}: {e}") from e


def frame_length(head: bytes) -> int:
    """Return the length of the frame that `head` announces. Raises FrameError if it is too large."""
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes was announced; the limit is {MAX_FRAME_BYTES}")
    return int(length)


HEAD_BYTES = _LENGTH.size


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Receive `size` bytes. Raises ChannelClosedError if the peer ends before."""
    parts = bytearray()
    while len(parts) < size:
        try:
            part = sock.recv(min(size - len(parts), 1 << 20))
        except OSError as e:
            raise ChannelClosedError(f"reading failed: {e}") from e
        if not part:
            raise ChannelClosedError(f"the peer closed after {len(parts)} of {size} bytes")
        parts += part
    return bytes(parts)


def receive(sock: socket.socket, kinds: dict[str, type]) -> Any:
    """Receive the next message of a blocking socket. Raises ChannelClosedError, FrameError."""
    return decode(receive_exactly(sock, frame_length(receive_exactly(sock, HEAD_BYTES))), kinds)
