"""Handle objects of unknown types that pickle: they are compared and carried by what pickle makes of them."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.handler import Handler
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.values import by_value
from torchrelay.shim.capture.values.kinds import Kind

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    written = None if hasattr(type(obj), "__next__") else by_value.dumps(obj)
    if written is not None and by_value.comes_back(written):
        walk.add(kind, obj, parent, key, written)
    else:
        _name(walk, kind, obj, parent, key)


def _name(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    name = f"{walk.state.path(parent, key)} ({type(obj).__qualname__})"
    walk.unknown(name, parent, key)
    if hasattr(type(obj), "__next__"):
        walk.state.iterators.append((name, obj))


def _same(trees: ModuleTrees, node: StateNode) -> bool:
    return by_value.is_as_written(node.obj, node.content)


def _undo(node: StateNode) -> None:
    if by_value.is_as_written(node.obj, node.content):
        return
    by_value.put_back(node.obj, node.content)
    if not by_value.is_as_written(node.obj, node.content):
        raise StateMismatchError(f"a {type(node.obj).__qualname__} was changed by the step, and cannot be put back")


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    return pickle.loads(node.content)


def _fits(node: EncodedNode, there: Any) -> bool:
    return type(there) is node.cls and by_value.is_as_written(there, node.content)


HANDLERS = (
    Handler(
        Kind.UNKNOWN,
        capture=_capture,
        same=_same,
        undo=_undo,
        make=_make,
        fits=_fits,
        comes_and_goes=True,
    ),
    Handler(Kind.HANDLE, capture=_name),
)
