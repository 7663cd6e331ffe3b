"""Handle optimizers: attributes, parameter groups, and state that is no tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.handlers.containers import dict_item, same_dict, undo_dict
from torchrelay.shim.capture.handlers.handler import Handler, attribute, encode_mapping, not_made
from torchrelay.shim.capture.handlers.objects import fill_attributes
from torchrelay.shim.capture.models import optimizer_order
from torchrelay.shim.capture.models.bound_tensors import form_of
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.models.optimizer_entries import entry
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.edges import not_plain, same_items, same_mapping
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.parts import Bindings, optimizer_attributes, optimizer_hooks, set_attributes
from torchrelay.shim.capture.state.tags import FREE, TUPLE
from torchrelay.shim.capture.values.base_types import dict_items, fields
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT

_STATE = "state"
_OTHER = -2
"""In place of a parameter's place: what an optimizer keeps in its state under keys that are no tensors, one after the other."""

_KEYS = (_OTHER, "keys")
_ITSELF = ""
"""In place of the name of an entry: what an optimizer keeps for a parameter that is no dict of entries."""


if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def _capture(walk: Walk, kind: Kind, obj: torch.optim.Optimizer, parent: int, key: Any) -> None:
    content = optimizer_attributes(obj)
    number = walk.add(kind, obj, parent, key, content)
    walk.state.optimizers.append((walk.state.path(parent, key), obj))
    walk.edge(number, "param_groups", obj.param_groups)
    walk.push(number, content)
    for name, functions in optimizer_hooks(obj):
        walk.edge(number, name, functions)
    if walk.trees.has_plain_state(obj):
        values = _plain_values(obj, {})
        if values:
            walk.state.nodes[number].edges.append((_STATE, obj.state))
            if id(obj.state) in walk.state.index:
                return  # it stands for another optimizer, or another one for it: their state is one
            state = walk.add(Kind.OPTIMIZER_STATE, obj.state, number, _STATE, values)
            walk.state.nodes[state].seen = obj
            walk.push(state, values)


def _plain_values(optimizer: torch.optim.Optimizer, before: dict[tuple[int, Any], Any]) -> dict[tuple[int, Any], Any]:
    """Return optimizer state that is no tensor of a parameter: step counts, histories, what is kept under other keys.

    `before`: the state before, for orders that are still true.
    """
    found: dict[tuple[int, Any], Any] = {}
    orders: list[optimizer_order.Order] = []
    states = optimizer.state
    place = -1
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            place += 1
            values = entry(states, parameter)
            if not isinstance(values, dict):
                if values is not None:
                    found[place, _ITSELF] = values
                continue
            for name, value in values.items():
                if not isinstance(value, torch.Tensor):
                    found[place, name] = value
            order = optimizer_order.now(optimizer, place, parameter, values)
            if order:
                optimizer_order.add(orders, place, order)
    if orders:
        then = before.get(optimizer_order.KEY)
        found[optimizer_order.KEY] = then if then == tuple(orders) else tuple(orders)
    keys = _other_keys(states)
    if keys:
        found.update(((_OTHER, number), states[key]) for number, key in enumerate(keys))
        known = before.get(_KEYS, ())
        found[_KEYS] = known if same_items(known, keys) else tuple(keys)
    return found


def _renewed(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    optimizer = node.obj
    edges = dict(node.edges)
    if optimizer.param_groups is not edges["param_groups"]:
        raise WalkAnew
    kept = [(_STATE, optimizer.state)] if _STATE in edges else []
    if (edges[_STATE] is not optimizer.state) if kept else trees.has_plain_state(optimizer):
        raise WalkAnew
    own = optimizer.__dict__
    if node.seen is not None and node.seen.still_true(own):
        return None
    content = optimizer_attributes(optimizer)
    seen = Bindings(own, of_module=False)
    if same_mapping(content, node.content):
        node.seen = seen
        return None
    now = [("param_groups", optimizer.param_groups), *not_plain(content), *optimizer_hooks(optimizer), *kept]
    return StateNode(node.kind, optimizer, node.parent, node.key, content, now)


def _undo(node: StateNode) -> None:
    set_attributes(node.obj, node.content, remove_new=False)
    own = fields(node.obj)
    if own is not None and "param_groups" in own:
        own["param_groups"] = dict(node.edges)["param_groups"]


def _make(rebuild: StateRebuild, node: EncodedNode) -> Any:
    """Make an optimizer as pickle does. Its groups are filled with this process's parameters, its state comes from a donor."""
    if node.cls is None:
        return not_made(rebuild, node)
    made: Any = object.__new__(node.cls)
    if isinstance(getattr(node.cls, "param_groups", None), property):
        return made  # it stands for another one, and has groups and state of none
    try:
        made.__setstate__({"defaults": {}, "state": defaultdict(dict), "param_groups": []})
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):  # it wants to be told something
        return not_made(rebuild, node)
    return made


def _child(parent: Any, key: Any) -> Any:
    if key in ("state", "param_groups"):
        return getattr(parent, key, ABSENT)  # properties, where one optimizer stands for another that is not there yet
    return attribute(parent, key)


# Parameter groups: dicts whose parameters are known by where they stand in a model.


def _capture_group(walk: Walk, kind: Kind, obj: dict[str, Any], parent: int, key: Any) -> None:
    content = dict_items(obj)
    number = walk.add(kind, obj, parent, key, content)
    walk.state.nodes[number].seen = [*content["params"]]
    walk.fields(number, obj)
    walk.push(number, {name: value for name, value in content.items() if name != "params"})


