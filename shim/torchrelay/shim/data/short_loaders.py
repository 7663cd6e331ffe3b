"""Cuts torch's data loaders to a few batches, for `torchrelay check`: a whole epoch, and what follows it, is seen in seconds.

`len(loader)` agrees, or a script that acts at the last batch of an epoch would never do so.

Leans on `_BaseDataLoaderIter`: `_next_index`, which asks for the indices of each batch and ends an epoch by StopIteration,
`_reset`, `__next__`, and on `DataLoader.__len__`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from torchrelay.shim.capture.iteration.loader_order import LoaderIter


def _ignore(iterator: Any) -> None:
    pass


def install(batches: int, began: Callable[[Any], None] = _ignore, ended: Callable[[Any], None] = _ignore) -> None:
    """No loader gives more than `batches` from here on. `began` and `ended` are told of each loader's iterator."""
    asked: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    next_index: Callable[[Any], Any] = LoaderIter._next_index
    reset = LoaderIter._reset
    next_batch = LoaderIter.__next__
    length: Callable[[Any], int] = DataLoader.__len__

    @functools.wraps(next_index)
    def _next_index(self: Any) -> Any:
        count = asked.get(self, 0)
        if count >= batches:
            raise StopIteration
        asked[self] = count + 1
        return next_index(self)

    @functools.wraps(reset)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
        asked.pop(self, None)
        reset(self, *args, **kwargs)

    @functools.wraps(next_batch)
    def __next__(self: Any) -> Any:
        if self._num_yielded == 0:
            began(self)
        try:
            return next_batch(self)
        except StopIteration:
            ended(self)
            raise

    @functools.wraps(length)
    def __len__(self: Any) -> int:
        return min(length(self), batches)

    for owner, functions in ((LoaderIter, (_next_index, _reset, __next__)), (DataLoader, (__len__,))):
        for function in functions:
            setattr(owner, function.__name__, function)
