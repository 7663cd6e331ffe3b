"""Take the state of a tree of modules that is neither parameter nor large: `training` flags, own attributes, small buffers.

A model has hundreds of modules whose attributes hardly ever change. So the list of places to look at is kept from boundary to
boundary, and made anew only when a module gained or lost an attribute, a child, a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from torchrelay.shim.adapters.frameworks import ID_CACHES
from torchrelay.shim.adapters.parallel import module_hooks
from torchrelay.shim.adapters.parallel.module_hooks import Hooks, MadeHooks, hook_counts, next_hook
from torchrelay.shim.adapters.parallel.wrappers import is_fsdp1
from torchrelay.shim.adapters.raw_memory.dict_versions import OF_INSTANCES, Versions
from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.adapters.tensors.lazy_modules import is_lazy
from torchrelay.shim.capture.models.aliases import Owners, as_tensor, memory_of
from torchrelay.shim.capture.models.bound_tensors import BoundTensors, Place, TensorForm
from torchrelay.shim.capture.models.module_parts import class_of
from torchrelay.shim.capture.models.named_once import Named, NamedOnce
from torchrelay.shim.capture.models.parameter_attributes import AttributeEdges, ParameterAttributes
from torchrelay.shim.capture.models.spaces import (
    BUFFERS,
    PARAMETERS,
    STANDARD,
    Space,
    fields,
    is_scripted,
    parts,
    put_all,
    tensors,
)
from torchrelay.shim.capture.state.data_origins import DataOrigins
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.led_iterators import LedIterators
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.state.training_files import TrainingFiles
from torchrelay.shim.capture.values import callables, small
from torchrelay.shim.capture.values.callables import is_hidden
from torchrelay.shim.capture.values.device_reads import DeviceReads
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.capture.values.large_arrays import LargeArrays
from torchrelay.shim.capture.values.long_list import LongLists

_LOOK_AGAIN = 16
"""Walks after which an optimizer's state is searched again for values that are no tensors."""

_COMPOSABLE = ("__composable_api_state_key", "__composable_api_registry_key")
"""Names under which fully_shard and its like keep their own state, with a part that differs from process to process."""


def _is_machinery(name: str) -> bool:
    return name in STANDARD or name in ID_CACHES or name.startswith(_COMPOSABLE)


Slot = tuple[str, str]
"""Path of a module in its tree, and the name of one of its own attributes."""


SetUpHooks = dict[Slot, tuple[Any, ...]]
"""Hooks in their order, by module and attribute."""


class HooksOfTraining(NamedTuple):
    """`first`: how many set-up has registered. `order`: which one of these each is, or a hook with torch's notes."""

    first: int
    order: list[Any]
    is_full: bool | None
    """As `module_hooks.is_full` has it."""


@dataclass
class TreeContent:
    """`flags`: `training` of each module, None for one that stands for another. `values`: own attributes, in the order of slots.

    `buffers`: content of small ones. `bound`, `forms`: which tensors parameters and buffers are bound to, in the order of the slots
    of `BoundTensors`. `attributes`: of parameters.
    """

    tree: ModuleTree
    flags: list[bool | None]
    values: list[Any]
    buffers: dict[str, small.TensorValue]
    bound: list[Any]
    forms: list[TensorForm | None]
    attributes: AttributeEdges

    def named(self) -> dict[Place, Any]:
        """Return the tensors by where they stood."""
        return self.tree.by_place(self.bound)

    def changed(self, base: TreeContent | None) -> list[int]:
        """Return the places in `values` that hold another object than in `base`; all places without a base."""
        if base is None:
            return list(range(len(self.values)))
        if self.values is base.values or pointers(self.values) == pointers(base.values):
            return []
        return [place for place, (now, then) in enumerate(zip(self.values, base.values)) if now is not then]


