"""Forget what objects leave in a host state beside their nodes: large tensors, names of what is not carried, containers of data."""

from __future__ import annotations

from typing import Any

import torch

from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind, kind_of

WITHOUT_NODE = frozenset(
    {Kind.UNKNOWN, Kind.HANDLE, Kind.NDARRAY, Kind.LIST, Kind.DICT, Kind.GENERATOR, Kind.ITERATOR, Kind.TENSOR}
    | {Kind.FILE}
)
"""Kinds whose objects may have left a trace only."""


def forget(state: HostState, parent: int, key: Any, obj: Any) -> None:
    """Forget the traces of an object without a node that does not hang below this node any more."""
    kind = kind_of(type(obj))
    if kind is Kind.TENSOR:
        _remove_first(state.versions, obj)
    elif kind is Kind.LIST or kind is Kind.DICT:
        _remove_first(state.bulk, obj)
    else:
        for name in [name for name, place in state.places.items() if place == (parent, key)]:
            del state.places[name]
            state.unknown.remove(name)
            state.iterators = [entry for entry in state.iterators if entry[0] != name]


def _remove_first(entries: list[Any], obj: Any) -> None:
    place = next((place for place, entry in enumerate(entries) if entry[0] is obj), None)
    if place is not None:
        del entries[place]


def forget_large(state: HostState, gone: set[int]) -> None:
    """Forget large tensors. `gone`: their ids; they are alive still."""
    state.versions = [entry for entry in state.versions if id(entry[0]) not in gone]
    state.large = {path: tensor for path, tensor in state.large.items() if id(tensor) not in gone}


def rename_large(state: HostState, tensor: torch.Tensor, path: str) -> None:
    state.versions = [(t, version, path if t is tensor else name) for t, version, name in state.versions]
    state.large = {name: t for name, t in state.large.items() if t is not tensor}
    state.large[path] = tensor
