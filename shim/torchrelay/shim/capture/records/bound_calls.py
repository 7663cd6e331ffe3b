"""Decode methods and partial functions that the script holds: return the one that is there, if it means the same, else make one."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torchrelay.shim.capture.values.base_types import tuple_items
from torchrelay.shim.capture.values.kinds import PLAIN
from torchrelay.shim.capture.values.replay_point import ABSENT

_BOUND = (types.MethodType, types.BuiltinFunctionType)
Decode = Callable[[Any, Any], Any]
"""A function such as StateRebuild.decode."""


def method(decode: Decode, known: dict[tuple[int, str], Any], value: tuple[Any, ...], there: Any) -> Any:
    """Return the recorded method; ABSENT where its object is not carried.

    `known`: methods that were made, one for all its holders.
    """
    _, owner, name = value
    own = there.__self__ if isinstance(there, _BOUND) else ABSENT
    first = decode(owner, own)
    if first is ABSENT:
        return ABSENT
    if own is first and _name(there) == name:
        return there
    # One method for all that hold it: lightning copies what it logs with, and knows by identity what not to copy.
    return known.setdefault((id(first), name), getattr(first, name, ABSENT))


def partial(decode: Decode, value: tuple[Any, ...], there: Any) -> Any:
    """Return the recorded partial function; ABSENT where its function or an argument is not carried."""
    _, function, arguments, keywords = value
    own: Any = there if type(there) is functools.partial else functools.partial(_nothing)
    olds = own.args if len(own.args) == len(arguments) else [ABSENT] * len(arguments)
    first = decode(function, own.func if own is there else ABSENT)
    args = tuple(decode(v, old) for v, old in zip(arguments, olds))
    named = {k: decode(v, own.keywords.get(k, ABSENT)) for k, v in keywords.items()}
    if any(v is ABSENT for v in (first, *args, *named.values())):
        return ABSENT
    same = first is own.func and _alike(args, own.args) and [*named] == [*own.keywords]
    if same and _alike(tuple(named.values()), tuple(own.keywords.values())):
        return own
    return functools.partial(first, *args, **named)


def _name(bound: Any) -> str:
    """Return the name by which an object gives this method."""
    return str(getattr(bound, "__func__", bound).__name__)


def _nothing() -> None: ...


def _alike(made: tuple[Any, ...], there: tuple[Any, ...]) -> bool:
    made = tuple_items(made)
    there = tuple_items(there)
    plain = [type(a) is type(b) and type(a) in PLAIN and a == b for a, b in zip(made, there)]
    return len(made) == len(there) and all(a is b or same for a, b, same in zip(made, there, plain))