class ModuleTree:
    def __init__(self, root: torch.nn.Module, reads: DeviceReads, made_hooks: MadeHooks | None = None) -> None:
        """Look at a model. `made_hooks`: as of `ModuleTrees`."""
        self.root = root
        self._made_hooks = MadeHooks() if made_hooks is None else made_hooks
        self._reads = reads
        named = list(root.named_modules())
        self.names = [name for name, _ in named]
        self.modules = [module for _, module in named]
        self._names_by_id: dict[int, str] = {}
        self._fields = [*map(fields, self.modules)]
        self._children = [*map(parts, self.modules)]
        self._part_names = [tuple(children) for children in self._children]
        tensor_spaces = [tensors(m, where) for m in self.modules for where in (BUFFERS, PARAMETERS)]
        self._empty = [space for space in tensor_spaces if not space]
        self._not_empty = [space for space in tensor_spaces if space]
        spaces: list[Any] = [*self._fields, *self._children, *self._not_empty]
        self._versions = Versions(spaces, works=OF_INSTANCES and not any(map(is_scripted, self.modules)))
        self._seen = self._versions.take()
        """Versions at the latest look at whether the tree is current, for the content that is taken then."""
        self._parts = [part for children in self._children for part in children.values()]
        self._parts_at = self._of_parts(self._seen)
        self._sizes = self._measure()
        self.slots: list[Slot] = []
        self._slot_fields: list[tuple[Space, str]] = []
        for (name, module), own in zip(named, self._fields):
            for key, value in own.items() if not is_fsdp1(module) else ():  # FSDP1 makes them anew in its first forward
                if not _is_machinery(key) and not is_hidden(value):
                    self.slots.append((name, key))
                    self._slot_fields.append((own, key))
        self._first = [d[key] for d, key in self._slot_fields]
        self._object_slots = [place for place, value in enumerate(self._first) if type(value) not in PLAIN]
        self._hooks = [((name, kept), found) for name, module in named for kept, found in callables.hooks(module)]
        pairs = ((name, key, part) for name, own in zip(self.names, self._children) for key, part in own.items())
        self._wrappers = [((name, key), part) for name, key, part in pairs if kind_of(type(part)) is Kind.DDP]
        self._bound = BoundTensors(named)
        self._attributes = ParameterAttributes(self._bound.slots, self._bound.tensors)
        self.small_buffers: dict[str, torch.Tensor] = {}
        self.large: list[tuple[str, torch.Tensor]] = []
        self.hooked_tensors: list[str] = []
        self._name_tensors()
        self.hooks = hook_counts(named)
        self._all_hooks = Hooks(self.modules)
        self.hook_spaces = module_hooks.spaces(named)
        """Where the modules keep hooks, by the id of what keeps them."""
        self.next_hook = next_hook()
        """The number that the next hook would have got at the latest boundary."""
        self.hooks_of_set_up: SetUpHooks | None = None
        """The hooks that set-up has registered; None as `of_set_up`."""
        self._copies: dict[str, small.TensorValue] = {}
        self.changing: set[str] = set()
        """Buffers that training writes to or binds anew: a rank's own, so its journal has to hold them."""
        self.base: TreeContent | None = None
        """What the journal of the set-up holds, with stand-ins for what it does not; later journals hold the difference."""
        self.base_place = -1
        """The tree's place among the set-up's trees."""
        self.of_set_up: dict[str, type] | None = None
        """The modules of the tree when the journal of the set-up was written; None where the tree is not in that journal."""
        self.is_rebound = False
        """Whether set-up may have had other modules: training, or a journal, has put some into it."""
        self._places: dict[int, Place] = {}
        self._places_of: Any = None
        self._at: list[int] = []
        """Versions of the dictionaries that `_latest` was taken from."""
        self._latest: tuple[list[bool | None], list[Any]] = [], []

    def names_by_id(self) -> dict[int, str]:
        """Return the names of its modules, by id. The modules live as long as the tree."""
        if not self._names_by_id:
            self._names_by_id = {id(module): name for name, module in zip(self.names, self.modules)}
        return self._names_by_id

    def bindings(self) -> Iterator[tuple[str, dict[str, torch.nn.Module | None]]]:
        """Yield the path of each module, and what was bound in it when the tree was made."""
        parts = iter(self._parts)
        for name, keys in zip(self.names, self._part_names):
            yield name, {key: next(parts) for key in keys}

    def has_others_than_set_up(self) -> bool:
        """Return whether training has put modules into it, or taken some out: those of a new process are set-up's."""
        now = {name: class_of(module) for name, module in zip(self.names, self.modules)}
        return self.of_set_up is not None and self.of_set_up != now

    def is_bare(self) -> bool:
        """Return whether it is one module with only attributes, such as a metric: one that training has made can be made again."""
        root = self.root
        return len(self.modules) == 1 and not (root._parameters or root._buffers or is_scripted(root))

    def hidden_attributes(self, path: str = "") -> dict[str, Any]:
        """Return a module's own attributes that are no state: functions and the like."""
        known = {key for name, key in self.slots if name == path}
        own = self._fields[self.names.index(path)]
        return {k: v for k, v in own.items() if k not in known and not _is_machinery(k)}

    def _name_tensors(self) -> None:
        buffers = {name: buffer for name, buffer in self.root.named_buffers() if not is_lazy(buffer)}
        parameters: list[tuple[str, torch.Tensor]] = [
            (name, parameter) for name, parameter in self.root.named_parameters() if not is_lazy(parameter)
        ]
        self.small_buffers = {n: b for n, b in buffers.items() if small.is_small(b)}
        self.large = [(n, b) for n, b in buffers.items() if not small.is_small(b)] + parameters
        self.hooked_tensors = [name for name, p in parameters if callables.tensor_hooks(p)]

    def _measure(self) -> list[int]:
        return [*map(len, self._fields), *map(len, self._children), *map(len, self._not_empty)]

    def _of_parts(self, versions: list[int]) -> list[int]:
        return versions[len(self.modules) : 2 * len(self.modules)]

    def is_current(self) -> bool:
        """Return whether it has the modules and the names that it had."""
        self._seen = self._versions.take()
        if any(self._empty):
            return False
        if self._seen and self._seen == self._at:
            return True
        if self._sizes != self._measure() or self._keeps_hooks_elsewhere():
            return False
        parts_at = self._of_parts(self._seen)
        if parts_at and parts_at == self._parts_at:
            return True
        self._parts_at = parts_at
        return pointers(self._parts) == pointers([part for children in self._children for part in children.values()])

    def _keeps_hooks_elsewhere(self) -> bool:
        """Return whether a module that was written to keeps its hooks in another dictionary (`self._forward_hooks = {}`)."""
        written = (
            n for n, (now, then) in enumerate(zip(self._seen, self._at)) if now != then and n < len(self.modules)
        )
        return any(
            id(space) not in self.hook_spaces for n in written for space in module_hooks.own_spaces(self.modules[n])
        )

    def has_same_hooks(self) -> bool:
        return self._all_hooks.are_same()

    def take_hooks_of(self, other: ModuleTree) -> None:
        """Go on with what another tree of the same modules knows of hooks: those that a step registers are no state at its gate."""
        self.hooks = other.hooks
        self._all_hooks = other._all_hooks
        self.next_hook = other.next_hook

    def hooks_but_made(self) -> SetUpHooks:
        """Return the hooks that there are, but for those that were made here as a lost rank's training had registered them."""
        by_name = dict(zip(self.names, self.modules))
        kept = ((place, module_hooks.kept(by_name[place[0]], place[1])) for place in self.hooks)
        return {place: tuple(hook for hook, _ in hooks if hook not in self._made_hooks) for place, hooks in kept}

    def hooks_of_training(self) -> dict[Slot, HooksOfTraining]:
        """Return the hooks of each place where training has registered some that it keeps, or removed one of set-up's."""
        known = self.hooks_of_set_up
        if known is None:
            return {}
        by_name = dict(zip(self.names, self.modules))
        found = {}
        for place in self.hooks.keys() | {place for place, hooks in known.items() if hooks}:
            module = by_name.get(place[0])
            hooks = [] if module is None else module_hooks.kept(module, place[1])
            first = {id(hook): number for number, hook in enumerate(known.get(place, ()))}
            order = [first.get(id(hook), (hook, notes)) for hook, notes in hooks]
            if module is not None and order != [*range(len(first))]:
                found[place] = HooksOfTraining(len(first), order, module_hooks.is_full(module))
        return found

    def take(self) -> TreeContent:
        """Return the tree's content. Contents between which nothing was written share their lists."""
        seen = self._seen
        self._seen = []
        if not seen or seen != self._at:
            flags = [d.get("training") for d in self._fields]
            self._latest = (flags, [d[key] for d, key in self._slot_fields])
            self._at = seen
            tensors = self._bound.take()
            if pointers(tensors) != pointers(self._bound.tensors):
                known = {*self.small_buffers}
                self._bound.look_again(tensors)
                self._attributes = ParameterAttributes(self._bound.slots, tensors)
                self._name_tensors()
                self.changing |= self.small_buffers.keys() - known
        if self._bound.have_shapes():
            self._bound.look_again(self._bound.tensors)
            self._name_tensors()
        if self._bound.have_other_forms():
            self._bound.look_again(self._bound.tensors)
        buffers = self._take_buffers() if self.small_buffers else {}
        bound = self._bound
        attributes = self._attributes.take()
        return TreeContent(self, *self._latest, buffers, bound.tensors, bound.forms, attributes)

    def forms(self, content: TreeContent) -> dict[Place, TensorForm | None]:
        """Return the forms of parameters and buffers, without those that the journal of the set-up has already."""
        if self.base is None:
            return self.all_forms(content)
        if self.base.forms is content.forms:
            return {}
        pairs = zip(self._bound.slots, content.forms, self.base.forms)
        return {slot: now for slot, now, then in pairs if now != then}

    def all_forms(self, content: TreeContent) -> dict[Place, TensorForm | None]:
        return dict(zip(self._bound.slots, content.forms))

    def by_place(self, tensors: list[Any]) -> dict[Place, Any]:
        return dict(zip(self._bound.slots, tensors))

    @property
    def tensors(self) -> list[Any]:
        """Return parameters and buffers, by the latest look. It is another list once one was bound anew."""
        return self._bound.tensors

    def place_of(self, tensor: Any) -> Place | None:
        """Return where one of its parameters or buffers stands."""
        return self.place_at(id(tensor)) or self._bound.exchanged_place_of(tensor)

    def place_at(self, address: int) -> Place | None:
        """Return where the parameter or buffer stands that has this id."""
        if self._places_of is not self._bound.tensors:
            self._places_of = self._bound.tensors
            self._places = {}
            for slot, bound in zip(self._bound.slots, self._bound.tensors):
                self._places.setdefault(id(bound), slot)
        return self._places.get(address)

    def still_has(self, tensor: Any) -> bool:
        """Return whether one of `tensors` still stands where the latest look has found it: training may have bound another."""
        place = self.place_of(tensor)
        return place is not None and self._bound.is_at(place, tensor)

    def is_still(self, content: TreeContent) -> bool:
        """Return whether the content is unchanged, by a quick look. False where only `take` can tell."""
        return (
            content.values is self._latest[1]
            and content.bound is self._bound.tensors
            and content.forms is self._bound.forms  # a look at the gate may have found others
            and not self.small_buffers
            and not any(self._empty)
            and not self._bound.have_other_forms()
            and not self._bound.have_shapes()
            and self._attributes.take() is content.attributes
            and bool(self._at)
            and self._versions.take() == self._at
        )

    def objects(self, content: TreeContent) -> list[tuple[Any, Any]]:
        """Return attributes that had state below when the tree was made, that were rebound since, and those of parameters.

        With them go wrappers for data parallel training: what they wrap is a root of its own, whatever else holds it.
        """
        values = content.values
        places = set(self._object_slots)
        if pointers(values) != pointers(self._first):
            places.update(p for p, (now, then) in enumerate(zip(values, self._first)) if now is not then)
        found = [(self.slots[p], values[p]) for p in sorted(places) if type(values[p]) not in PLAIN]
        return [*found, *self._hooks, *content.attributes, *self._wrappers]

    def _take_buffers(self) -> dict[str, small.TensorValue]:
        """Return the buffers by content: native batch norm writes its running statistics without counting up their versions."""
        taken = self._reads.take_all(self.small_buffers)
        known = self._copies
        self.changing.update(name for name, value in taken.items() if known.get(name, value).data != value.data)
        if any(known.get(name, value).shape != value.shape for name, value in taken.items()):
            self._bound.look_again(self._bound.tensors)  # resized in place, as observers of quantization are
        self._copies = taken
        return taken

    def undo(self, content: TreeContent) -> None:
        """Put bindings and contents back in place, and take away what was added since."""
        for children, (_, then) in zip(self._children, self.bindings()):
            put_all(children, then)
        self._bound.put_back(content.bound, content.forms)
        if not self.is_current():
            self._take_away_born()
        for space, flag in zip(self._fields, content.flags):
            if flag is not None:
                space["training"] = flag
        for (space, key), value in zip(self._slot_fields, content.values):
            space[key] = value
        buffers = dict(self.root.named_buffers())
        for name, value in content.buffers.items():
            if not small.fits(value, buffers[name]) or small.take(buffers[name]).data != value.data:
                self.changing.add(name)
                small.put(value, buffers[name])
        self._all_hooks.put_back(self.next_hook)

    def _take_away_born(self) -> None:
        known = set(self.slots)
        for name, module, own in zip(self.names, self.modules, self._fields):
            if is_fsdp1(module):
                continue
            for key, value in [*own.items()]:
                if not (_is_machinery(key) or (name, key) in known or is_hidden(value)):
                    del own[key]


