"""Handle functions and classes of the script, and what a step itself defines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.containers import capture_inside
from torchrelay.shim.capture.handlers.handler import Handler, encode_mapping, not_made, of_same_class
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.edges import NOTHING
from torchrelay.shim.capture.state.host_state import Fields, StateNode
from torchrelay.shim.capture.state.parts import set_class_attributes
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk

_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__")


def name_of(obj: Any) -> tuple[str, str]:
    return str(obj.__module__), obj.__qualname__


def _name(encoder: Encoder, node: StateNode) -> tuple[str, str]:
    return name_of(node.obj)


def _name_and_form(encoder: Encoder, node: StateNode) -> tuple[Any, ...]:
    return (*name_of(node.obj), encoder.function_form(node.obj))


def _make_function(rebuild: StateRebuild, node: EncodedNode) -> Any:
    form = node.extra[2]
    return not_made(rebuild, node) if form is None else rebuild.empty_function(form)


def _fits(node: EncodedNode, there: Any) -> bool:
    return of_same_class(node, there) and bool(node.extra[:2] == name_of(there))


def _capture_function(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    if not callables.is_users_function(obj):
        capture_inside(walk, kind, obj, parent, key)
        return
    content = callables.variables(obj)
    fields = callables.fields(obj)
    defaults = callables.defaults(obj)
    walk.define(vars(obj), None)
    if content or defaults or fields:
        number = walk.add(kind, obj, parent, key, content)
        walk.push(number, content)
        walk.push(number, defaults)
        if fields:
            walk.edge(number, Fields(), fields)


def _same_function(trees: ModuleTrees, node: StateNode) -> bool:
    if bool(callables.fields(node.obj)) != any(type(key) is Fields for key, _ in node.edges):
        return False
    now = callables.cells(node.obj) if node.content else {}
    return all(now.get(name, NOTHING) is value for name, value in node.content.items())


def _undo_function(node: StateNode) -> None:
    callables.bind(node.obj, node.content)


def _fill_function(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    found = rebuild.mapping(node.content, callables.cells(obj))
    lost = [name for name in node.content if name not in found]
    if lost:
        raise StateMismatchError(f"the function {obj.__qualname__}: {lost[0]!r} has state that cannot be carried")
    callables.bind(obj, found)


def _of_function(parent: Any, key: Any) -> Any:
    return getattr(parent, key) if key in _OF_FUNCTIONS else callables.cells(parent).get(key, ABSENT)


def _capture_class(walk: Walk, kind: Kind, obj: type, parent: int, key: Any) -> None:
    if not callables.is_users_class(obj):
        return
    content = callables.class_state(obj)
    walk.define(vars(obj), obj)
    if content:
        walk.push(walk.add(kind, obj, parent, key, content), content)


def _same_class(trees: ModuleTrees, node: StateNode) -> bool:
    space = vars(node.obj)
    return all(space.get(name, NOTHING) is value for name, value in node.content.items())


def _undo_class(node: StateNode) -> None:
    set_class_attributes(node.obj, node.content)


def _fill_class(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    set_class_attributes(obj, rebuild.mapping(node.content, dict(vars(obj))))


def _of_class(parent: Any, key: Any) -> Any:
    return vars(parent).get(key, ABSENT)


HANDLERS = (
    Handler(
        Kind.FUNCTION,
        capture=_capture_function,
        same=_same_function,
        undo=_undo_function,
        encode=encode_mapping,
        extra=_name_and_form,
        make=_make_function,
        fits=_fits,
        fill=_fill_function,
        child=_of_function,
        comes_and_goes=True,
    ),
    Handler(
        Kind.CLASS,
        capture=_capture_class,
        same=_same_class,
        undo=_undo_class,
        encode=encode_mapping,
        extra=_name,
        fits=_fits,
        fill=_fill_class,
        child=_of_class,
        comes_and_goes=True,
    ),
)
