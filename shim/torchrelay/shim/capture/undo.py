"""Puts a host state back in place, in the process that it was taken in."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters import frames
from torchrelay.shim.adapters.tensor_versions import version_of, versions_of
from torchrelay.shim.capture import callables, small
from torchrelay.shim.capture.host_state import Definition, HostState, Node
from torchrelay.shim.capture.kinds import Kind
from torchrelay.shim.capture.long_list import LongContent
from torchrelay.shim.capture.parts import attributes

_MISSING = object()


def check_large_untouched(state: HostState) -> None:
    """Raises StateMismatchError if a tensor that was too large to copy was written to since the boundary."""
    written = [path for tensor, version, path in state.versions if version_of(tensor) != version]
    for tensors, versions in state.tree_versions:
        now = versions_of([tensor for _, tensor in tensors])
        written += [name for (name, _), version, then in zip(tensors, now, versions) if version != then]
    if written:
        raise StateMismatchError(
            f"written to since the boundary, and larger than {small.SMALL_BYTES} bytes: {', '.join(written[:5])}"
        )


def undo(state: HostState) -> None:
    """Every mutable object gets the content it had at the boundary; names rebound since mean their old objects again."""
    check_large_untouched(state)
    grown = [path for obj, length, path in state.bulk if len(obj) != length]
    if grown:
        raise StateMismatchError(f"taken for data, but changed since the boundary: {', '.join(grown[:5])}")
    for node in state.nodes:
        undo_node(node)
    for definition in state.definitions:
        _undo_definition(definition)


def _undo_definition(definition: Definition) -> None:
    """Attributes of functions and classes that were born since the boundary."""
    space, names, cls = definition
    if len(space) == len(names):
        return
    for name in set(space) - names:
        if cls is not None:
            type.__delattr__(cls, name)
        elif isinstance(space, dict):
            del space[name]


def undo_node(node: Node) -> None:
    kind, obj, content = node.kind, node.obj, node.content
    if issubclass(type(obj), IterableDataset):  # its `__class__` may be a property that asks for what the object lacks
        return  # what was drawn from it comes again from the record, and it goes on from where it is
    if kind is Kind.FRAME:
        now = obj.f_locals
        changed = {k: v for k, v in content.items() if now.get(k, _MISSING) is not v}
        if changed:
            frames.set_locals(obj, changed)
    elif kind is Kind.GLOBALS:
        for name, value in content.items():
            if obj.get(name, _MISSING) is not value:
                obj[name] = value
    elif kind in (Kind.ATTRS, Kind.OPTIMIZER, Kind.DATASET):
        set_attributes(obj, content, remove_new=kind is Kind.ATTRS)
    elif isinstance(content, LongContent):
        if not content.is_in(obj):
            obj[:] = content.values()
    elif kind is Kind.LIST:
        if not _same_items(obj, content):
            obj[:] = content
    elif kind in (Kind.DICT, Kind.PARAM_GROUP):
        if not _same_items(list(obj.items()), list(content.items())):
            obj.clear()
            obj.update(content)
    elif kind is Kind.SET:
        if obj != content:
            obj.clear()
            obj.update(content)
    elif kind is Kind.DEQUE:
        if not _same_items(list(obj), content):
            obj.clear()
            obj.extend(content)
    elif kind is Kind.BYTEARRAY:
        obj[:] = content
    elif kind is Kind.TENSOR:
        if isinstance(content, small.TensorValue):
            small.put(content, obj)
    elif kind is Kind.MODULE:
        content.tree.undo(content)
    elif kind is Kind.DDP:
        obj.__dict__.update(content)
    elif kind is Kind.FUNCTION:
        callables.bind(obj, content)
    elif kind is Kind.CLASS:
        set_class_attributes(obj, content)
    elif kind in (Kind.OPTIMIZER_STATE, Kind.GONE, Kind.REPLAY_POINT, Kind.CYCLE, Kind.GENERATOR):
        pass  # an optimizer is not stepped between a boundary and its gate; what was drawn comes again from the record
    else:
        put_generator(kind, obj, content)


def put_generator(kind: Kind, obj: Any, content: Any) -> None:
    """Random generators and small arrays, also for a joiner."""
    if kind is Kind.TORCH_GENERATOR:
        obj.set_state(small.build(content))
    elif kind is Kind.PYTHON_RANDOM:
        obj.setstate(content)
    elif kind is Kind.NUMPY_RANDOM:
        if hasattr(obj, "bit_generator"):
            obj.bit_generator.state = content
        else:
            obj.set_state(content)
    elif kind is Kind.NDARRAY and obj.flags.writeable:
        obj[...] = content


def _same_items(now: list[Any], then: list[Any]) -> bool:
    if len(now) != len(then):
        return False
    return all(
        a is b or (type(a) is tuple and type(b) is tuple and _same_items(list(a), list(b))) for a, b in zip(now, then)
    )


def set_attributes(obj: Any, content: dict[str, Any], *, remove_new: bool) -> None:
    """Writes attributes past any property or `__setattr__`; takes away those that were born since."""
    fields: dict[str, Any] = getattr(obj, "__dict__", {})
    now = attributes(obj)
    if remove_new:
        for name in now.keys() - content.keys():
            if name in fields:
                del fields[name]
            else:
                object.__delattr__(obj, name)
    for name, value in content.items():
        if now.get(name, _MISSING) is value:
            continue
        if name in fields or (hasattr(obj, "__dict__") and not _is_slot(type(obj), name)):
            fields[name] = value
        else:
            object.__setattr__(obj, name, value)


def set_class_attributes(cls: type, content: dict[str, Any]) -> None:
    """Past any `__setattr__` of its metaclass."""
    for name, value in content.items():
        if vars(cls).get(name, _MISSING) is not value:
            type.__setattr__(cls, name, value)


def _is_slot(cls: type, name: str) -> bool:
    return any(name in vars(c).get("__slots__", ()) for c in cls.__mro__)


def drop_gradients(optimizers: list[torch.optim.Optimizer]) -> None:
    """Gradients that an interrupted backward left half done."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
