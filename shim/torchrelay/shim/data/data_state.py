"""What decides, beside the process's generators, in which order a DataLoader takes its data, and what one without workers makes of
them: the samplers' and the data set's own numbers and generators, and those of the object that collates.

Leans on `DataLoader.dataset`, `collate_fn` and `num_workers`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from torchrelay.shim.capture.handlers import random_state
from torchrelay.shim.capture.iteration import changed_data, shared_memory
from torchrelay.shim.capture.iteration.loader_order import order_generators, owners, plain_fields
from torchrelay.shim.capture.iteration.marks import data_sets
from torchrelay.shim.capture.records import after_draw
from torchrelay.shim.capture.state.host_state import Deep
from torchrelay.shim.capture.state.parts import own_attributes, random_in_loader
from torchrelay.shim.capture.state.random_below import follow, random_below
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.base_types import fields, length_of
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.tensors.tensor_bytes import write
from torchrelay.shim.tensors.tensor_versions import version_of

_CONTAINERS = (Kind.LIST, Kind.DEQUE, Kind.DICT, Kind.SET)
MOST_ITEMS = 1024
"""Of a container that is written down in each step, whether or not the sampler changes it."""
MOST_KEPT_BYTES = 64 << 10
"""Of an attribute that draws change, which is written down in each step."""
State = tuple[tuple[dict[str, Any], ...], tuple[tuple[tuple[Any, ...], bytes], ...], tuple[tuple[int, str, bytes], ...]]
"""Plain attributes of the data set and of those within it; each generator's way from the loader and its state; other attributes
that draws change, with the number of their data set."""


class SamplerState:
    """What decides the order that a sampler chooses when it is first asked, beside its `generator` and its numbers.

    Of a stream, the attributes of its data sets that its first draw uses up, such as the place from which it is to go on.
    """

    def __init__(self, loader: Any, is_stream: bool = False) -> None:
        """Take the state as it is now. `is_stream`: whether the loader draws from an IterableDataset in this process."""
        self._samplers = owners(loader)[1:]
        of_order = order_generators(loader)
        self._taken = [(_generators(sampler, of_order), _containers(sampler)) for sampler in self._samplers]
        self._beside = [_beside_generators(sampler) for sampler in self._samplers]
        self._streams = data_sets(loader.dataset) if is_stream else []
        self._written = [_written(owner, self._streams) for owner in self._streams]

    def taken(self) -> bytes:
        """Return the state as it was when this was made; long containers only if they have changed since.

        Empty where there is nothing, as with the samplers of torch.
        """
        found = []
        for sampler, (generators, containers), beside in zip(self._samplers, self._taken, self._beside):
            below = [(steps, kept) for steps, owner, own in beside if (kept := _to_keep(owner, own))]
            found.append((generators, _to_keep(sampler, containers), below))
        used_up = [
            (number, name, written)
            for number, (owner, before) in enumerate(zip(self._streams, self._written))
            if before and (now := _written(owner, self._streams)) != before
            for name, written in before.items()
            if now.get(name) != written
        ]
        return pickle.dumps((found, used_up)) if any(map(any, found)) or used_up else b""

    def put(self, state: bytes) -> None:
        """Put a state back. Raises LookupError, AttributeError or TypeError where something is not in its place."""
        of_samplers, used_up = pickle.loads(state) if state else ((), ())
        for number, name, written in used_up:
            vars(self._streams[number])[name] = changed_data.read(written, self._streams)
        for sampler, (generators, containers, below) in zip(self._samplers, of_samplers):
            for steps, content in generators:
                found = follow(sampler, Deep(steps))
                random_state.put(found, content)
            for owner, own in [(sampler, containers), *((follow(sampler, Deep(steps)), own) for steps, own in below)]:
                for name, items in own.items():
                    _fill(owner, name, items)


def _generators(sampler: Any, of_order: Collection[int]) -> list[tuple[tuple[Any, ...], Any]]:
    below = random_below(sampler).items()
    return [(way.steps, after_draw.state_of(found)) for way, found in below if id(found) not in of_order]


def _beside_generators(sampler: Any) -> list[tuple[tuple[Any, ...], Any, dict[str, Any]]]:
    """Return objects below the sampler that have a generator, with the way to each and its containers.

    What such a generator shuffles in place lies beside it, as in a sampler that another one wraps. Data sets hold their data there.
    """
    found: dict[tuple[Any, ...], Any] = {}
    for way in random_below(sampler):
        steps = way.steps[:-1]
        if steps and steps not in found:
            found[steps] = follow(sampler, Deep(steps))
    return [
        (steps, owner, own)
        for steps, owner in found.items()
        if kind_of(type(owner)) is not Kind.DATASET and (own := _containers(owner))
    ]


def _to_keep(owner: Any, containers: dict[str, Any]) -> dict[str, Any]:
    """Return those that are short, and the long ones that have changed since."""
    return {k: v for k, v in containers.items() if _size(v) <= MOST_ITEMS or not alike(getattr(owner, k, None), v)}


def _containers(sampler: Any) -> dict[str, Any]:
    """Return a sampler's containers of plain values, and its arrays."""
    found = {}
    for name, value in getattr(sampler, "__dict__", {}).items():
        kind = kind_of(type(value))
        items = (*value, *value.values()) if kind is Kind.DICT else value if kind in _CONTAINERS else None
        if (items is not None and PLAIN.issuperset(map(type, items))) or (
            kind is Kind.NDARRAY and value.dtype.kind != "O"
        ):
            found[name] = value.copy()
        elif kind is Kind.TENSOR:
            found[name] = value.detach().clone()
    return found


