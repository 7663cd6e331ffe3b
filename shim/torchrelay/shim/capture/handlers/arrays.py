"""Handle arrays of numpy.

Small ones, and larger ones that training has made, go by value. Those that share a parameter's memory go by what they share; those
of objects by what they hold. An array that looks into the memory of another small one has no node: see `array_windows`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.containers import BULK_LENGTH
from torchrelay.shim.capture.handlers.handler import Handler, of_same_class
from torchrelay.shim.capture.models.aliases import Alias, as_tensor, is_by_value, memory_of
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.edges import same_items
from torchrelay.shim.capture.state.host_state import Inside, StateNode
from torchrelay.shim.capture.state.key_text import text_of
from torchrelay.shim.capture.values import large_arrays, small
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.array_windows import is_window
from torchrelay.shim.capture.values.kinds import PLAIN, Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    if is_window(obj):
        walk.queue.append((parent, Inside(key, "base"), obj.base))
    elif obj.dtype.kind == "O":
        _capture_objects(walk, obj, parent, key)
    elif not large_arrays.is_large(obj):
        walk.add(Kind.NDARRAY, obj, parent, key, obj.copy("K"))
    elif walk.trees.owner_of_array(obj) is not None:
        walk.add(Kind.NDARRAY, obj, parent, key, None)  # until the walk is over, and its models have their numbers
    elif walk.trees.arrays.is_carried(obj):
        walk.add(Kind.NDARRAY, obj, parent, key, obj.copy("K"))
    elif obj.flags.writeable:
        walk.unknown(
            f"{walk.state.path(parent, key)} (an array larger than {small.SMALL_BYTES >> 10} KiB)", parent, key
        )
    else:
        what = large_arrays.READ_ONLY if walk.trees.arrays.is_of_set_up(obj) else large_arrays.NEW_READ_ONLY
        walk.unknown(f"{walk.state.path(parent, key)} {what}", parent, key)


def _same(trees: ModuleTrees, node: StateNode) -> bool:
    now = node.obj
    then = node.content
    if isinstance(then, Alias):
        if trees.owner_of_array(now) is None:
            raise WalkAnew
        return True
    if then is None or type(now.base) is bytes:  # nobody can write to bytes
        return True
    return _is_alike(now, then)


def _is_alike(now: Any, then: Any) -> bool:
    return large_arrays.is_same(now, then) if large_arrays.is_large(then) else alike(now, then)


def put(obj: Any, content: Any) -> None:
    if obj.flags.writeable:
        obj[...] = content


def _undo(node: StateNode) -> None:
    if is_by_value(node.content):
        put(node.obj, node.content)


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    content = node.content
    if is_by_value(content):
        return content.copy("K")
    root = ABSENT if content is None else rebuild.there(content.root)
    if root is ABSENT:
        rebuild.leaves(f"array {text_of(node.key)}")
        return ABSENT
    return content.array(root)


def _fits(node: EncodedNode, there: Any) -> bool:
    content = node.content
    if not of_same_class(node, there) or content is None:
        return False
    if isinstance(content, Alias):
        tensor = as_tensor(there) if memory_of(there) else None
        return tensor is not None and content.fits(tensor) and tensor.stride() == content.stride
    if is_window(there):  # it looks into another one's memory here, and has memory of its own there
        return False
    if (there.shape, there.dtype) != (content.shape, content.dtype):
        return False
    return bool(there.flags.writeable) or _is_alike(there, content)


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    content = node.content
    if is_by_value(content):
        put(obj, content)
    elif content.array(rebuild.objects[content.root]).ctypes.data != obj.ctypes.data:
        raise StateMismatchError(f"{rebuild.path(node)} shares other memory than that of {content.name}")


# Arrays of objects: as lists, with a form.


def _capture_objects(walk: Walk, obj: Any, parent: int, key: Any) -> None:
    if obj.size > BULK_LENGTH or type(obj) is not sys.modules["numpy"].ndarray:
        walk.unknown(f"{walk.state.path(parent, key)} (an array of objects)", parent, key)
        return
    items = _objects(obj)
    number = walk.add(Kind.OBJECT_ARRAY, obj, parent, key, items)
    walk.state.nodes[number].seen = obj.shape
    for place, value in enumerate(items):
        if type(value) not in PLAIN:
            walk.edge(number, place, value)


def _objects(array: Any) -> list[Any]:
    items: list[Any] = array.reshape(-1).tolist()
    return items


def _same_objects(trees: ModuleTrees, node: StateNode) -> bool:
    return node.obj.shape == node.seen and same_items(_objects(node.obj), node.content)


def _with_objects(shape: tuple[int, ...], items: list[Any]) -> Any:
    """Return a new array of objects. They are put in one by one: numpy would take a list, or an array, for several."""
    made = sys.modules["numpy"].empty(len(items), dtype=object)
    for place, item in enumerate(items):
        made[place] = item
    return made.reshape(shape)


def _undo_objects(node: StateNode) -> None:
    if not _same_objects_as(node.obj, node.content):
        put(node.obj, _with_objects(node.obj.shape, node.content))


def _same_objects_as(array: Any, items: list[Any]) -> bool:
    return same_items(_objects(array), items)


def _encode_objects(encoder: Encoder, node: StateNode) -> Any:
    return encoder.elements(node.content)


def _shape(encoder: Encoder, node: StateNode) -> Any:
    return node.obj.shape


def _make_objects(rebuild: StateRebuild, node: EncodedNode) -> Any:
    assert node.cls is not None  # numpy's, which the journal names
    return node.cls(node.extra, dtype=object)


def _objects_fit(node: EncodedNode, there: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and type(there) is numpy.ndarray and (there.dtype.kind, there.shape) == ("O", node.extra)


def _fill_objects(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    put(obj, _with_objects(obj.shape, rebuild.items(node.content, _objects(obj), text_of(node.key))))


def _object(parent: Any, key: Any) -> Any:
    return parent.reshape(-1)[key] if isinstance(key, int) and key < parent.size else ABSENT


HANDLERS = (
    Handler(
        Kind.NDARRAY,
        capture=_capture,
        same=_same,
        undo=_undo,
        make=_make,
        fits=_fits,
        fill=_fill,
        comes_and_goes=True,
    ),
    Handler(
        Kind.OBJECT_ARRAY,
        capture=_capture,
        same=_same_objects,
        undo=_undo_objects,
        encode=_encode_objects,
        extra=_shape,
        make=_make_objects,
        fits=_objects_fit,
        fill=_fill_objects,
        child=_object,
        comes_and_goes=True,
    ),
)
