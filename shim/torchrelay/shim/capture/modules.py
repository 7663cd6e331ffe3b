"""State of a tree of modules that is neither parameter nor large: `training` flags, own attributes, small buffers.

A model has hundreds of modules whose attributes hardly ever change, so the list of places to look at is kept from boundary
to boundary and made anew only when a module gained or lost an attribute, a child, a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchrelay.shim.adapters.dict_versions import OF_INSTANCES, Versions
from torchrelay.shim.adapters.frameworks import ID_CACHES
from torchrelay.shim.adapters.list_pointers import pointers
from torchrelay.shim.adapters.wrappers import is_fsdp1
from torchrelay.shim.capture import callables, small
from torchrelay.shim.capture.callables import is_hidden
from torchrelay.shim.capture.kinds import PLAIN
from torchrelay.shim.capture.long_list import LongLists

_STANDARD = frozenset(vars(torch.nn.Module())) | {"_parameters", "_buffers", "_modules", "training"}

_LOOK_AGAIN = 16
"""Walks after which an optimizer's state is searched again for values that are no tensors."""

_COMPOSABLE = ("__composable_api_state_key", "__composable_api_registry_key")
"""Names under which fully_shard and its like keep their own state, with a part that differs from process to process."""


def _is_machinery(name: str) -> bool:
    return name in _STANDARD or name in ID_CACHES or name.startswith(_COMPOSABLE)


Slot = tuple[str, str]
"""Path of a module in its tree, and the name of one of its own attributes."""


@dataclass
class TreeContent:
    """`flags`: `training` of each module, None for one that stands for another; `values`: own attributes in the order of the
    tree's slots; `buffers`: small ones.
    """

    tree: ModuleTree
    flags: list[bool | None]
    values: list[Any]
    buffers: dict[str, small.TensorValue]

    def changed(self, base: TreeContent | None) -> list[int]:
        """Places in `values` that hold another object than in `base`; all of them without one."""
        if base is None:
            return list(range(len(self.values)))
        if self.values is base.values or pointers(self.values) == pointers(base.values):
            return []
        return [place for place, (now, then) in enumerate(zip(self.values, base.values)) if now is not then]


