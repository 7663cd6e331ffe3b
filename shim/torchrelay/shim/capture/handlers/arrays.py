"""Arrays of numpy: small ones by value, those that share a parameter's memory by what they share.

One that looks into the memory of another small one has no node: see `array_windows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.handler import Handler, of_same_class
from torchrelay.shim.capture.models.aliases import Alias, as_tensor, is_by_value, memory_of
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.host_state import Inside
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.array_windows import is_window
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.models.modules import ModuleTrees
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.state.host_state import StateNode
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    if is_window(obj):
        walk.queue.append((parent, Inside(key, "base"), obj.base))
        return
    if obj.nbytes <= small.SMALL_BYTES and obj.dtype.kind != "O":
        walk.add(kind, obj, parent, key, obj.copy())
    elif walk.trees.owner_of_array(obj) is not None:
        walk.add(kind, obj, parent, key, None)  # until the walk is over, and its models have their numbers
    elif obj.flags.writeable:
        what = "of objects" if obj.dtype.kind == "O" else f"larger than {small.SMALL_BYTES >> 10} KiB"
        walk.unknown(f"{walk.state.path(parent, key)} (an array {what})", parent, key)


def _same(trees: ModuleTrees, node: StateNode) -> bool:
    now, then = node.obj, node.content
    if isinstance(then, Alias):
        if trees.owner_of_array(now) is None:
            raise WalkAnew
        return True
    if then is None:
        return True
    return alike(now, then)


def put(obj: Any, content: Any) -> None:
    if obj.flags.writeable:
        obj[...] = content


def _undo(node: StateNode) -> None:
    if is_by_value(node.content):
        put(node.obj, node.content)


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    content = node.content
    if is_by_value(content):
        return content.copy()
    root = ABSENT if content is None else rebuild.there(content.root)
    if root is ABSENT:
        rebuild.leaves(f"array {node.key!r}")
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
    return bool((there.shape, there.dtype) == (content.shape, content.dtype))


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    content = node.content
    if is_by_value(content):
        put(obj, content)
    elif content.array(rebuild.objects[content.root]).ctypes.data != obj.ctypes.data:
        raise StateMismatchError(f"{rebuild.path(node)} shares other memory than that of {content.name}")


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
)
