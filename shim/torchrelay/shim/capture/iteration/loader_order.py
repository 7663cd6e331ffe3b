"""Find what decides the order of a DataLoader's data: generators, and the samplers' own numbers, such as the epoch.

Leans on the name `_BaseDataLoaderIter`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader

from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.kinds import PLAIN

LoaderIter = dataloader._BaseDataLoaderIter
_loaders: weakref.WeakKeyDictionary[Any, HeldLoader] = weakref.WeakKeyDictionary()
"""By iterator, the loader that has made it."""
Order = tuple[tuple[Any, dict[str, Any]], ...]
"""For a loader, its sampler and its batch sampler: the generator's state and plain attributes."""


class HeldLoader:
    """A loader, for as long as its iterator lives.

    One that keeps its workers holds its iterator. Held in turn, the two would never go, and their workers would run on, where the
    script has dropped both. Where it has dropped the loader alone, another one of the same parts stands for it.
    """

    def __init__(self, loader: Any) -> None:
        self._there = None if getattr(loader, "persistent_workers", False) else loader
        self._weak = weakref.ref(loader)
        self._class = type(loader)
        self._parts = {}
        if self._there is None:
            # An iterator from before that a class of the script's keeps there would live as long as this one.
            self._parts = {n: v for n, v in vars(loader).items() if not isinstance(v, LoaderIter)}

    def get(self) -> Any:
        loader = self._weak() if self._there is None else self._there
        if loader is None:
            loader = self._there = object.__new__(self._class)
            vars(loader).update(self._parts, _iterator=None)
        return loader


def made_by(iterator: Any, loader: Any) -> HeldLoader:
    """Note which loader has made the iterator."""
    _loaders[iterator] = held = HeldLoader(loader)
    return held


def loader_of(iterator: Any, default: Any = None) -> Any:
    """Return the loader that has made the iterator, `default` where that is not known."""
    held = _loaders.get(iterator)
    return default if held is None else held.get()


def owners(loader: Any) -> list[Any]:
    """Return the loader, its samplers, and theirs: accelerate and lightning put samplers around samplers."""
    found = [loader]
    for owner in found:
        below = (getattr(owner, name, None) for name in ("sampler", "batch_sampler"))
        found += [s for s in below if s is not None and not any(s is known for known in found)]
    return found


def plain_fields(obj: Any) -> dict[str, Any]:
    return {name: value for name, value in getattr(obj, "__dict__", {}).items() if type(value) in PLAIN}


def order_of(loader: Any) -> Order:
    found = []
    for owner in owners(loader):
        generator = getattr(owner, "generator", None)
        state = small.take(generator.get_state()) if isinstance(generator, torch.Generator) else None
        found.append((state, plain_fields(owner) if owner is not loader else {}))
    return tuple(found)


def order_generators(loader: Any) -> set[int]:
    """Return the ids of the generators that are part of the order."""
    return {id(getattr(owner, "generator", None)) for owner in owners(loader)}


def order_again(loader: Any) -> Callable[[], None]:
    return functools.partial(set_order, loader, order_of(loader))


def set_order(loader: Any, order: Order) -> None:
    for owner, (state, fields) in zip(owners(loader), order):
        if state is not None:
            owner.generator.set_state(small.build(state))
        if fields:
            vars(owner).update(fields)
