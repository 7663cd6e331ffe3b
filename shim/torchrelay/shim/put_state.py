"""Puts the host state of a lost rank into this process's objects, where the script's frames lead to them."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim import payload
from torchrelay.shim.adapters import lead_iterators
from torchrelay.shim.adapters.cycles import Place
from torchrelay.shim.capture.encode import EncodedNode, decode
from torchrelay.shim.capture.kinds import Kind
from torchrelay.shim.capture.module_state import put_tree
from torchrelay.shim.capture.rebuild import Rebuild
from torchrelay.shim.capture.replay_point import ABSENT
from torchrelay.shim.journaling import script_frames

if TYPE_CHECKING:
    from torchrelay.shim.engine import Engine


def put_state(
    engine: Engine,
    trees: tuple[Any, ...],
    encoded: list[bytes],
    innermost: FrameType,
    loaders: dict[int, payload.LoaderRecord] | None = None,
) -> None:
    """`trees`: of modules, as the lost rank's set-up had made them. `loaders`: node -> where its iterator stands.

    Raises StateMismatchError.
    """
    nodes = decode(encoded)
    rebuild = Rebuild(script_frames(innermost), engine.writer.modules.namespaces(), engine.saves.future)
    rebuild.resolve(nodes)
    _put_bases(nodes, rebuild.objects, trees)
    if loaders is not None:
        _lead_generators(engine, nodes, rebuild.objects, loaders)
    for number, record in (loaders or {}).items():
        there, kind = rebuild.objects[number], nodes[number].kind
        if kind is Kind.CYCLE and there is not ABSENT:  # if it is, the check at the end says it
            lead_iterators.lead_cycle(engine.draws, there, Place(*nodes[number].content), record)
        if kind in (Kind.CYCLE, Kind.GENERATOR):
            continue
        loader = rebuild.objects[record.loader] if record.loader >= 0 else ABSENT
        if loader is ABSENT and there is not ABSENT:
            loader = engine.draws.tracks[there].loader
        if loader is ABSENT:
            raise StateMismatchError("a data loader's iterator is not where the lost rank had it, nor is its loader")
        made, last = lead_iterators.rebuild(engine.draws, loader, record)
        rebuild.objects[number], rebuild.last[id(made)] = made, last
    rebuild.fill()
    if loaders is not None:  # at an outer loop's head it can still come
        rebuild.check_complete()


def _lead_generators(
    engine: Engine, nodes: list[EncodedNode], objects: list[Any], loaders: dict[int, payload.LoaderRecord]
) -> None:
    for number, node in enumerate(nodes):
        if node.kind is Kind.GENERATOR and objects[number] is not ABSENT:
            lead_iterators.lead_generator(engine.draws, objects[number], node.content, loaders.get(number))


def _put_bases(nodes: list[EncodedNode], objects: list[Any], trees: tuple[Any, ...]) -> None:
    """Journals hold the difference to the trees that set-up had made."""
    for node, root in zip(nodes, objects):
        if node.kind is Kind.MODULE and isinstance(root, torch.nn.Module) and node.content[0] >= 0:
            put_tree(trees[node.content[0]], root, lambda value, there: value)