def _same_group(trees: ModuleTrees, node: StateNode) -> bool:
    return same_dict(trees, node) and same_items(node.content["params"], node.seen)


def _undo_group(node: StateNode) -> None:
    undo_dict(node)
    params = node.content["params"]
    if not same_items(params, node.seen):
        params[:] = node.seen


def _encode_group(encoder: Encoder, node: StateNode) -> Any:
    encoded = encoder.mapping({name: value for name, value in node.content.items() if name != "params"})
    number = encoder.state.index[id(node.obj)]
    parameters = [
        encoder.bound(p) or encoder.reference(p) or encoder.grouped(p, but=number) or (FREE, form_of(p))
        for p in node.seen
    ]
    return {**encoded, "params": (TUPLE, None, parameters)}


def _make_group(rebuild: StateRebuild, node: EncodedNode) -> Any:
    return {"params": []}


def _group_fits(node: EncodedNode, there: Any) -> bool:
    return issubclass(type(there), dict)


def _fill_group(rebuild: StateRebuild, node: EncodedNode, obj: dict[str, Any]) -> None:
    parameters = rebuild.parameters_of(node, obj)
    if not same_items(obj["params"], parameters):
        obj["params"][:] = parameters
    obj.update(rebuild.mapping({k: v for k, v in node.content.items() if k != "params"}, obj))


def _renewed_state(trees: ModuleTrees, node: StateNode) -> StateNode | None:
    then = node.content
    now = _plain_values(node.seen, node.content)
    if not now:
        raise WalkAnew
    if len(now) == len(then) and all(map(is_, map(then.get, now, repeat(ABSENT)), now.values())):
        return None
    return StateNode(node.kind, node.obj, node.parent, node.key, now, not_plain(now), node.seen)


def _state_fits(node: EncodedNode, there: Any) -> bool:
    return issubclass(type(there), dict)


def _fill_state(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    """Fill the state of the optimizer, which is the parent. Values are known by the places of their parameters."""
    optimizer = rebuild.objects[node.parent]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys = rebuild.decode(node.content[_KEYS], ()) if _KEYS in node.content else ()
    for (place, name), value in node.content.items():
        if (place, name) == optimizer_order.KEY:
            optimizer_order.remember(optimizer, rebuild.decode(value, ABSENT))
            continue
        if place == _OTHER:
            if name != _KEYS[1]:
                _fill_other(rebuild, node, optimizer.state, keys[name : name + 1], value)
            continue
        if place >= len(parameters):
            raise StateMismatchError(
                f"the optimizer has {len(parameters)} parameters and had more where it was recorded"
            )
        decoded = rebuild.decode(value, ABSENT)
        if decoded is not ABSENT:
            put_value(optimizer, (place, name), decoded)


def _fill_other(
    rebuild: StateRebuild, node: EncodedNode, states: dict[Any, Any], keys: Sequence[Any], value: Any
) -> None:
    """Fill the value under a key that is no tensor. `keys`: that key; none where this process cannot know it."""
    if not keys:
        raise StateMismatchError(f"{rebuild.path(node)}: training has added a key that no other process can know")
    decoded = rebuild.decode(value, states.get(keys[0], ABSENT))
    if decoded is not ABSENT:
        states[keys[0]] = decoded


def put_value(optimizer: torch.optim.Optimizer, key: tuple[int, Any], value: Any) -> None:
    """Put a value that is no tensor in its place in the optimizer's state."""
    place, name = key
    states = optimizer.state
    if place == _OTHER:
        states[_other_keys(states)[name]] = value
        return
    parameter = [p for group in optimizer.param_groups for p in group["params"]][place]
    if name == _ITSELF:
        states[parameter] = value
    else:
        states[parameter][name] = value


def _other_keys(states: Mapping[Any, Any]) -> list[Any]:
    return [key for key in states if not isinstance(key, torch.Tensor)]


def _of_state(optimizer: torch.optim.Optimizer, key: tuple[int, Any]) -> Any:
    """Return what an optimizer has made already by itself, since other objects may hold it, too; ABSENT where there is nothing."""
    place, name = key
    if place == _OTHER:
        keys = _other_keys(optimizer.state)
        return optimizer.state[keys[name]] if type(name) is int and name < len(keys) else ABSENT
    for group in optimizer.param_groups:
        if place < len(group["params"]):
            values = entry(optimizer.state, group["params"][place])
            if name == _ITSELF and values is not None:
                return values
            return values.get(name, ABSENT) if isinstance(values, dict) else ABSENT
        place -= len(group["params"])
    return ABSENT


HANDLERS = (
    Handler(
        Kind.OPTIMIZER,
        capture=_capture,
        renewed=_renewed,
        undo=_undo,
        encode=encode_mapping,
        make=_make,
        fill=fill_attributes,
        child=_child,
    ),
    Handler(
        Kind.OPTIMIZER_STATE,  # put back with the tensors beside it, by `OptimizerStates`
        renewed=_renewed_state,
        encode=encode_mapping,
        fits=_state_fits,
        fill=_fill_state,
        child=_of_state,
        turn=2,
    ),
    Handler(
        Kind.PARAM_GROUP,
        capture=_capture_group,
        same=_same_group,
        undo=_undo_group,
        encode=_encode_group,
        make=_make_group,
        fits=_group_fits,
        fill=_fill_group,
        child=dict_item,
    ),
)
