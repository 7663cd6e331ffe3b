"""Handle iterators of the script's own: generators, `enumerate` and its like, `itertools.cycle`.

They are put to where they stood. What data loaders below them have yielded comes again from the record of draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator
from types import CellType
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import cycles, generator_frames
from torchrelay.shim.adapters.cpython import plain_iterators as plain
from torchrelay.shim.capture.handlers.handler import Handler
from torchrelay.shim.capture.iteration import generator_position as stands
from torchrelay.shim.capture.iteration.generator_position import CodeOrigin, GeneratorStand
from torchrelay.shim.capture.iteration.loader_order import LoaderIter
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.edges import not_plain
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.tags import REF
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


# A cycle over a data loader. Any other one is an iterator of Python's own.


def _is_led(trees: ModuleTrees, cycle: Any) -> bool:
    """Return whether the cycle has its items from a data loader: a new process draws them again, and is not given them."""
    return (
        cycles.stand_of(cycle) is None
        or id(cycle) in trees.led_cycles
        or isinstance(cycles.iterator_of(cycle), LoaderIter)
    )


def _capture_cycle(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture a cycle. The writer knows what was drawn from its loader, and so whether it can be led to its place."""
    if not _is_led(walk.trees, obj):
        _capture_iterator(walk, Kind.ITERATOR, obj, parent, key)
        return
    walk.add(kind, obj, parent, key, cycles.stand_of(obj))
    name = f"{walk.state.path(parent, key)} (cycle)"
    walk.unknown(name, parent, key)
    walk.state.iterators.append((name, obj))


