"""An item that an iterator has yielded, kept so that it can be yielded again as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrelay.shim.adapters.tensors.storages import unseen
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.data.batch_originals import Original, originals_of
from torchrelay.shim.data.item_objects import ObjectOriginal, objects_in

_TENSORS_ALONE = {torch.Tensor}


def copy_structure(item: Any, originals: dict[int, Any] | None) -> Any:
    """Return the item with containers of its own: a step may put moved tensors into the dict that it was given.

    `originals`: gets the container that each copy was made of, by the copy's id.
    """
    made = item
    if type(item) is dict:
        made = {k: copy_structure(v, originals) for k, v in item.items()}
    elif type(item) in (list, tuple):
        made = type(item)(copy_structure(v, originals) for v in item)
    if originals is not None and type(item) in (dict, list):
        originals[id(made)] = item
    return made


def tensors_in(item: Any) -> list[torch.Tensor]:
    if isinstance(item, torch.Tensor):
        return [item]
    if isinstance(item, dict):
        item = list(item.values())
    return [t for v in item for t in tensors_in(v)] if isinstance(item, (list, tuple)) else []


def arrays_in(item: Any) -> list[Any]:
    """Return the arrays of numpy in an item. numpy need not be there."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, (list, tuple)):
        return [array for value in item for array in arrays_in(value)]
    return [item] if kind_of(type(item)) is Kind.NDARRAY else []


class Over(tuple[Any, ...]):
    """Stands for the end of an iterator, with what its StopIteration said."""

    __slots__ = ()

    def __new__(cls, *said: Any) -> Over:
        return super().__new__(cls, said)


@dataclass
class ReplayedItem:
    """One item of an iterator, the generators after it was drawn, and what else drawing it has changed."""

    item: Any
    after: rng.RngState
    tensors: list[Any] = field(default_factory=list)
    """Tensors and arrays in the item as they were, as `originals_of` has them."""
    effects: tuple[Callable[[], None], ...] = ()
    originals: dict[int, Any] = field(default_factory=dict)
    objects: list[ObjectOriginal] = field(default_factory=list)
    """Of its own classes, and containers in them: they are given again themselves."""

    @classmethod
    def note(cls, item: Any, after: rng.RngState | None = None, *, copy: bool = False) -> ReplayedItem:
        """Return the item and how it is now.

        `copy`: whether tensors of every size are copied, for a step that writes into its batch.
        """
        with unseen():
            return cls._noted(item, after or rng.capture(), copy=copy)

    @classmethod
    def _noted(cls, item: Any, after: rng.RngState, *, copy: bool) -> ReplayedItem:
        originals: dict[int, Any] = {}
        if type(item) in (list, tuple) and {*map(type, item)} == _TENSORS_ALONE:  # a batch of most loaders
            kept = item
            if type(item) is list:
                kept = item[:]
                originals[id(kept)] = item
            return cls(kept, after, originals_of(item, (), copy=copy), (), originals)
        kept = copy_structure(item, originals)
        within = objects_in(kept)
        tensors = {id(tensor): tensor for tensor in (*tensors_in(kept), *within.tensors)}
        arrays = {id(array): array for array in (*arrays_in(kept), *within.arrays)}
        found = originals_of([*tensors.values()], [*arrays.values()], copy=copy)
        return cls(kept, after, found, (), originals, within.objects)

    def again(self, is_state: Callable[[Any], bool]) -> Any:
        """Return the item as it was.

        `is_state`: of a container that was put back in its place, such as an optimizer's group, which a step has to be given
        itself.
        """
        return self._again(self.item, is_state)

    def _again(self, kept: Any, is_state: Callable[[Any], bool]) -> Any:
        original = self.originals.get(id(kept))
        if original is not None and is_state(original):
            return original
        if type(kept) is dict:
            return {k: self._again(v, is_state) for k, v in kept.items()}
        if type(kept) in (list, tuple):
            return type(kept)(self._again(v, is_state) for v in kept)
        return kept

    def check(self, is_state: Callable[[Any], bool]) -> None:
        """Raise StateMismatchError if the item cannot be given again as it was."""
        for original in self.tensors:
            if isinstance(original, Original) and not original.can_be_put_back() and not is_state(original.tensor):
                with unseen():
                    original.put_back()

    def put_back(self, is_state: Callable[[Any], bool]) -> None:
        """Put the content of its tensors and objects back, but for those that are state: these go back as such.

        Raises as `check` does.
        """
        with unseen():
            for held in self.objects:
                if not is_state(held.obj):
                    held.put_back()
            for original in self.tensors:
                if not (isinstance(original, Original) and is_state(original.tensor)):
                    original.put_back()
