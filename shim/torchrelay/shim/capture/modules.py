"""State of a tree of modules that is neither parameter nor large: `training` flags, own attributes, small buffers.

A model has hundreds of modules whose attributes hardly ever change, so the list of places to look at is kept from boundary
to boundary and made anew only when a module gained or lost an attribute, a child, a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torchrelay.shim.capture import small
from torchrelay.shim.capture.kinds import PLAIN, Kind, kind_of

_STANDARD = frozenset(vars(torch.nn.Module())) | {"_parameters", "_buffers", "_modules", "training"}


@dataclass
class TreeContent:
    """`flags`: `training` of each module; `values`: own attributes by (module path, name); `buffers`: the small ones."""

    flags: list[bool]
    slots: list[tuple[str, str]]
    values: list[Any]
    buffers: dict[str, small.TensorValue]

    def objects(self) -> Iterator[tuple[Any, Any]]:
        for slot, value in zip(self.slots, self.values):
            if type(value) not in PLAIN:
                yield slot, value


class ModuleTree:
    def __init__(self, root: torch.nn.Module) -> None:
        self.root = root
        named = list(root.named_modules())
        self.names, self.modules = [n for n, _ in named], [m for _, m in named]
        self._dicts = [m.__dict__ for m in self.modules]
        self._children = [m._modules for m in self.modules]
        self._sizes = self._measure()
        self._slots: list[tuple[dict[str, Any], str]] = []
        self.slots: list[tuple[str, str]] = []
        for name, module in zip(self.names, self.modules):
            for key, value in module.__dict__.items():
                if key not in _STANDARD and kind_of(type(value)) is not Kind.OPAQUE:
                    self._slots.append((module.__dict__, key))
                    self.slots.append((name, key))
        buffers = dict(root.named_buffers())
        self.small_buffers = {n: b for n, b in buffers.items() if small.is_small(b)}
        self.large = [(n, b) for n, b in buffers.items() if not small.is_small(b)] + list(root.named_parameters())
        self._copies: dict[str, small.TensorValue] = {}
        self.changing: set[str] = set()
        """Buffers that training writes to: a rank's own, so its journal has to hold them."""
        self._buffer_owners = [m._buffers for m in self.modules if m._buffers]
        self._buffer_ids = self._identify()

    def _measure(self) -> list[int]:
        return [*map(len, self._dicts), *map(len, self._children)]

    def _identify(self) -> list[int]:
        return [id(b) for owner in self._buffer_owners for b in owner.values()]

    def is_current(self) -> bool:
        return self._sizes == self._measure() and self._buffer_ids == self._identify()

    def take(self) -> TreeContent:
        return TreeContent(
            [d["training"] for d in self._dicts],
            self.slots,
            [d[key] for d, key in self._slots],
            self._take_buffers(),
        )

    def _take_buffers(self) -> dict[str, small.TensorValue]:
        """By content: native batch norm writes its running statistics without counting up their versions."""
        taken = {name: small.take(buffer) for name, buffer in self.small_buffers.items()}
        self.changing.update(name for name, value in taken.items() if self._copies.get(name, value).data != value.data)
        self._copies = taken
        return taken

    def undo(self, content: TreeContent) -> None:
        """Puts the content back in place; attributes that were born since are taken away."""
        if not self.is_current():
            known = {(name, key) for name, key in content.slots}
            for name, module in self.root.named_modules():
                born = [
                    k
                    for k, v in module.__dict__.items()
                    if k not in _STANDARD and (name, k) not in known and kind_of(type(v)) is not Kind.OPAQUE
                ]
                for key in born:
                    del module.__dict__[key]
        by_name = dict(self.root.named_modules())
        for name, flag in zip(self.names, content.flags):
            by_name[name].training = flag
        for (name, key), value in zip(content.slots, content.values):
            by_name[name].__dict__[key] = value
        for name, value in content.buffers.items():
            if small.take(self.small_buffers[name]).data != value.data:
                self.changing.add(name)
                small.put(value, self.small_buffers[name])


class ModuleTrees:
    """The trees seen so far, by root."""

    def __init__(self) -> None:
        self._trees: dict[int, ModuleTree] = {}

    def tree(self, root: torch.nn.Module) -> ModuleTree:
        tree = self._trees.get(id(root))
        if tree is None or tree.root is not root or not tree.is_current():
            tree = self._trees[id(root)] = ModuleTree(root)
        return tree

    def tree_as_taken(self, root: torch.nn.Module) -> ModuleTree:
        """The tree that the last content of `root` was taken with, whatever was born since."""
        return self._trees[id(root)]