def _renewed_cycle(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    if not _is_led(trees, node.obj):
        raise WalkAnew
    stand = cycles.stand_of(node.obj)
    if stand is None or stand.place == node.content.place:
        return None
    return StateNode(node.kind, node.obj, node.parent, node.key, stand)


def _undo_cycle(node: StateNode) -> None:
    if node.content is not None:
        cycles.put_back(node.obj, node.content)


def _encode_cycle(encoder: Encoder, node: StateNode) -> Any:
    return None if node.content is None else tuple(node.content.place)


def _make_cycle(rebuild: StateRebuild, node: EncodedNode) -> Any:
    return itertools.cycle(())


def _name(walk: Walk, obj: Any, parent: int, key: Any) -> None:
    """Let an iterator that cannot be put to where it stood be led there, or name it.

    What it yields in a step comes again from the record.
    """
    led = walk.trees.led.way_to(obj) if id(obj) not in walk.trees.of_loops else None
    if led is not None:
        number = walk.add(Kind.LED, obj, parent, key, led.place)
        walk.state.nodes[number].seen = led
        return
    name = f"{walk.state.path(parent, key)} ({type(obj).__name__})"
    walk.unknown(name, parent, key)
    walk.state.iterators.append((name, obj))


# Iterators that are led.


def _renewed_led(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    led = trees.led.way_to(node.obj)
    if led is None:
        raise WalkAnew
    return (
        None
        if led.place == node.content
        else StateNode(node.kind, node.obj, node.parent, node.key, led.place, seen=led)
    )


def _undo_led(node: StateNode) -> None:
    node.seen.put(node.content)


def _encode_led(encoder: Encoder, node: StateNode) -> Any:
    return type(node.obj).__name__, _code_of(node.obj), tuple(node.content)


def _code_of(iterator: Any) -> int:
    return stands.checksum(iterator.gi_code) if kind_of(type(iterator)) is Kind.GENERATOR else 0


def _fits_led(node: EncodedNode, there: Any) -> bool:
    return hasattr(type(there), "__next__") and node.content[:2] == (type(there).__name__, _code_of(there))


# Generators.


def _edges(found: GeneratorStand) -> list[tuple[Any, Any]]:
    return not_plain({**found.values, **found.cells})


def _capture_generator(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    led = walk.trees.led
    if led.is_below(obj) and not led.is_wanted(obj):
        return
    found = stands.standing(obj)
    if found is None or led.is_wanted(obj) or not stands.is_whole(obj, walk.trees.queues.go_back()):
        _name(walk, obj, parent, key)
        return
    led.meet(obj)
    made = walk.trees.data_origins
    made.note((obj,), made.fresh())
    number = walk.add(kind, obj, parent, key, found)
    for name, value in _edges(found):
        walk.edge(number, name, value)


def _renewed_generator(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    go_back = trees.queues.go_back()
    if trees.led.is_wanted(node.obj) or trees.led.is_below(node.obj):
        raise WalkAnew
    if not go_back and stands.stands_still(node.obj, node.content):
        return None  # what it draws from is looked at by itself
    found = stands.standing(node.obj)
    if found is None or not stands.is_whole(node.obj, go_back):
        raise WalkAnew
    if found.same(node.content):
        return None
    trees.led.forget(node.obj)
    return StateNode(node.kind, node.obj, node.parent, node.key, found, _edges(found))


def _undo_generator(node: StateNode) -> None:
    stands.put_back(node.obj, node.content)


def _encode_generator(encoder: Encoder, node: StateNode) -> Any:
    found: GeneratorStand = node.content
    if found.runs:
        return tuple(stands.origin(found)), None, None, None
    if found.stand is None:
        return None
    depth = len(found.stand.slots) - len(generator_frames.names(found.code))
    place = found.stand.state, found.stand.at, depth, found.stand.rest
    return tuple(stands.origin(found)), place, encoder.mapping(found.values), encoder.mapping(found.cells)


def _fits(node: EncodedNode, there: Any) -> bool:
    if type(there) is not generator_frames.Generator:
        return False
    if node.content is None:
        return True
    return stands.is_code_of(there.gi_code, CodeOrigin(*node.content[0]))


def _make_generator(rebuild: StateRebuild, node: EncodedNode) -> Any:
    runs = node.content is not None and node.content[1] is None
    found = stands.code_of(CodeOrigin(*node.content[0])) if node.content is not None and not runs else None
    if found is None or stands.shares_variables(found.code, found.around):
        rebuild.lacks(node)
        return ABSENT
    cells = tuple(map(_new_cell, found.code.co_freevars))
    made = generator_frames.made(found.code, found.namespace, found.code.co_name, cells)
    rebuild.made_generators.append(made)
    return made


def _new_cell(_: str) -> CellType:
    return CellType()


def _fill_generator(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    if node.content is None:
        obj.close()
        return
    _, place, values, cells = node.content
    now = stands.standing(obj)
    if place is None:
        if now is None or not now.runs:
            raise StateMismatchError(f"the generator {obj.__qualname__} does not run where it trains")
        return
    if now is None or now.runs:
        raise StateMismatchError(f"the generator {obj.__qualname__} runs where it should be entered")
    is_made = any(made is obj for made in rebuild.made_generators)
    if now.stand is None:
        generator_frames.wake(obj, _anew(rebuild, node))
        now = stands.standing(obj)
        is_made = True
        assert now is not None
    own = {} if is_made else {**now.values, **now.cells}  # what is made has None for all that it was not given
    found = rebuild.mapping(values, own)
    shared = rebuild.mapping(cells, own)
    lost = [name for name in (*values, *cells) if name not in found and name not in shared]
    if lost:
        raise StateMismatchError(f"the generator {obj.__qualname__}: {lost[0]!r} has state that cannot be carried")
    stands.enter(obj, place, GeneratorStand(None, found, shared, obj.gi_code, {}))


def fill_where_alike(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    """Give the recorded variables to a generator that this process has drawn from itself, if it stands where it was recorded.

    What it draws from is left as it is. A generator that stands elsewhere is left alone: the comparison with the journal names it.
    """
    now = stands.standing(obj)
    if node.content is None or node.content[1] is None or now is None or now.stand is None:
        return
    depth = len(now.stand.slots) - len(generator_frames.names(now.code))
    if (now.stand.state, now.stand.at, depth) == node.content[1][:3]:
        _fill_generator(rebuild, node, obj)


def generators_to_begin(rebuild: StateRebuild, nodes: list[EncodedNode], to_come: Container[int] = ()) -> Iterator[Any]:
    """Yield generators of set-up that have to begin here, since they lack something that is not made without them.

    They have not begun here, and had begun where they were recorded. `to_come`: nodes that have no object yet, and are made later.
    """
    lacking = {
        number
        for number, obj in enumerate(rebuild.objects)
        if obj is ABSENT and nodes[number].kind is not Kind.GONE and number not in to_come
    }
    for number in [*lacking]:
        while (number := nodes[number].parent) >= 0 and number not in lacking:
            lacking.add(number)
    for number, node in enumerate(nodes):
        obj = rebuild.objects[number]
        if node.kind is not Kind.GENERATOR or node.content is None or obj is ABSENT:
            continue
        now, (_, place, values, cells) = stands.standing(obj), node.content
        if now is None or now.stand is None or place is None:
            continue
        if not stands.has_not_begun(obj) or now.stand.at == place[1]:
            continue
        own = {**now.values, **now.cells}
        unknown = [
            value
            for part in (values, cells)
            for name, value in part.items()
            if rebuild.decode(value, own.get(name, ABSENT)) is ABSENT
        ]
        if number in lacking or any(value[0] != REF or value[1] not in to_come for value in unknown):
            yield obj


def _anew(rebuild: StateRebuild, node: EncodedNode) -> Any:
    made = _make_generator(rebuild, node)
    if made is ABSENT:
        raise StateMismatchError(f"the generator {node.content[0][2]} is over here, and cannot be made again")
    return made


def _of_generator(parent: Any, key: Any) -> Any:
    found = stands.standing(parent)
    return ABSENT if found is None else found.values.get(key, found.cells.get(key, ABSENT))


# Python's own.


def _capture_iterator(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    place = plain.read(obj)
    if place is None or not stands.is_whole(obj, walk.trees.queues.go_back()):
        _name(walk, obj, parent, key)
        return
    number = walk.add(kind, obj, parent, key, place)
    for word, value in not_plain(place.held):
        walk.edge(number, word, value)


def _renewed_iterator(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    place = plain.read(node.obj)
    if place is None or not stands.is_whole(node.obj, trees.queues.go_back()):
        raise WalkAnew
    if place.same(node.content):
        return None
    return StateNode(node.kind, node.obj, node.parent, node.key, place, not_plain(place.held))


def _undo_iterator(node: StateNode) -> None:
    plain.write(node.obj, node.content)


def _encode_iterator(encoder: Encoder, node: StateNode) -> Any:
    return type(node.obj).__name__, node.content.numbers, encoder.mapping(node.content.held)


def _fits_iterator(node: EncodedNode, there: Any) -> bool:
    name, numbers, _ = node.content
    return type(there) in plain.TYPES and type(there).__name__ == name and plain.has_room(there, numbers)


def _make_iterator(rebuild: StateRebuild, node: EncodedNode) -> Any:
    name, numbers, _ = node.content
    return plain.made(next(cls for cls in plain.TYPES if cls.__name__ == name), numbers)


def _fill_iterator(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    name, numbers, held = node.content
    now = plain.read(obj)
    found = rebuild.mapping(held, now.held if now is not None else {})
    if now is None or len(found) < len(held) or len(numbers) != len(now.numbers):
        raise StateMismatchError(f"a {name} draws from what has state that cannot be carried")
    plain.write(obj, plain.IteratorPlace(numbers, found))


def _of_iterator(parent: Any, key: Any) -> Any:
    place = plain.read(parent)
    return ABSENT if place is None else place.held.get(key, ABSENT)


HANDLERS = (
    Handler(
        Kind.LED,
        renewed=_renewed_led,
        undo=_undo_led,
        encode=_encode_led,
        fits=_fits_led,
        comes_and_goes=True,
    ),
    Handler(
        Kind.CYCLE,
        capture=_capture_cycle,
        renewed=_renewed_cycle,
        undo=_undo_cycle,
        encode=_encode_cycle,
        make=_make_cycle,
    ),
    Handler(
        Kind.GENERATOR,
        capture=_capture_generator,
        renewed=_renewed_generator,
        undo=_undo_generator,
        encode=_encode_generator,
        make=_make_generator,
        fits=_fits,
        fill=_fill_generator,
        child=_of_generator,
        comes_and_goes=True,
    ),
    Handler(
        Kind.ITERATOR,
        capture=_capture_iterator,
        renewed=_renewed_iterator,
        undo=_undo_iterator,
        encode=_encode_iterator,
        make=_make_iterator,
        fits=_fits_iterator,
        fill=_fill_iterator,
        child=_of_iterator,
        comes_and_goes=True,
    ),
)
