"""Tell which objects are parts of another one, whatever else holds them.

They are modules, parameters and buffers of a model, and parameter groups. What a wrapper for data parallel training wraps is a
part of none: one rank alone may have an average around it, and all ranks have to know it by the same name.
"""

from __future__ import annotations

from typing import Any

import torch

from torchrelay.shim.adapters.parallel import ddp
from torchrelay.shim.capture.state.host_state import HostState, StateNode
from torchrelay.shim.capture.values.base_types import get_item
from torchrelay.shim.capture.values.kinds import Kind

_GROUPS = "param_groups"
NOT_WRAPPED = ddp.NOT_BUILT_HERE + 1
AROUND_WRAPPED = NOT_WRAPPED + 1


def is_group(state: HostState, parent: int, obj: Any) -> bool:
    """Return whether a dict in a list is a parameter group of the optimizer that the list belongs to."""
    node = state.nodes[parent]
    if not is_groups(state, node.parent, node.key):
        return False
    return isinstance(get_item(obj, "params", None), list)


def is_groups(state: HostState, parent: int, key: Any) -> bool:
    """Return whether an optimizer holds its parameter groups there. A wrapper around it may hold the same list."""
    return bool(key == _GROUPS and state.nodes[parent].kind is Kind.OPTIMIZER)


def parts_met_elsewhere(state: HostState) -> frozenset[int]:
    """Return the ids of parts that have a node of their own in a finished walk, since they were met before their owners."""
    found = set()
    for _, optimizer in state.optimizers:
        number = state.index.get(id(optimizer.param_groups))
        if number is not None and not is_groups(state, state.nodes[number].parent, state.nodes[number].key):
            found.add(id(optimizer.param_groups))
        for group in optimizer.param_groups:
            number = state.index.get(id(group))
            if number is not None and state.nodes[number].kind is not Kind.PARAM_GROUP:
                found.add(id(group))
    apart = {id(obj) for node in wrappers(state) for obj in (node.obj, node.obj.module)}
    trees = [node.content for node in state.nodes if node.kind is Kind.MODULE]
    for content in trees:
        for part in (*content.tree.modules[1:], *content.bound):
            if id(part) in state.index and id(part) not in apart:
                found.add(id(part))
    return frozenset(found)


def wrappers(state: HostState) -> list[StateNode]:
    """Return the nodes of wrappers for data parallel training."""
    return [node for node in state.nodes if node.kind is Kind.DDP]


def is_apart(state: HostState, parent: int, kind: Kind) -> bool:
    """Return whether this is such a wrapper, or what one wraps."""
    return kind is Kind.DDP or state.nodes[parent].kind is Kind.DDP


def put_wrapped_first(state: HostState) -> None:
    """Order the roots so that names of tensors, which are made of it, agree between ranks.

    First come those that wrappers wrap, in the order in which these were built, then the others as they were met. Those around
    something wrapped come last, and so does what a copy of a wrapper wraps: one rank alone may have such an average or copy.
    """
    built: dict[int, int] = {}
    copied = set()
    for node in wrappers(state):
        place = ddp.place_among_built(node.obj)
        key = id(node.obj.module)
        if place == ddp.NOT_BUILT_HERE:
            copied.add(key)
        else:
            built[key] = max(place, built.get(key, place))
    copied -= built.keys()
    if not built and not copied:
        return

    def place_of(root: torch.nn.Module) -> int:
        if id(root) in copied:
            return AROUND_WRAPPED
        modules = state.nodes[state.index[id(root)]].content.tree.names_by_id()
        return built.get(id(root), AROUND_WRAPPED if built.keys() & modules.keys() else NOT_WRAPPED)

    state.roots.sort(key=place_of)
