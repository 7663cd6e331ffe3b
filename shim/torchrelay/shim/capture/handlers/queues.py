"""Handle queues of Python's: by how far training has taken from one that a thread fills, or by what training has put in."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from torchrelay.shim.capture.handlers.handler import Handler
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.edges import not_plain, same_mapping
from torchrelay.shim.capture.state.filled_queues import QueueKind, QueueUse, content_of
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.parts import set_attributes
from torchrelay.shim.capture.values.base_types import make_object
from torchrelay.shim.capture.values.item_mark import TakenItems
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _content(use: QueueUse | None, obj: Any) -> Any:
    """Return the content of a node; None for a queue that is neither filled ahead nor training's own."""
    if use is None or use.counts_as is None:
        return None
    return use.place if use.counts_as is QueueKind.AHEAD else content_of(obj)


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    use = walk.trees.queues.known(obj)
    content = _content(use, obj)
    if content is None:
        return
    number = walk.add(kind, obj, parent, key, content)
    walk.state.nodes[number].seen = use
    if isinstance(content, dict):
        walk.push(number, content)


def _renewed(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    use = node.seen
    content = _content(use, node.obj)
    if type(content) is not type(node.content):
        raise WalkAnew
    if isinstance(content, TakenItems):
        if content == node.content:
            return None
        return StateNode(node.kind, node.obj, node.parent, node.key, content, seen=use)
    if same_mapping(content, node.content):
        return None
    return StateNode(node.kind, node.obj, node.parent, node.key, content, not_plain(content), seen=use)


def _undo(node: StateNode) -> None:
    """Put a queue back. What was taken from one that a thread fills comes again from the record of draws."""
    if isinstance(node.content, TakenItems):
        node.seen.put(node.content)
    elif node.seen.is_own:
        set_attributes(node.obj, node.content, remove_new=False)


def _encode(encoder: Encoder, node: StateNode) -> Any:
    if isinstance(node.content, TakenItems):
        return tuple(node.content)
    return encoder.mapping(node.content)


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    made = make_object(node.cls) if isinstance(node.content, dict) and node.cls is not None else None
    if made is None:
        rebuild.lacks(node)
        return ABSENT
    queue.Queue.__init__(made, node.content["maxsize"])
    return made


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    if isinstance(node.content, dict):
        rebuild.own_queue(obj)
        set_attributes(obj, rebuild.mapping(node.content, content_of(obj)), remove_new=False)
    else:
        rebuild.lead_queue(node, obj)


def _child(parent: Any, key: Any) -> Any:
    return content_of(parent).get(key, ABSENT)


HANDLERS = (
    Handler(
        Kind.QUEUE,
        capture=_capture,
        renewed=_renewed,
        undo=_undo,
        encode=_encode,
        make=_make,
        fill=_fill,
        child=_child,
        comes_and_goes=True,
        turn=0,
    ),
)
