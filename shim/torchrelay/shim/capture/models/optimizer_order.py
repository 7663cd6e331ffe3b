"""Keep the order in which an optimizer has made the entries of a parameter's state, where some are tensors and others are not.

A new process gets plain entries from the journal and tensors from a donor, one after the other; `state_dict` shows the order.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.tensors.tensor_bytes import strides_of, with_strides

KEY = -1, ""
"""The key under which a journal has all orders: no parameter has that place, and no optimizer an entry without a name."""

Entry = str | tuple[str, tuple[int, ...], str, tuple[int, ...]]
"""An entry's name; with shape, type and strides of a tensor that does not have its parameter's, such as a factored average."""

Order = tuple[tuple[Entry, ...], int, int]
"""The entries of all parameters from the first place up to, and without, the second one."""

_recorded: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[int, tuple[Entry, ...]]] = weakref.WeakKeyDictionary()


def of(parameter: torch.Tensor, values: Mapping[str, Any]) -> tuple[Entry, ...]:
    """Return the order of one parameter's state; empty where there is only one order."""
    tensors = {isinstance(value, torch.Tensor) for value in values.values()}
    if len(tensors) < 2:
        return ()
    form = _form(parameter)
    return tuple(
        name
        if not isinstance(value, torch.Tensor) or _form(value) == form
        else (name, tuple(value.shape), str(value.dtype).removeprefix("torch."), _strides(value))
        for name, value in values.items()
    )


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, _strides(tensor)


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return strides_of(local(tensor).detach())


def in_strides(
    optimizer: torch.optim.Optimizer, place: int, parameter: torch.Tensor, key: str, made: torch.Tensor
) -> torch.Tensor:
    """Return `made`, which is to be an entry of the parameter at `place`, or a tensor of its form in the strides of that entry."""
    entries = {_name(entry): entry for entry in _recorded.get(optimizer, {}).get(place, ())}
    entry = entries.get(key, key)
    if isinstance(entry, str):
        return with_strides(made, _strides(parameter) if made.shape == local(parameter).shape else ())
    return with_strides(made, entry[3] if tuple(made.shape) == entry[1] else ())


def now(
    optimizer: torch.optim.Optimizer, place: int, parameter: torch.Tensor, values: Mapping[str, Any]
) -> tuple[Entry, ...]:
    """Return the order of the state of the parameter at `place`.

    In a new process whose tensors have not come yet, it is the recorded order.
    """
    recorded = _recorded.get(optimizer, {}).get(place, ())
    return of(parameter, values) if all(_name(entry) in values for entry in recorded) else recorded


def add(orders: list[Order], place: int, entries: tuple[Entry, ...]) -> None:
    """Add the order of the parameter at `place`, which is behind all that are in `orders`."""
    if orders and orders[-1][2] == place and orders[-1][0] == entries:
        orders[-1] = entries, orders[-1][1], place + 1
    else:
        orders.append((entries, place, place + 1))


def remember(optimizer: torch.optim.Optimizer, orders: tuple[Order, ...]) -> None:
    """Remember the recorded orders."""
    _recorded.setdefault(optimizer, {}).update(
        {place: entries for entries, first, stop in orders for place in range(first, stop)}
    )


def restore(optimizer: torch.optim.Optimizer) -> None:
    """Put the entries in their recorded order, once all are there."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, entries in _recorded.get(optimizer, {}).items():
        values = optimizer.state[parameters[place]]
        for name in map(_name, entries):
            if name in values:
                values[name] = values.pop(name)


def make_missing(optimizer: torch.optim.Optimizer) -> None:
    """Make zeros of their form in the places of tensors that have not come yet, for a step that is gone through before.

    An optimizer that makes all entries at once, where there is none, would find the numbers alone.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, entries in _recorded.get(optimizer, {}).items():
        values = optimizer.state[parameters[place]]
        for entry in entries:
            if _name(entry) not in values:
                values[_name(entry)] = _zeros(parameters[place], entry)
    restore(optimizer)


def _name(entry: Entry) -> str:
    return entry if isinstance(entry, str) else entry[0]


def _zeros(parameter: torch.Tensor, entry: Entry) -> torch.Tensor:
    if isinstance(entry, str):
        return torch.zeros_like(parameter, requires_grad=False)
    _, shape, dtype, strides = entry
    return with_strides(torch.zeros(shape, dtype=getattr(torch, dtype), device=parameter.device), strides)
