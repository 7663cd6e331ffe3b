"""An item that an iterator has yielded, kept so that it can be yielded again as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrelay.shim.adapters.tensor_versions import version_of, versions_of
from torchrelay.shim.capture import rng

_TENSORS_ALONE = {torch.Tensor}


def copy_structure(item: Any, originals: dict[int, Any] | None = None) -> Any:
    """The item with containers of its own: a step may put moved tensors into the dict that it was given.

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


def _versions(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """None in inference mode: no training loop runs in it, so nobody asks, and the content of each batch would have to be read."""
    return [] if torch.is_inference_mode_enabled() else [*zip(tensors, versions_of(tensors))]


class Over(tuple[Any, ...]):
    """Stands for the end of an iterator, with what its StopIteration said."""

    __slots__ = ()

    def __new__(cls, *said: Any) -> Over:
        return super().__new__(cls, said)


@dataclass
class Drawn:
    """One item of an iterator, the generators after it was drawn, and what else drawing it has changed."""

    item: Any
    after: rng.RngState
    versions: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    effects: tuple[Callable[[], None], ...] = ()
    originals: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def note(cls, item: Any, after: rng.RngState | None = None) -> Drawn:
        originals: dict[int, Any] = {}
        if type(item) in (list, tuple) and {*map(type, item)} == _TENSORS_ALONE:  # a batch of most loaders
            kept = item
            if type(item) is list:
                kept = item[:]
                originals[id(kept)] = item
            return cls(kept, after or rng.capture(), _versions(item), (), originals)
        kept = copy_structure(item, originals)
        return cls(kept, after or rng.capture(), _versions(tensors_in(kept)), (), originals)

    def again(self, is_state: Callable[[Any], bool]) -> Any:
        """The item as it was. `is_state`: of a container that was put back in its place, such as an optimizer's group, which a
        step has to be given itself."""
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

    def untouched(self) -> bool:
        return all(version_of(t) == version for t, version in self.versions)
