"""Name each tensor once: several trees of modules may have it, such as a model and an average around it."""

from __future__ import annotations

import torch

from torchrelay.shim.adapters.raw_memory.list_pointers import pointers

Named = list[tuple[str, torch.Tensor]]


class NamedOnce:
    """Returns the same lists as long as it is given the same ones: others keep what they know of a list."""

    def __init__(self) -> None:
        self._given: list[Named] = []
        self._left: list[Named] = []

    def of(self, trees: list[Named]) -> list[Named]:
        """Return the named tensors of each tree without those that an earlier one has."""
        if pointers(trees) != pointers(self._given):
            self._given = trees
            self._left = _without_repeated(trees)
        return self._left


def _without_repeated(trees: list[Named]) -> list[Named]:
    seen: set[int] = set()
    left = []
    for named in trees:
        own = [(name, tensor) for name, tensor in named if id(tensor) not in seen]
        left.append(named if len(own) == len(named) else own)
        seen.update(id(tensor) for _, tensor in named)
    return left