def _written(owner: Any, streams: list[Any]) -> dict[str, bytes]:
    """Return the plain values and small containers that a data set has, each as bytes. What is long is its data."""
    own = own_attributes(owner) if kind_of(type(owner)) is Kind.DATASET else {}
    found = {
        name: changed_data.written(value, streams, MOST_KEPT_BYTES) for name, value in own.items() if _is_small(value)
    }
    return {name: written for name, written in found.items() if written is not None}


def _is_small(value: Any) -> bool:
    kind = kind_of(type(value))
    return type(value) in PLAIN or (kind in (*_CONTAINERS, Kind.TUPLE) and length_of(value) <= MOST_ITEMS)


def _size(value: Any) -> int:
    return int(value.numel()) if isinstance(value, torch.Tensor) else int(getattr(value, "size", None) or len(value))


def _fill(sampler: Any, name: str, items: Any) -> None:
    """Fill the container in place, for others that hold it; set-up may have put something else there, or nothing."""
    own: Any = getattr(sampler, name, None)
    kind = kind_of(type(own))
    if type(own) is not type(items) or getattr(own, "shape", None) != getattr(items, "shape", None):
        vars(sampler)[name] = items
    elif kind is Kind.LIST:
        own[:] = items
    elif kind is Kind.NDARRAY:
        own[...] = items
    elif kind is Kind.TENSOR:
        write(own.detach(), items)
    else:
        own.clear()
        (own.extend if kind is Kind.DEQUE else own.update)(items)


class ChangedByDraws:
    """The attributes of one data set that its draws have changed: what it has read last, a pool of pictures."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._too_large: set[str] = set()
        self._seen: dict[str, Any] | None = None

    def look(self, others: Mapping[str, Any]) -> None:
        """Look which attributes have changed. `others`: attributes that are neither plain nor generators, as they are now."""
        now = {name: _mark(value) for name, value in others.items()}
        if self._seen is not None and now != self._seen:
            changed = {name for name, mark in now.items() if self._seen.get(name) != mark}
            self.names |= changed - self._too_large
        self._seen = now

    def gives_up(self, name: str) -> None:
        self.names.discard(name)
        self._too_large.add(name)


def _mark(value: Any) -> Any:
    """Return a mark that tells cheaply whether a value is another one than before, or has other items."""
    kind = kind_of(type(value))
    if kind is Kind.TENSOR:
        return id(value), version_of(value)
    return (id(value), length_of(value)) if kind in _CONTAINERS else id(value)


def _found_or_new(owner: Any, known: ByIdentity[ChangedByDraws]) -> ChangedByDraws:
    found = known.get(owner)
    if found is None:
        found = ChangedByDraws()
        known.put(owner, found)
    return found


def _others(owner: Any) -> dict[str, Any]:
    """Return the data set's attributes that are neither plain nor data sets."""
    own = own_attributes(owner) if kind_of(type(owner)) is Kind.DATASET else {}
    return {n: v for n, v in own.items() if type(v) not in PLAIN and kind_of(type(v)) is not Kind.DATASET}


class DataState:
    """The state of one loader's data. What the loader has is looked for once."""

    def __init__(self, loader: Any, changed_by_draws: ByIdentity[ChangedByDraws]) -> None:
        """Find what the loader has. `changed_by_draws`: by data set. It outlives the loader's iterators."""
        self._owners: list[Any] = []
        self._changed_by_draws: list[ChangedByDraws] = []
        self._in_process = getattr(loader, "num_workers", 0) == 0
        self._loader = loader if self._in_process else None  # see HeldLoader
        self._ways: dict[Deep, Any] = {}
        if self._in_process:
            self._ways = random_below(loader.dataset, "dataset") | random_in_loader(loader)
            self._owners = data_sets(loader.dataset)
            self._changed_by_draws = [_found_or_new(owner, changed_by_draws) for owner in self._owners]
        self.shared = shared_memory.below(loader)
        """Numbers in shared memory, which workers write to if there are any."""
        self.known = {*map(id, (*self._ways.values(), *self.shared.values()))}

    def take(self) -> State:
        if not self._in_process:
            return (), (), ()
        states = ((way.steps, pickle.dumps(after_draw.state_of(found))) for way, found in self._ways.items())
        return tuple(map(plain_fields, self._owners)), tuple(states), tuple(self._kept())

    def _kept(self) -> Iterator[tuple[int, str, bytes]]:
        for number, (owner, changed_by_draws) in enumerate(zip(self._owners, self._changed_by_draws)):
            changed_by_draws.look(_others(owner))
            for name in sorted(changed_by_draws.names):
                value = fields(owner)
                if value is None or name not in value or type(value[name]) in PLAIN:
                    continue
                written = changed_data.written(value[name], self._owners, MOST_KEPT_BYTES)
                if written is None:
                    changed_by_draws.gives_up(name)
                else:
                    yield number, name, written

    def put(self, state: State) -> None:
        """Put a state back. Raises LookupError, AttributeError or TypeError where a generator is not in its place."""
        plain, states, kept = state
        for owner, values in zip(self._owners, plain):
            if values:
                vars(owner).update(values)
        for number, name, written in kept:
            vars(self._owners[number])[name] = changed_data.read(written, self._owners)
        for steps, content in states:
            found = follow(self._loader, Deep(tuple(steps)))
            random_state.put(found, pickle.loads(content))