def _is_more_than_tensors(key: Any, values: Any) -> bool:
    """Return whether an entry of an optimizer's state is anything else than the named tensors of a parameter."""
    if not isinstance(key, torch.Tensor) or not isinstance(values, dict):
        return True
    return any(not isinstance(value, torch.Tensor) for value in values.values())


class ModuleTrees:
    """Keep from walk to walk the trees seen so far, by root, long lists, and which arrays are carried."""

    def __init__(
        self,
        arrays: LargeArrays | None = None,
        settings: ProcessSettings | None = None,
        queues: FilledQueues | None = None,
        led: LedIterators | None = None,
        files: TrainingFiles | None = None,
    ) -> None:
        """Begin without trees. `arrays`, `settings`, `queues`, `led`, `files`: what is known already of this process's."""
        self.arrays = arrays or LargeArrays()
        self.long_lists = LongLists()
        self.data_origins = DataOrigins()
        self.reads = DeviceReads()
        self.watched: Any = None
        """What is looked at in one go; see `watched`."""
        self._named_once = NamedOnce()
        self.of_loops: set[int] = set()
        """Iterators of running loops, by id."""
        self.settings = settings or ProcessSettings()
        self.queues = queues or FilledQueues()
        self.led = led or LedIterators()
        self.files = files or TrainingFiles()
        self.loops: list[Any] = []
        """The iterators of running loops that are state, in the order of the loops; None for the others."""
        self.led_cycles: set[int] = set()
        """Cycles that have their items from a data loader, by id."""
        self._plain_state: dict[int, tuple[Any, int, int, bool]] = {}
        self._trees: dict[int, ModuleTree] = {}
        self.changed: dict[int, ModuleTree] = {}
        """Trees that have other modules than when set-up was over, by the root's id."""
        self.is_at_gate = False
        """Whether the walk that is under way is one at a gate."""
        self.rebound: set[int] = set()
        """Ids of roots whose modules a new process may not have when it comes to where this one's set-up was over."""
        self._owners = Owners()
        self.made_hooks = MadeHooks()

    def anew(self) -> ModuleTrees:
        """Return the trees of the next outermost loop: what training has changed by now is not of its set-up."""
        made = ModuleTrees(self.arrays, self.settings, self.queues, self.led, self.files)
        made.rebound = self.rebound | self.changed.keys()
        made.data_origins = self.data_origins
        made.made_hooks = self.made_hooks.anew()
        return made

    def has_same_hooks(self, tree: ModuleTree) -> bool:
        """Return whether the tree has the hooks that it had. Only boundaries ask: what a step registers goes back with it."""
        return self.is_at_gate or tree.has_same_hooks()

    def at_boundary(self) -> None:
        """Note a boundary: hooks of modules that are registered from now on are the step's."""
        number = next_hook()
        for tree in self._trees.values():
            tree.next_hook = number

    def look_for_owners_anew(self) -> None:
        self._owners.check_anew()

    def owner_of(self, tensor: torch.Tensor) -> tuple[torch.nn.Module, torch.Tensor] | None:
        """Return the parameter or buffer whose memory the tensor shares, and the root of its tree."""
        return self._owners.of(tensor, self._trees.values())

    def owner_of_array(self, array: Any) -> tuple[torch.nn.Module, torch.Tensor] | None:
        """Return the parameter or buffer whose memory an array of numpy shares, and the root of its tree."""
        address = memory_of(array)
        tensor = as_tensor(array) if address else None
        return None if tensor is None else self._owners.within(tensor, address, self._trees.values())

    def tree(self, root: torch.nn.Module) -> ModuleTree:
        tree = self._trees.get(id(root))
        if tree is None or tree.root is not root or not (tree.is_current() and self.has_same_hooks(tree)):
            before = tree
            tree = ModuleTree(root, self.reads, self.made_hooks)
            self._trees[id(root)] = tree
            if before is not None and before.root is root:
                tree.of_set_up = before.of_set_up
                tree.hooks_of_set_up = before.hooks_of_set_up
                if self.is_at_gate:
                    tree.take_hooks_of(before)
            tree.is_rebound = id(root) in self.rebound
            self.changed.pop(id(root), None)
            if tree.has_others_than_set_up():
                self.changed[id(root)] = tree
        return tree

    def is_bound(self, tensor: Any) -> bool:
        """Return whether the tensor is a parameter or buffer of a tree, and so is known by where it stands."""
        return any(tree.place_of(tensor) is not None for tree in self._trees.values())

    def large_of(self, roots: list[torch.nn.Module]) -> list[Named]:
        """Return parameters and large buffers of these roots, by the latest look. What several have is the first one's."""
        return self._named_once.of([self._trees[id(root)].large for root in roots])

    def has_plain_state(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer keeps more than tensors. Searches when state for parameters was added, and now and then."""
        size = len(optimizer.state)
        known = self._plain_state.get(id(optimizer))
        if known is None or known[0] is not optimizer or known[1] != size or known[2] >= _LOOK_AGAIN:
            found = any(map(_is_more_than_tensors, optimizer.state, optimizer.state.values()))
            known = (optimizer, size, 0, found)
        self._plain_state[id(optimizer)] = (*known[:2], known[2] + 1, known[3])
        return known[3]
