"""Iterators of the script's own: `itertools.cycle`, generators. They are led to their place; what was drawn comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.shim.adapters import cycles, held_generators
from torchrelay.shim.capture.edges import not_plain, same_mapping
from torchrelay.shim.capture.handler import Handler, encode_mapping
from torchrelay.shim.capture.host_state import Node
from torchrelay.shim.capture.kinds import Kind
from torchrelay.shim.capture.replay_point import ABSENT
from torchrelay.shim.capture.seen_again import Restart

if TYPE_CHECKING:
    from torchrelay.shim.capture.encode import Encoder
    from torchrelay.shim.capture.modules import ModuleTrees
    from torchrelay.shim.capture.walk import Walk


def _capture_cycle(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Whether it can be led to its place depends on what it draws from: the writer knows that."""
    walk.add(kind, obj, parent, key, cycles.place_of(obj))
    name = f"{walk.state.path(parent, key)} (cycle)"
    walk.unknown(name, parent, key)
    walk.state.iterators.append((name, obj))


def _renewed_cycle(trees: ModuleTrees, node: Node) -> Node | None:
    place = cycles.place_of(node.obj)
    return None if place == node.content else Node(node.kind, node.obj, node.parent, node.key, place)


def _encode_cycle(encoder: Encoder, node: Node) -> Any:
    return None if node.content is None else tuple(node.content)


def _capture_generator(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """A running loop leads its own to its place."""
    name = f"{walk.state.path(parent, key)} (generator)"
    walk.unknown(name, parent, key)
    walk.state.iterators.append((name, obj))
    found = held_generators.stand(obj) if id(obj) not in walk.trees.of_loops else None
    if found is not None:
        number = walk.add(kind, obj, parent, key, found.content)
        walk.state.nodes[number].seen = found.source
        walk.push(number, found.given)


def _renewed_generator(trees: ModuleTrees, node: Node) -> Node | None:
    found = held_generators.stand(node.obj) if id(node.obj) not in trees.of_loops else None
    if found is None or not same_mapping(dict(not_plain(found.given)), dict(node.edges)):
        raise Restart
    if found.content == node.content and found.source is node.seen:
        return None
    return Node(node.kind, node.obj, node.parent, node.key, found.content, node.edges, found.source)


def _of_generator(parent: Any, key: Any) -> Any:
    return parent.gi_frame.f_locals.get(key, ABSENT) if parent.gi_frame is not None else ABSENT


HANDLERS = (
    Handler(Kind.CYCLE, capture=_capture_cycle, renewed=_renewed_cycle, encode=_encode_cycle),
    Handler(
        Kind.GENERATOR,
        capture=_capture_generator,
        renewed=_renewed_generator,
        encode=encode_mapping,
        child=_of_generator,
    ),
)
