"""Tell whether another process, or another draw, has come to the same item."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Container, Iterable
from itertools import islice
from typing import Any, NamedTuple

import torch

from torchrelay.shim.adapters.tensors.storages import unseen
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.base_types import dict_items, fields, list_items, tuple_items
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of

_SAMPLED = 64
"""So many elements of a tensor tell whether it is the same."""
_MARKED = 256
"""So many values of an item are looked at."""


def mark_of(item: Any, state: Container[int] = ()) -> bytes:
    """Return what tells whether an item is the same: forms of its tensors and arrays, some elements of those on the processor.

    Floats of the script's are left out: they may be times. So are numbers and names that objects of its own classes have. Of an
    item of many values the first ones are looked at. `state`: ids of objects that training has and changes. An item with one of
    them in it has no mark: another process is led to it before it is given what that holds.
    """
    digest = hashlib.blake2b(digest_size=8)
    queue = deque([(item, False)])
    left = _MARKED
    while queue and left:
        value, of_object = queue.popleft()
        left -= 1
        cls = type(value)
        if cls not in PLAIN and id(value) in state:
            return b""
        if isinstance(value, torch.Tensor):
            with unseen():
                _mark_tensor(digest, value)
        elif kind_of(cls) is Kind.NDARRAY:
            _mark_array(digest, value)
        elif isinstance(value, (dict, list, tuple)):
            parts = _values_of(value)
            queue.extend((part, of_object) for part in islice(parts, left))
        elif cls in (int, str, bool, bytes):
            digest.update(b"" if of_object else repr(value).encode())
        elif kind_of(cls) is Kind.ATTRS:
            queue.extend((part, True) for part in (fields(value) or {}).values())
    return digest.digest()


class TakenItems(NamedTuple):
    """How far training has taken from something that yields items. `mark`: of all that it has taken, in their order."""

    number: int
    mark: bytes

    def after(self, item: Any) -> TakenItems:
        own = item.hex().encode() if type(item) is float else mark_of(item)
        return TakenItems(self.number + 1, hashlib.blake2b(self.mark + own, digest_size=8).digest())


def _values_of(container: Any) -> Iterable[Any]:
    if isinstance(container, dict):
        return dict_items(container).values()
    return list_items(container) if isinstance(container, list) else tuple_items(container)


def _mark_tensor(digest: Any, value: torch.Tensor) -> None:
    digest.update(repr((value.dtype, tuple(value.shape))).encode())
    if type(value) is torch.Tensor and value.device.type == "cpu" and value.is_contiguous():
        elements = value.detach().view(-1)
        digest.update(small.take(elements[:: 1 + len(elements) // _SAMPLED].clone()).data)


def _mark_array(digest: Any, value: Any) -> None:
    digest.update(repr((value.dtype.str, value.shape)).encode())
    if value.dtype.kind in "biufc" and value.flags.c_contiguous:
        elements = value.reshape(-1)
        digest.update(elements[:: 1 + len(elements) // _SAMPLED].tobytes())
