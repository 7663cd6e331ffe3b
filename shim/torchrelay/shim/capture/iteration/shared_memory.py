"""Carry numbers in shared memory that decide what a data loader yields, such as the counter of an object that collates.

Worker processes write to them at their own pace, ahead of the batch that is in use. So what they hold at a boundary says nothing,
and must not be put back while the workers live. It is recorded when an iterator is made, before its workers begin.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Any

from torchrelay.shim.adapters.cpython import shared_values
from torchrelay.shim.capture.state.host_state import Deep
from torchrelay.shim.capture.state.parts import random_in_loader
from torchrelay.shim.capture.state.random_below import follow, random_below
from torchrelay.shim.capture.values.kinds import Kind, kind_of

Content = tuple[tuple[tuple[Any, ...], bytes], ...]
"""Bytes of numbers, each with the way to it from the loader."""
_of_iterators: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
"""By iterator, the numbers that its workers may write to. Most scripts have none, and their steps need not look."""


def below(loader: Any) -> dict[Deep, Any]:
    """Return the numbers of the data set and of the object that collates, by the way from the loader."""
    found = random_below(loader.dataset, "dataset") | random_in_loader(loader)
    return {way: value for way, value in found.items() if kind_of(type(value)) is Kind.SHARED_VALUE}


def content(found: Mapping[Deep, Any]) -> Content:
    """Return what the numbers hold that `below` has found."""
    return tuple((way.steps, shared_values.content(value)) for way, value in found.items())


def begins(iterator: Any, values: Collection[Any]) -> None:
    """Note that an iterator is made whose workers, if it is to have any, may write to these numbers."""
    if values:
        _of_iterators[iterator] = [*values]


def put(loader: Any, content: Content) -> None:
    """Put the numbers back. Raises LookupError, AttributeError, TypeError or ValueError where something else is there."""
    for steps, data in content:
        shared_values.put(follow(loader, Deep(tuple(steps))), data)


def state_of(value: Any) -> bytes | None:
    """Return what the number holds; None while worker processes may be writing to it."""
    return None if _is_of_workers(value) else shared_values.content(value)


def put_state(value: Any, state: bytes | None) -> None:
    """Put a number back to what `state_of` has returned. Raises ValueError where that does not fit."""
    if state is not None and not _is_of_workers(value):
        shared_values.put(value, state)


def _is_of_workers(value: Any) -> bool:
    """Return whether worker processes of some iterator may be writing to the number."""
    return any(
        value is found
        for iterator, values in _of_iterators.items()
        if getattr(iterator, "_num_workers", 0) and not getattr(iterator, "_shutdown", True)
        for found in values
    )
