"""Objects with attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.shim.capture import callables
from torchrelay.shim.capture.edges import same_mapping
from torchrelay.shim.capture.handler import Handler, attribute, encode_mapping
from torchrelay.shim.capture.kinds import Kind
from torchrelay.shim.capture.parts import attributes, set_attributes
from torchrelay.shim.capture.replay_point import ABSENT
from torchrelay.shim.capture.seen_again import only_fields

if TYPE_CHECKING:
    from torchrelay.shim.capture.encode import EncodedNode
    from torchrelay.shim.capture.host_state import Node
    from torchrelay.shim.capture.modules import ModuleTrees
    from torchrelay.shim.capture.rebuild import Rebuild
    from torchrelay.shim.capture.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    content = attributes(obj)
    number = walk.add(kind, obj, parent, key, content)
    walk.push(number, content)
    cls = type(obj)
    if "<locals>" in cls.__qualname__ and callables.is_users_class(cls):  # no module leads to it
        walk.edge(number, "__class__", cls)


def _same(trees: ModuleTrees, node: Node) -> bool:
    return same_mapping(vars(node.obj) if only_fields(type(node.obj)) else attributes(node.obj), node.content)


def _undo(node: Node) -> None:
    set_attributes(node.obj, node.content, remove_new=True)


def _make(rebuild: Rebuild, node: EncodedNode) -> Any:
    if node.cls is None:
        rebuild.lacks(node)
        return ABSENT
    try:
        return object.__new__(node.cls)
    except TypeError:  # of a base in C that has to make it
        rebuild.lacks(node)
        return ABSENT


def fill_attributes(rebuild: Rebuild, node: EncodedNode, obj: Any) -> None:
    set_attributes(obj, rebuild.mapping(node.content, attributes(obj)), remove_new=False)


def _child(parent: Any, key: Any) -> Any:
    return type(parent) if key == "__class__" else attribute(parent, key)


HANDLERS = (
    Handler(
        Kind.ATTRS,
        capture=_capture,
        same=_same,
        undo=_undo,
        encode=encode_mapping,
        make=_make,
        fill=fill_attributes,
        child=_child,
        comes_and_goes=True,
    ),
)
