"""What decides, beside the process's generators, in which order a DataLoader takes its data, and what one without workers makes of
them: the samplers' and the data set's own numbers and generators, and those of the object that collates.

Leans on `DataLoader.dataset`, `collate_fn` and `num_workers`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any

import torch

from torchrelay.shim.capture.handlers import random_state
from torchrelay.shim.capture.iteration import shared_memory
from torchrelay.shim.capture.iteration.loader_order import order_generators, owners, plain_fields
from torchrelay.shim.capture.records import after_draw
from torchrelay.shim.capture.state.host_state import Deep
from torchrelay.shim.capture.state.parts import random_in_loader
from torchrelay.shim.capture.state.random_below import follow, random_below
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of
from torchrelay.shim.tensors.tensor_bytes import write

_CONTAINERS = (Kind.LIST, Kind.DEQUE, Kind.DICT, Kind.SET)
MOST_ITEMS = 1024
"""Of a container that is written down in each step, whether or not the sampler changes it."""
State = tuple[dict[str, Any], tuple[tuple[tuple[Any, ...], bytes], ...]]
"""Plain attributes of the data set; each generator's way from the loader and its state."""


class SamplerState:
    """What else than its `generator` and its numbers decides the order that a sampler chooses when it is first asked."""

    def __init__(self, loader: Any) -> None:
        self._samplers = owners(loader)[1:]
        of_order = order_generators(loader)
        self._taken = [(_generators(sampler, of_order), _containers(sampler)) for sampler in self._samplers]

    def taken(self) -> bytes:
        """How it was when this was made; long containers only if they have changed since. Empty where there is nothing, as with the
        samplers of torch."""
        found = []
        for sampler, (generators, containers) in zip(self._samplers, self._taken):
            kept = {
                k: v for k, v in containers.items() if _size(v) <= MOST_ITEMS or not alike(getattr(sampler, k, None), v)
            }
            found.append((generators, kept))
        return pickle.dumps(found) if any(map(any, found)) else b""

    def put(self, state: bytes) -> None:
        """Raises LookupError, AttributeError or TypeError where something is not in its place."""
        for sampler, (generators, containers) in zip(self._samplers, pickle.loads(state) if state else ()):
            for steps, content in generators:
                found = follow(sampler, Deep(steps))
                random_state.put(found, content)
            for name, items in containers.items():
                _fill(sampler, name, items)


def _generators(sampler: Any, of_order: Collection[int]) -> list[tuple[tuple[Any, ...], Any]]:
    below = random_below(sampler).items()
    return [(way.steps, after_draw.state_of(found)) for way, found in below if id(found) not in of_order]


def _containers(sampler: Any) -> dict[str, Any]:
    """Those of plain values, and arrays."""
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


def _size(value: Any) -> int:
    return int(value.numel()) if isinstance(value, torch.Tensor) else int(getattr(value, "size", None) or len(value))


def _fill(sampler: Any, name: str, items: Any) -> None:
    """In place, for whoever else holds it; set-up may have put something else there, or nothing."""
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


class DataState:
    """Of one loader. What it has is looked for once."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._in_process = getattr(loader, "num_workers", 0) == 0
        self._ways: dict[Deep, Any] = {}
        if self._in_process:
            self._ways = random_below(loader.dataset, "dataset") | random_in_loader(loader)
        self.shared = shared_memory.below(loader)
        """Numbers in shared memory, which workers write to if there are any."""
        self.known = {*map(id, (*self._ways.values(), *self.shared.values()))}

    def take(self) -> State:
        if not self._in_process:
            return {}, ()
        states = ((way.steps, pickle.dumps(after_draw.state_of(found))) for way, found in self._ways.items())
        return plain_fields(self._loader.dataset), tuple(states)

    def put(self, state: State) -> None:
        """Raises LookupError, AttributeError or TypeError where a generator is not in its place."""
        plain, states = state
        if plain:
            vars(self._loader.dataset).update(plain)
        for steps, content in states:
            found = follow(self._loader, Deep(tuple(steps)))
            random_state.put(found, pickle.loads(content))