class ModuleTree:
    def __init__(self, root: torch.nn.Module) -> None:
        self.root = root
        named = list(root.named_modules())
        self.names, self.modules = [name for name, _ in named], [module for _, module in named]
        self._names_by_id: dict[int, str] = {}
        self._dicts = [m.__dict__ for m in self.modules]
        self._children = [m._modules for m in self.modules]
        self._buffer_owners = [m._buffers for m in self.modules if m._buffers]
        spaces = [*self._dicts, *self._children, *self._buffer_owners]
        self._versions = Versions(spaces, works=OF_INSTANCES)
        self._seen = self._versions.take()
        """Versions at the latest look at whether the tree is current, for the content that is taken then."""
        self._sizes = self._measure()
        self.slots: list[Slot] = []
        self._slot_dicts: list[tuple[dict[str, Any], str]] = []
        for name, module in named:
            if is_fsdp1(module):
                continue  # it makes them anew in its first forward
            for key, value in module.__dict__.items():
                if not _is_machinery(key) and not is_hidden(value):
                    self.slots.append((name, key))
                    self._slot_dicts.append((module.__dict__, key))
        self._first = [d[key] for d, key in self._slot_dicts]
        self._object_slots = [place for place, value in enumerate(self._first) if type(value) not in PLAIN]
        self._hooks = [((name, kept), found) for name, module in named for kept, found in callables.hooks(module)]
        buffers = dict(root.named_buffers())
        self.small_buffers = {n: b for n, b in buffers.items() if small.is_small(b)}
        self.large = [(n, b) for n, b in buffers.items() if not small.is_small(b)] + list(root.named_parameters())
        self.hooked_tensors = [name for name, p in root.named_parameters() if callables.tensor_hooks(p)]
        self._copies: dict[str, small.TensorValue] = {}
        self.changing: set[str] = set()
        """Buffers that training writes to: a rank's own, so its journal has to hold them."""
        self.base: TreeContent | None = None
        """What the journal of the set-up holds, with stand-ins for what it does not; later journals hold the difference."""
        self.base_place = -1
        """Its place among the set-up's trees."""
        self._buffer_ids = self._identify()
        self._at: list[int] = []
        """Versions of the dictionaries that `_latest` was taken from."""
        self._latest: tuple[list[bool | None], list[Any]] = [], []

    def names_by_id(self) -> dict[int, str]:
        """Of its modules, which live as long as it does."""
        if not self._names_by_id:
            self._names_by_id = {id(module): name for name, module in zip(self.names, self.modules)}
        return self._names_by_id

    def is_bare(self) -> bool:
        """Whether it is one module with nothing but attributes, such as a metric: one that training has made can be made again."""
        return len(self.modules) == 1 and not self.root._parameters and not self.root._buffers

    def hidden_attributes(self) -> dict[str, Any]:
        """The root's own attributes that are no state: functions and the like."""
        known = {key for name, key in self.slots if not name}
        return {k: v for k, v in self.root.__dict__.items() if k not in known and not _is_machinery(k)}

    def _measure(self) -> list[int]:
        return [*map(len, self._dicts), *map(len, self._children)]

    def _identify(self) -> list[int]:
        return [id(b) for owner in self._buffer_owners for b in owner.values()]

    def is_current(self) -> bool:
        self._seen = self._versions.take()
        if self._seen and self._seen == self._at:
            return True
        return self._sizes == self._measure() and self._buffer_ids == self._identify()

    def take(self) -> TreeContent:
        """The lists are shared by contents between which nothing was written."""
        seen, self._seen = self._seen, []
        if not seen or seen != self._at:
            flags = [d.get("training") for d in self._dicts]
            self._at, self._latest = seen, (flags, [d[key] for d, key in self._slot_dicts])
        return TreeContent(self, *self._latest, self._take_buffers() if self.small_buffers else {})

    def is_still(self, content: TreeContent) -> bool:
        """A quick look: False where it takes `take` to know."""
        return (
            content.values is self._latest[1]
            and not self.small_buffers
            and bool(self._at)
            and self._versions.take() == self._at
        )

    def objects(self, content: TreeContent) -> list[tuple[Slot, Any]]:
        """Attributes that may have state below: those that had when the tree was made, and those that were rebound since."""
        values = content.values
        places = set(self._object_slots)
        if pointers(values) != pointers(self._first):
            places.update(p for p, (now, then) in enumerate(zip(values, self._first)) if now is not then)
        found = [(self.slots[p], values[p]) for p in sorted(places) if type(values[p]) not in PLAIN]
        return [*found, *self._hooks]

    def _take_buffers(self) -> dict[str, small.TensorValue]:
        """By content: native batch norm writes its running statistics without counting up their versions."""
        taken = {name: small.take(buffer) for name, buffer in self.small_buffers.items()}
        self.changing.update(name for name, value in taken.items() if self._copies.get(name, value).data != value.data)
        self._copies = taken
        return taken

    def undo(self, content: TreeContent) -> None:
        """Puts the content back in place; attributes that were born since are taken away."""
        by_name = dict(self.root.named_modules())
        if not self.is_current():
            known = set(self.slots)
            for name, module in by_name.items():
                born = [
                    k
                    for k, v in module.__dict__.items()
                    if not (_is_machinery(k) or is_fsdp1(module)) and (name, k) not in known and not is_hidden(v)
                ]
                for key in born:
                    del module.__dict__[key]
        for module, flag in zip(self.modules, content.flags):
            if flag is not None:
                module.training = flag
        for (name, key), value in zip(self.slots, content.values):
            by_name[name].__dict__[key] = value
        for name, value in content.buffers.items():
            if small.take(self.small_buffers[name]).data != value.data:
                self.changing.add(name)
                small.put(value, self.small_buffers[name])


class ModuleTrees:
    """What is kept from walk to walk: the trees seen so far, by root, and long lists."""

    def __init__(self) -> None:
        self.long_lists = LongLists()
        self.of_loops: set[int] = set()
        """Iterators of running loops, by id."""
        self._plain_state: dict[int, tuple[Any, int, int, bool]] = {}
        self._trees: dict[int, ModuleTree] = {}

    def tree(self, root: torch.nn.Module) -> ModuleTree:
        tree = self._trees.get(id(root))
        if tree is None or tree.root is not root or not tree.is_current():
            tree = self._trees[id(root)] = ModuleTree(root)
        return tree

    def has_plain_state(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer keeps anything but tensors: searched when it has state for more parameters, and now and then."""
        size = len(optimizer.state)
        known = self._plain_state.get(id(optimizer))
        if known is None or known[0] is not optimizer or known[1] != size or known[2] >= _LOOK_AGAIN:
            found = any(type(v) is not torch.Tensor for values in optimizer.state.values() for v in values.values())
            known = (optimizer, size, 0, found)
        self._plain_state[id(optimizer)] = (*known[:2], known[2] + 1, known[3])
        return known[3]
