"""The one place where messages of a peer are checked before anything is done about them: ranges, lengths, counts.

A message that passes is still a peer's word. But no number in it overflows a sum or a message of ours, and none makes a list of
a million.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import Message

from torchrelay.protocol import messages
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.names import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES
from torchrelay.protocol.transport.convert import from_proto
from torchrelay.protocol.transport.wire import field_types
from torchrelay.protocol.words.positions import StandingPosition

MOST_RANKS = 1 << 17
MOST_GENERATIONS = 1 << 31
MOST_STEPS = 1 << 53
MOST_SECONDS = 1e10
MOST_SIZE_BYTES = 1 << 45
"""Of what one process holds."""
_INT64 = 1 << 63
_NONE_YET = -1

NAME_CHARS = 1 << 12
WORDS_CHARS = 1 << 16
TEXT_CHARS = 1 << 22
MOST_PROCESSES = 1 << 12
"""Of one machine or pod."""
MOST_ITEMS = 1 << 14
MOST_TENSORS = 1 << 20

_POSITIONS = frozenset(map(str, StandingPosition))
_RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("rank", "node_rank"), (_NONE_YET, MOST_RANKS)),
    "world_size": (1, MOST_RANKS),
    **dict.fromkeys(("generation", "in_force", "epoch"), (_NONE_YET, MOST_GENERATIONS)),
    **dict.fromkeys(("boundary", "at_boundary", "gates_passed", "since", "step"), (_NONE_YET, MOST_STEPS)),
    **dict.fromkeys(("steps_redone", "log_length", "copy_every"), (0, MOST_STEPS)),
    **dict.fromkeys(("port", "store_port", "copies_port"), (0, 65_535)),
    **dict.fromkeys(("done_bytes", "total_bytes"), (0, MOST_SIZE_BYTES)),
    "pid": (0, 1 << 31),
    "signal": (0, 255),
    "spares": (0, MOST_PROCESSES),
}
"""Of whole numbers, by the field's name; any other one may be whatever the wire takes."""

_NAMES = (
    *("worker", "node", "host", "store_host", "session", "token", "job", "candidate", "in_place_of", "kind", "device"),
    *("name", "backend", "torch_version", "python_version", "sha256", "motion", "source", "position", "subject"),
)
_LENGTHS: dict[str, int] = {
    **dict.fromkeys(
        _NAMES,
        NAME_CHARS,
    ),
    **dict.fromkeys(("ddp_layout", "message", "gpus"), TEXT_CHARS),
}
_COUNTS: dict[str, int] = {
    **dict.fromkeys(("workers",), MOST_PROCESSES),
    **dict.fromkeys(
        ("digests", "small", "ddp_paths", "late", "not_averaged", "carried", "own", "derived", "fresh", "renamed"),
        MOST_TENSORS,
    ),
}
_MOST_BYTES: dict[type, int] = {
    **dict.fromkeys((messages.JournalContent, messages.KeptCopies, messages.CheckpointFile), MAX_MESSAGE_BYTES),
    messages.FromWorker: 2 * MAX_FRAME_BYTES,
}
"""Of what carries journals and files, and of what comes from a process, by the frame that it comes in."""
WORDS_BYTES = 8 << 20
"""Of any other message: names, counts, and a launcher's environment for each process of a machine."""
_ANY_NUMBER = ("value", "mean")
"""Losses and gradients may well be infinite, or none."""


def received(packed: Message) -> Any:
    """Return the message of a peer. Raises FrameError if it is not understood, or if no process of ours would send it."""
    message = from_proto(packed)
    most = _MOST_BYTES.get(type(message), WORDS_BYTES)
    if packed.ByteSize() > most:
        raise FrameError(f"{type(message).__name__} has more than {most} bytes")
    check(message)
    return message


def check(message: Any) -> None:
    """Raise FrameError, with the field's name, if no process of ours would send this value."""
    kind: Any = type(message)
    for name, fits in _checks(kind):
        if not fits(getattr(message, name)):
            raise FrameError(f"{type(message).__name__}.{name} is out of range")


@functools.cache
def _checks(cls: Any) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    found = ((name, _fits(name, hint)) for name, hint in field_types(cls).items())
    return tuple((name, fits) for name, fits in found if fits is not None)


def _fits(name: str, hint: Any) -> Callable[[Any], bool] | None:
    """Return a test for values of the field; None if the type alone is enough."""
    if hint is int:
        low, high = _RANGES.get(name, (-_INT64, _INT64 - 1))
        return lambda value: low <= value <= high
    if hint is float:
        return None if name in _ANY_NUMBER else lambda value: math.isfinite(value) and abs(value) <= MOST_SECONDS
    if hint is str:
        most = _LENGTHS.get(name, WORDS_CHARS)
        if name == "position":
            return lambda value: value in _POSITIONS
        return lambda value: len(value) <= most
    if isinstance(hint, types.UnionType) or dataclasses.is_dataclass(hint):
        return _passes
    count = _COUNTS.get(name, MOST_ITEMS)
    if typing.get_origin(hint) is dict:
        return functools.partial(_fits_mapping, count)
    if typing.get_origin(hint) is tuple:
        of = typing.get_args(hint)[0]
        item = _passes if dataclasses.is_dataclass(of) else _fits(name, of)
        return lambda values: len(values) <= count and (item is None or all(map(item, values)))
    return None


def _passes(message: Any) -> bool:
    check(message)
    return True


def _fits_mapping(count: int, values: Mapping[Any, Any]) -> bool:
    return len(values) <= count and all(_is_small(key) and _is_small(value) for key, value in values.items())


def _is_small(value: Any) -> bool:
    """Return whether a part of a mapping is small: a number of limited size, a short text. The message as a whole limits bytes."""
    if isinstance(value, str):
        return len(value) <= WORDS_CHARS
    return not isinstance(value, int) or _NONE_YET <= value <= MOST_STEPS
