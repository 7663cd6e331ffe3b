"""Put a recorded state into a tree of modules."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.parallel import module_hooks
from torchrelay.shim.adapters.parallel.module_hooks import MadeHooks, hook_counts
from torchrelay.shim.capture.models import module_parts
from torchrelay.shim.capture.models.bound_tensors import put_forms
from torchrelay.shim.capture.models.spaces import fields
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.replay_point import ABSENT


def put_tree(content: Any, root: torch.nn.Module, decode: Callable[[Any, Any], Any], made: Container[int]) -> None:
    """Put back flags, own attributes and small buffers of a tree of modules, as `encode` wrote them.

    `made`: ids of modules that were made. Raises StateMismatchError where this model is another one than the recorded.
    """
    place, flags, values, buffers, _, forms, hooks, parts, hidden, _ = content
    modules = list(root.modules())
    if flags is not None and len(modules) != len(flags):
        raise StateMismatchError(
            f"the model has {len(modules)} modules here and had {len(flags)} where it was recorded"
        )
    module_parts.check(parts, root)
    for module, flag in zip(modules, flags or ()):
        if flag is not None:
            module.training = flag
    by_name = dict(root.named_modules())
    own_hooks = hook_counts([*by_name.items()])
    for (name, kept), count in hooks.items():
        if count > own_hooks.get((name, kept), 0):
            raise StateMismatchError(
                f"{name or 'the model'} has {count} of {kept} where it was recorded: training has registered some, "
                "which cannot be made again"
            )
    put_forms(forms, by_name, complete=place < 0)
    for (name, key), value in values.items():
        if name not in by_name:
            raise StateMismatchError(f"the model has no module {name}")
        _put_attribute(by_name[name], key, decode(value, fields(by_name[name]).get(key, ABSENT)), made)
    _put_hidden([("", hidden or {}), *module_parts.hidden(parts)], by_name, decode, made)
    bound = dict(root.named_buffers())
    for name, value in buffers.items():
        if name not in bound:
            raise StateMismatchError(f"the model has no buffer {name}")
        small.put(value, bound[name])


def put_hooks(
    hooks: Mapping[tuple[str, str], Any],
    root: torch.nn.Module,
    decode: Callable[[Any, Any], Any],
    made: MadeHooks,
) -> None:
    """Give modules the hooks that the lost rank's had, where its training had registered or removed some.

    Raises StateMismatchError where one cannot be made, or where set-up has registered others here.
    """
    by_name = dict(root.named_modules()) if hooks else {}
    for (name, attribute), (first, order, is_full) in hooks.items():
        module = by_name.get(name)
        if module is None:
            raise StateMismatchError(f"the model has no module {name}")
        own = made.of_set_up(module, attribute, first)
        if len(own) != first:
            raise StateMismatchError(
                f"{name or 'the model'} has {len(own)} of {attribute} here, and had {first} of set-up's where it was recorded"
            )
        wanted: list[int | tuple[Any, Any]] = []
        for each in order:
            if isinstance(each, int):
                wanted.append(each)
                continue
            hook = decode(each[0], ABSENT)
            if hook is ABSENT:
                raise StateMismatchError(f"a hook of {name or 'the model'} cannot be made again")
            wanted.append((hook, each[1]))
        made.put(module, attribute, own, wanted)
        if attribute == "_backward_hooks":
            module_hooks.set_full(module, is_full)


def _put_hidden(
    hidden: Iterable[tuple[str, Mapping[str, Any]]],
    by_name: Mapping[str, torch.nn.Module],
    decode: Callable[[Any, Any], Any],
    made: Container[int],
) -> None:
    for name, attributes in hidden:
        if id(by_name[name]) in made:
            for key, value in attributes.items():
                _put_attribute(by_name[name], key, decode(value, ABSENT), made)


def _put_attribute(module: torch.nn.Module, key: str, value: Any, made: Container[int]) -> None:
    if value is not ABSENT:
        fields(module)[key] = value
    elif id(module) in made:
        raise StateMismatchError(f"{type(module).__name__} was made by training, and its {key} cannot be made again")


def put_bare(content: Any, root: torch.nn.Module, mapping: Callable[[dict[Any, Any], dict[Any, Any]], Any]) -> None:
    """Put back one module without parts. To ask it for its modules would ask for its hash, which metrics make of their attributes.

    Raises StateMismatchError where this one has parts, or where what training has made of it cannot be made again.
    """
    _, flags, values, _, hidden, *_ = content
    name = type(root).__name__
    if any(part is not None for part in root._modules.values()):
        raise StateMismatchError(f"{name} has modules here and had none where it was recorded")
    own = root.__dict__
    own.update(mapping({key: value for (_, key), value in values.items()} | hidden, own))
    if flags[0] is not None:
        own["training"] = flags[0]
    left = [key for key in hidden if key not in own]
    if left:
        raise StateMismatchError(f"{name} was made by training, and its {left[0]} cannot be made again")
