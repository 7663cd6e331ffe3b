"""Handle files that training writes and reads again, which are one node beside the script's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchrelay.shim.capture.handlers.handler import Handler
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.training_files import TrainingFiles
from torchrelay.shim.capture.values.kinds import Kind

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild


def _now(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    now = trees.files.now()
    return None if now == node.content else StateNode(node.kind, node.obj, node.parent, node.key, now)


def _undo(node: StateNode) -> None:
    node.obj.put(node.content)


def _fill(rebuild: StateRebuild, node: EncodedNode, files: TrainingFiles) -> None:
    files.put(node.content)


HANDLERS = (Handler(Kind.TRAINING_FILES, renewed=_now, undo=_undo, fill=_fill),)
