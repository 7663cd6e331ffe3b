"""Arrays of numpy: small ones by value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.shim.capture import small
from torchrelay.shim.capture.handler import Handler, of_same_class
from torchrelay.shim.capture.kinds import Kind

if TYPE_CHECKING:
    from torchrelay.shim.capture.encode import EncodedNode
    from torchrelay.shim.capture.host_state import Node
    from torchrelay.shim.capture.modules import ModuleTrees
    from torchrelay.shim.capture.rebuild import Rebuild
    from torchrelay.shim.capture.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    if obj.nbytes <= small.SMALL_BYTES and obj.dtype.kind != "O":
        walk.add(kind, obj, parent, key, obj.copy())
    elif obj.flags.writeable:
        what = "of objects" if obj.dtype.kind == "O" else f"larger than {small.SMALL_BYTES >> 10} KiB"
        walk.unknown(f"{walk.state.path(parent, key)} (an array {what})", parent, key)


def _same(trees: ModuleTrees, node: Node) -> bool:
    now, then = node.obj, node.content
    return bool(now.shape == then.shape and now.dtype == then.dtype and now.tobytes() == then.tobytes())


def put(obj: Any, content: Any) -> None:
    if obj.flags.writeable:
        obj[...] = content


def _undo(node: Node) -> None:
    put(node.obj, node.content)


def _make(rebuild: Rebuild, node: EncodedNode) -> Any:
    return node.content.copy()


def _fits(node: EncodedNode, there: Any) -> bool:
    form = node.content.shape, node.content.dtype
    return of_same_class(node, there) and bool((there.shape, there.dtype) == form)


def _fill(rebuild: Rebuild, node: EncodedNode, obj: Any) -> None:
    put(obj, node.content)


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
