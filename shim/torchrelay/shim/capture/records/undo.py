"""Put a host state back in place, in the process that it was taken in."""

from __future__ import annotations

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers import HANDLERS
from torchrelay.shim.capture.state.host_state import Definition, HostState, StateNode
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.base_types import length_of
from torchrelay.shim.capture.values.kinds import GONE
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of


def check_large_untouched(state: HostState) -> None:
    """Raise StateMismatchError if a tensor that was too large to copy was written to since the boundary."""
    written = [path for tensor, version, path in state.versions if version_of(tensor) != version]
    for tensors, versions in state.tree_versions:
        now = versions_of([tensor for _, tensor in tensors])
        written += [name for (name, _), version, then in zip(tensors, now, versions) if version != then]
    if written:
        raise StateMismatchError(
            f"written to since the boundary, and larger than {small.SMALL_BYTES} bytes: {', '.join(written[:5])}"
        )


def undo(state: HostState) -> None:
    """Give every mutable object the content that it had at the boundary. Names rebound since mean their old objects again."""
    check_large_untouched(state)
    grown = [path for obj, length, path in state.bulk if length_of(obj) != length]
    if grown:
        raise StateMismatchError(f"taken for data, but changed since the boundary: {', '.join(grown[:5])}")
    for node in state.nodes:
        if node.kind is not GONE:
            undo_node(node)
    for definition in state.definitions:
        _undo_definition(definition)


def _undo_definition(definition: Definition) -> None:
    """Take away attributes of functions and classes that were born since the boundary."""
    space, names, cls = definition
    if len(space) == len(names):
        return
    for name in set(space) - names:
        if cls is not None:
            type.__delattr__(cls, name)
        elif isinstance(space, dict):
            del space[name]


def undo_node(node: StateNode) -> None:
    HANDLERS[node.kind].undo(node)
