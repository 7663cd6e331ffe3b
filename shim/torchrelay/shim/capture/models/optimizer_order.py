"""In which order an optimizer has made the entries of a parameter's state, where some are tensors and others are not.

A new process gets the one from the journal and the others from a donor, one after the other; `state_dict` shows the order.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

NAME = ""
"""Of the entry that the order is journalled as; no optimizer has one without a name."""

_recorded: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[int, tuple[str, ...]]] = weakref.WeakKeyDictionary()


def of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Of one parameter's state; empty where there is only one order."""
    tensors = {isinstance(value, torch.Tensor) for value in values.values()}
    return tuple(values) if len(tensors) > 1 else ()


def now(optimizer: torch.optim.Optimizer, place: int, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Of the state of the parameter at `place`. In a new process whose tensors have not come yet, what was recorded."""
    recorded = _recorded.get(optimizer, {}).get(place, ())
    return of(values) if all(name in values for name in recorded) else recorded


def remember(optimizer: torch.optim.Optimizer, place: int, names: tuple[str, ...]) -> None:
    """What was recorded for the parameter at `place`."""
    _recorded.setdefault(optimizer, {})[place] = names


def restore(optimizer: torch.optim.Optimizer) -> None:
    """Once all entries are there."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, names in _recorded.get(optimizer, {}).items():
        values = optimizer.state[parameters[place]]
        for name in names:
            if name in values:
                values[name] = values.pop(name)


def make_missing(optimizer: torch.optim.Optimizer) -> None:
    """For a step that is gone through before the tensors have come: in their places stand zeros of the parameter's form.

    An optimizer that makes all entries at once, where there is none, would find the numbers alone.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, names in _recorded.get(optimizer, {}).items():
        values = optimizer.state[parameters[place]]
        for name in names:
            if name not in values:
                values[name] = torch.zeros_like(parameters[place], requires_grad=False)
    restore(optimizer)
