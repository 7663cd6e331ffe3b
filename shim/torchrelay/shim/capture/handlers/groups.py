"""Handle process groups by their names, which are the same on all ranks. A joiner makes the groups that it is to be a member of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.capture.handlers.handler import Handler, not_made
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.values.kinds import Kind

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    walk.add(kind, obj, parent, key, process_group.name_if_known(obj))


def _same(trees: ModuleTrees, node: StateNode) -> bool:
    return bool(process_group.name_if_known(node.obj) == node.content)


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    found = process_group.find(node.content)
    return found if found is not None else not_made(rebuild, node)


def _fits(node: EncodedNode, there: Any) -> bool:
    return type(there) is node.cls and process_group.name_if_known(there) == node.content


HANDLERS = (Handler(Kind.PROCESS_GROUP, capture=_capture, same=_same, make=_make, fits=_fits, comes_and_goes=True),)
