"""Objects in an item beside plain dicts and lists: samples, batches of a tokenizer or a graph library. A step may change them.

`labels = batch.pop("labels")` and `random.shuffle(sample.negatives)` change what the iterator has yielded. A step that is done
again is given such objects themselves, with what they held: whoever else holds one sees it as it was.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import torch

from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.records.after_draw import content_of
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.values.base_types import tuple_items
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of

MOST_OBJECTS = 2000
"""An item that leads to more is given again as it is: looking at it would cost more than most steps."""
_CONTAINERS = frozenset({Kind.LIST, Kind.DICT, Kind.SET, Kind.DEQUE, Kind.BYTEARRAY})


class ObjectOriginal(NamedTuple):
    """What an object held when it was noted."""

    kind: Kind
    obj: Any
    content: Any

    def put_back(self) -> None:
        undo.undo_node(StateNode(self.kind, self.obj, -1, None, self.content))


class ItemObjects(NamedTuple):
    """`objects`: those that are given back in place; `tensors`, `arrays`: what lies in these."""

    objects: list[ObjectOriginal]
    tensors: list[Any]
    arrays: list[Any]


_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
NONE = ItemObjects([], [], [])


def objects_in(item: Any, *, is_within: bool = False, but: Container[int] = ()) -> ItemObjects:
    """Return what an item leads to beside its own plain dicts, lists and tuples, of which each draw makes copies.

    `is_within`: those as well, since nobody copies them. `but`: ids of objects that are left out, with what hangs below them.
    """
    objects: list[ObjectOriginal] = []
    tensors: list[Any] = []
    arrays: list[Any] = []
    seen: set[int] = set()
    queue = [(item, is_within)]
    while queue:
        value, is_within = queue.pop()
        cls = type(value)
        if cls in PLAIN or id(value) in seen or id(value) in but:
            continue
        seen.add(id(value))
        if len(seen) > MOST_OBJECTS:
            return NONE
        kind = kind_of(cls)
        if kind is Kind.TUPLE or (cls in (dict, list) and not is_within):
            is_within |= cls not in (tuple, dict, list)  # nobody copies what a named tuple holds
            content = tuple_items(value) if kind is Kind.TUPLE else value
            queue += [(v, is_within) for v in _below(content, is_within=is_within)]
        elif kind is Kind.ATTRS or kind in _CONTAINERS:
            content = content_of(kind, value)
            objects.append(ObjectOriginal(kind, value, content))
            queue += [(v, True) for v in _below(content, is_within=True)]
        elif is_within and kind is Kind.TENSOR:
            tensors.append(value)
        elif is_within and kind is Kind.NDARRAY:
            arrays.append(value)
    return ItemObjects(objects, tensors, arrays)


def _below(content: Any, *, is_within: bool) -> list[Any]:
    """Return what is to be looked at: nothing of long lists of numbers, or of a parameter group's tensors."""
    values = list(content.values()) if isinstance(content, dict) else list(content)
    kinds = {*map(type, values)}
    return [] if kinds <= PLAIN or (kinds <= _TENSORS and not is_within) else values
