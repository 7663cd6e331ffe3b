"""Handle the settings of the process, which are one node beside the script's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchrelay.shim.capture.handlers.handler import Handler
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.values.kinds import Kind

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild


def _now(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    changed = trees.settings.changed()
    return None if changed == node.content else StateNode(node.kind, node.obj, node.parent, node.key, changed)


def _undo(node: StateNode) -> None:
    node.obj.put(node.content)


def _fill(rebuild: StateRebuild, node: EncodedNode, settings: ProcessSettings) -> None:
    settings.put(node.content)


HANDLERS = (Handler(Kind.SETTINGS, renewed=_now, undo=_undo, fill=_fill),)
