"""Handle what of the script's own the process holds beside variables, which is one node beside these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.handler import Handler, encode_mapping
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.edges import not_plain, same_items
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.process_wide import HeldByProcess
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild


def _renewed(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    now = node.obj.now()
    if now.keys() == node.content.keys() and same_items([*now.values()], [*node.content.values()]):
        return None
    return StateNode(node.kind, node.obj, node.parent, node.key, now, not_plain(now))


def _undo(node: StateNode) -> None:
    node.obj.put_hooks(node.content)


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: HeldByProcess) -> None:
    """Compare what is held. Raises StateMismatchError: what training has registered has a handle that is another one's here."""
    now = obj.now()
    if now.keys() != node.content.keys():
        (name, _), *_ = now.keys() ^ node.content.keys()
        raise StateMismatchError(f"{name}: training has registered or removed what torch or logging keeps for all")


def _child(parent: HeldByProcess, key: Any) -> Any:
    return parent.now().get(key, ABSENT)


HANDLERS = (Handler(Kind.HELD, renewed=_renewed, undo=_undo, encode=encode_mapping, fill=_fill, child=_child),)
