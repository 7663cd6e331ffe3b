"""Tell which objects are parts of another one, whatever else holds them.

They are modules, parameters and buffers of a model, and parameter groups.
"""

from __future__ import annotations

from typing import Any

from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.base_types import get_item
from torchrelay.shim.capture.values.kinds import Kind

_GROUPS = "param_groups"


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
    trees = [node.content for node in state.nodes if node.kind is Kind.MODULE]
    for content in trees:
        for part in (*content.tree.modules[1:], *content.bound):
            if id(part) in state.index:
                found.add(id(part))
    return frozenset(found)
