"""Describe in words what tells two arrays of numpy apart."""

from __future__ import annotations

from typing import Any

from torchrelay.shim.capture.values.alike import alike


def in_words(then: Any, now: Any) -> tuple[str, str]:
    """Return words for each of two arrays that are not alike: its form, and the first element that differs.

    Where their forms differ, each is told by its form alone.
    """
    shown = _form(then), _form(now)
    if shown[0] != shown[1]:
        return shown
    for place, (was, is_now) in enumerate(zip(then.reshape(-1), now.reshape(-1))):
        if not alike(was, is_now):
            where = f"at {[int(axis) for axis in _indices(place, then.shape)]}"
            return f"{shown[0]} with {was} {where}", f"{shown[1]} with {is_now} {where}"
    return shown


def _form(array: Any) -> str:
    return f"an array {list(array.shape)} of {array.dtype}"


def _indices(place: int, shape: tuple[int, ...]) -> list[int]:
    found = []
    for size in reversed(shape):
        place, index = divmod(place, size)
        found.append(index)
    return found[::-1]
