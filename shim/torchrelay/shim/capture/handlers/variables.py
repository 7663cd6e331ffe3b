"""Handle local variables of the script's frames, and globals of its modules: a walk begins at these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.shim.adapters.cpython import frames
from torchrelay.shim.capture.handlers.containers import dict_item
from torchrelay.shim.capture.handlers.handler import Handler
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.edges import not_plain, same_mapping
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.parts import set_variables, variables
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild


def _encode(encoder: Encoder, node: StateNode) -> Any:
    return encoder.mapping(node.content, opaque=False)


def _undo_frame(node: StateNode) -> None:
    now = frames.read_locals(node.obj)
    changed = {k: v for k, v in node.content.items() if now.get(k, ABSENT) is not v}
    if changed:
        frames.set_locals(node.obj, changed)


def _fill_frame(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    set_variables(obj, rebuild.mapping(node.content, variables(obj, node.content)))


def _local(parent: Any, key: Any) -> Any:
    return variables(parent, (key,)).get(key, ABSENT)


def _undo_globals(node: StateNode) -> None:
    for name, value in node.content.items():
        if node.obj.get(name, ABSENT) is not value:
            node.obj[name] = value


def _fill_globals(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    obj.update(rebuild.mapping(node.content, obj))


def _loops_now(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    content = iterators_of_loops(trees)
    if same_mapping(content, node.content):
        return None
    return StateNode(node.kind, node.obj, node.parent, node.key, content, not_plain(content))


def iterators_of_loops(trees: ModuleTrees) -> dict[int, Any]:
    return {place: iterator for place, iterator in enumerate(trees.loops) if iterator is not None}


def _of_loop(parent: Any, key: Any) -> Any:
    return parent[key] if key < len(parent) and parent[key] is not None else ABSENT


HANDLERS = (
    Handler(Kind.LOOPS, renewed=_loops_now, encode=_encode, child=_of_loop),
    Handler(Kind.FRAME, undo=_undo_frame, encode=_encode, fill=_fill_frame, child=_local),
    Handler(Kind.GLOBALS, undo=_undo_globals, encode=_encode, fill=_fill_globals, child=dict_item),
)
