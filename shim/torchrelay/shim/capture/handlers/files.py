"""Handle files that training reads, and files in memory: by where the next read begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.handler import Handler, of_same_class
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.key_text import text_of
from torchrelay.shim.capture.values import by_value, read_files
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.read_files import FilePlace, ReadForm
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture a file that is read. One that is closed, or only written to, has no node."""
    if not read_files.is_read(obj) or by_value.is_standard_stream(obj):
        return
    place = read_files.place_of(obj)
    if place is None or _is_read_by_another(walk, obj):
        walk.unknown(f"{walk.state.path(parent, key)} ({type(obj).__qualname__})", parent, key)
        return
    number = walk.add(kind, obj, parent, key, place)
    walk.state.nodes[number].seen = read_files.form_of(obj)


def _is_read_by_another(walk: Walk, file: Any) -> bool:
    """Return whether another object that the script holds reads the same file: the two do not stand in one place."""
    if read_files.is_text(file):
        return id(file.buffer) in walk.state.index
    others = (node.obj for node in walk.state.nodes if node.kind is Kind.FILE and read_files.is_text(node.obj))
    return any(other.buffer is file for other in others)


def _now(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    place = read_files.place_of(node.obj)
    if place == node.content:
        return None
    if node.content.mark is not None and place is not None and place.mark != node.content.mark:
        trees.files.kept_open.add(_name(node.obj, node.seen))
    if place is None or place.place is None:  # a walk from scratch names the one, and leaves the other out
        raise WalkAnew
    return StateNode(node.kind, node.obj, node.parent, node.key, place, seen=node.seen)


def _put(obj: Any, place: FilePlace | None, form: ReadForm | None) -> None:
    try:
        if place is None:
            raise ValueError("it could not be told where that is")
        read_files.put(obj, place, form)
    except (OSError, ValueError, BufferError) as e:
        name = _name(obj, form)
        raise StateMismatchError(f"{name}, which training reads, cannot be read from where it was: {e}") from e


def _name(file: Any, form: ReadForm | None) -> str:
    return form.path if form is not None else f"a {type(file).__qualname__}"


def _undo(node: StateNode) -> None:
    now = read_files.place_of(node.obj) if node.content.mark is not None else None
    if now is not None and now.mark != node.content.mark and now.place is not None:
        raise StateMismatchError(f"{_name(node.obj, node.seen)}: the step has written to what training reads")
    _put(node.obj, node.content, node.seen)


def _encode(encoder: Encoder, node: StateNode) -> Any:
    return tuple(node.content[:2])


def _form(encoder: Encoder, node: StateNode) -> Any:
    return node.seen


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    if node.cls in read_files.IN_MEMORY and node.content[1] is not None:
        return node.cls(node.content[1])
    if node.extra is None:
        rebuild.leaves(f"file {text_of(node.key)}")
        return ABSENT
    try:
        return node.extra.open(rebuild.opens)
    except OSError as e:
        raise StateMismatchError(f"{node.extra.path}, which training reads, cannot be opened here: {e}") from e


def _fits(node: EncodedNode, there: Any) -> bool:
    if not of_same_class(node, there) or not read_files.is_read(there):
        return False
    form = read_files.form_of(there)
    return node.extra is None or (form is not None and form.path == node.extra.path)


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    _put(obj, FilePlace(*node.content), node.extra)


HANDLERS = (
    Handler(
        Kind.FILE,
        capture=_capture,
        renewed=_now,
        undo=_undo,
        encode=_encode,
        extra=_form,
        make=_make,
        fits=_fits,
        fill=_fill,
        comes_and_goes=True,
    ),
)
