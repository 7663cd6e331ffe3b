"""Handle variables of `contextvars`, by what they hold on the thread that trains."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.handler import Handler, encode_mapping
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.edges import same_mapping
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk

_VALUE = "value"


def _held(variable: ContextVar[Any]) -> dict[str, Any]:
    """Return what it holds, be it its default; empty where it has none, and was never set."""
    try:
        return {_VALUE: variable.get()}
    except LookupError:
        return {}


def _capture(walk: Walk, kind: Kind, obj: ContextVar[Any], parent: int, key: Any) -> None:
    content = _held(obj)
    walk.push(walk.add(kind, obj, parent, key, content), content)


def _same(trees: ModuleTrees, node: StateNode) -> bool:
    return same_mapping(_held(node.obj), node.content)


def _put(variable: ContextVar[Any], wanted: dict[str, Any]) -> None:
    """Let it hold that.

    Raises StateMismatchError for one that held nothing and does now: only who has set it could take that back.
    """
    now = _held(variable)
    if same_mapping(now, wanted):
        return
    if _VALUE not in wanted:
        raise StateMismatchError(f"the context variable {variable.name} held nothing, and cannot be emptied")
    variable.set(wanted[_VALUE])


def _undo(node: StateNode) -> None:
    _put(node.obj, node.content)


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: ContextVar[Any]) -> None:
    found = rebuild.mapping(node.content, _held(obj))
    if len(found) < len(node.content):
        raise StateMismatchError(f"the context variable {obj.name} holds what cannot be carried")
    _put(obj, found)


def _child(parent: ContextVar[Any], key: Any) -> Any:
    return _held(parent).get(key, ABSENT)


HANDLERS = (
    Handler(
        Kind.CONTEXT_VARIABLE,
        capture=_capture,
        same=_same,
        undo=_undo,
        encode=encode_mapping,
        fill=_fill,
        child=_child,
        comes_and_goes=True,
    ),
)
