"""Hold what a walk finds: the objects that an iteration of the training loop can change, and how they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from torchrelay.shim.adapters.tensors.dtensor import Spread
from torchrelay.shim.capture.state.data_origins import DataOrigins
from torchrelay.shim.capture.state.key_text import text_of
from torchrelay.shim.capture.state.shared import AnyNumbered, Numbered, NumberTable, copy_of, copy_of_places
from torchrelay.shim.capture.values.callables import ElementOf
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of


@dataclass(slots=True)
class StateNode:
    """An object of the state. `parent`, `key`: how to reach it from another node. `content`: its shallow copy at the boundary.

    It is not changed once its walk is over: a later walk that finds the object unchanged takes over the node.
    """

    kind: Kind
    obj: Any
    parent: int
    key: Any
    content: Any
    edges: list[tuple[Any, Any]] = field(default_factory=list)
    """What hangs below it, by key."""
    seen: Any = None
    """What else tells whether the object is unchanged, where the content alone does not."""


@dataclass
class HostState:
    nodes: Numbered[StateNode] = field(default_factory=list)
    index: NumberTable = field(default_factory=dict[int, int])
    """id(object) -> place in `nodes`; valid while the nodes hold the objects."""
    versions: list[tuple[torch.Tensor, int, str]] = field(default_factory=list)
    """Tensors too large to copy, with the version that they had."""
    tree_versions: TreeVersions = field(default_factory=list)
    """Parameters and large buffers of each tree of modules, with the versions that they had."""
    large: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensors too large to copy, by path: part of the device state."""
    roots: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[tuple[str, torch.optim.Optimizer]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    places: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """By name of each unknown object, the node that it hangs below, and by which key."""
    iterators: list[tuple[str, Any]] = field(default_factory=list)
    """The unknown objects that are drawn from, by name: what comes next is state."""
    drawn_from: set[int] = field(default_factory=set)
    """The nodes that are iterators."""
    generators: set[int] = field(default_factory=set)
    """The nodes that are random generators."""
    bulk: list[tuple[Any, int, str]] = field(default_factory=list)
    """Containers that are taken for data, with their length: the least that tells whether they were rightly."""
    covered: set[int] = field(default_factory=set)
    """Modules that are part of a tree, by id: no nodes of their own."""
    holders: Numbered[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """Which nodes lead to each node, once for each edge, -1 to a root; empty until a walk goes on from this state."""
    free: list[int] = field(default_factory=list)
    """Places in `nodes` that hold no node."""
    definitions: list[Definition] = field(default_factory=list)
    spaces: list[Mapping[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Attributes of the script's functions and classes, with how many there were: a new one is seen by that."""
    without_state: dict[int, Any] = field(default_factory=dict)
    """Globals that are functions, classes or modules with nothing behind them, by id."""
    renewed: set[int] = field(default_factory=set)
    """Nodes that are others than in the state that the walk went on from."""
    written: Numbered[bytes] = field(default_factory=list[bytes])
    """The nodes in a journal: of the state that the walk went on from until `encoded`, of this one from then on."""
    blocks: list[tuple[bytes, ...]] = field(default_factory=list)
    """The written nodes, pickled many together: a journal of thousands of objects of which few have changed is written quickly."""
    encoded: bool = False
    takes_over: bool = False
    """Whether `written` holds for nodes that are not renewed."""
    fleeting: set[int] = field(default_factory=set)
    """Nodes with weak references: these are no edges, so a node may stay while what they mean moves."""
    lacking: set[int] = field(default_factory=set)
    """Nodes that are put back only whole, and have elements that cannot be written."""
    data_origins: DataOrigins = field(default_factory=DataOrigins)
    has_let_go: bool = False
    """Whether objects were taken out that had been found: no walk goes on from here."""

    def path(self, number: int, *keys: Any) -> str:
        """Return the way to a node, or to what hangs below it, as a person would write it: `self.scheduler.base_lrs`."""
        return path_of(self.nodes, number, *keys, items=False)

    def root(self, number: int) -> StateNode:
        while (parent := self.nodes[number].parent) >= 0:
            number = parent
        return self.nodes[number]

    def as_it_is_now(self) -> HostState:
        """Return the same objects, with the versions that their tensors have now."""
        now = self.fork()
        now.versions = [(tensor, version_of(tensor), name) for tensor, _, name in self.versions]
        now.tree_versions = versions_now(self.tree_versions)
        return now

    def fork(self) -> HostState:
        """Return a copy for a walk that goes on from here.

        `covered` is shared, since what changes it starts a walk from scratch.
        """
        return HostState(
            copy_of(self.nodes),
            copy_of_places(self.index),
            list(self.versions),
            self.tree_versions,
            dict(self.large),
            list(self.roots),
            list(self.optimizers),
            list(self.unknown),
            dict(self.places),
            list(self.iterators),
            set(self.drawn_from),
            set(self.generators),
            list(self.bulk),
            self.covered,
            copy_of(self.holders),
            list(self.free),
            self.definitions,
            self.spaces,
            self.sizes,
            self.without_state,
            set(),
            self.written,
            self.blocks,
            False,
            self.encoded,
            self.fleeting,
            set(self.lacking),
            self.data_origins,
        )


def path_of(nodes: AnyNumbered[Any], number: int, *keys: Any, items: bool = True) -> str:
    """Return the way to a node, for nodes of any form that have a `kind`, a `parent` and a `key`.

    `items`: a dict's keys are written as items, `meters['loss']`. Names of tensors, which ranks agree on, have `meters.loss`.
    """
    parts = [_step(key) for key in reversed(keys)]
    if keys and number >= 0:
        parts[-1] = _step(keys[0], of_dict=items and nodes[number].kind is Kind.DICT)
    while number >= 0:
        node = nodes[number]
        if node.parent >= 0:
            parts.append(_step(node.key, of_dict=items and nodes[node.parent].kind is Kind.DICT))
        elif node.kind is not Kind.FRAME:
            parts.append(str(node.key))
        number = node.parent
    return "".join(reversed(parts)).lstrip(".")


def _step(key: Any, *, of_dict: bool = False) -> str:
    if type(key) is Inside:
        return f"{_step(key.key, of_dict=of_dict)}{_step(key.place)}"
    if type(key) is Deep:
        return "".join(map(_step, key.steps))
    if type(key) is ElementOf:
        return f"{{{key.cls} {key.number}}}" if key.number else f"{{{key.cls}}}"
    return f".{key}" if isinstance(key, str) and key.isidentifier() and not of_dict else f"[{text_of(key)}]"


TreeVersions = list[tuple[list[tuple[str, torch.Tensor]], list[int]]]


def catalogue_numbers(trees: TreeVersions) -> Iterator[int]:
    """Yield for each tree its number in names of tensors. Trees without tensors, such as metrics, do not count."""
    number = 0
    for large, _ in trees:
        yield number
        number += bool(large)


def versions_now(trees: TreeVersions) -> TreeVersions:
    return [(large, versions_of([tensor for _, tensor in large])) for large, _ in trees]


class Definition(NamedTuple):
    """The names of attributes that a function, or a class, had. `cls`: the class, whose dict cannot be written."""

    space: Mapping[str, Any]
    names: frozenset[str]
    cls: type | None


class Inside(NamedTuple):
    """Key of a value that stands in a tuple, or behind a bound method or the like. These are looked through, and have no nodes."""

    key: Any
    place: int | str | ElementOf


class Deep(NamedTuple):
    """Key of what is found inside of an object whose other parts are no state: attributes, keys and places on the way."""

    steps: tuple[Any, ...]


class Nth(NamedTuple):
    """Key of a value in a dict whose own key is an object: the place among the items."""

    place: int


class Fields(NamedTuple):
    """Key of the attributes of a container: a dict of its own, since the container's content is its items."""


class EntryForm(NamedTuple):
    """The form of a tensor that an optimizer keeps for a parameter."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    strides: tuple[int, ...]


class OptimizerTensor(NamedTuple):
    """Stands for a tensor of an optimizer's state under another name: its content comes with that state.

    `optimizer`: its node. `place`, `name`: of the parameter among all of its groups, and of the entry. `entries`: what tensors
    there are for that parameter, in their order: an optimizer that finds some of them looks for all.
    """

    optimizer: int
    place: int
    name: str
    entries: dict[str, EntryForm]

    @property
    def form(self) -> EntryForm:
        return self.entries[self.name]


class LargeTensor(NamedTuple):
    """Stands for a tensor whose content comes from elsewhere."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    spread: Spread | None = None
    """How the tensor is spread over ranks; the shape is that of this rank's part then."""
    requires_grad: bool = False
    strides: tuple[int, ...] = ()
    """Those of `strides_of`: empty for a contiguous tensor."""
    freed: bool = False
    """Whether its storage has let go of its memory, so that there is no content: nobody may read there."""
