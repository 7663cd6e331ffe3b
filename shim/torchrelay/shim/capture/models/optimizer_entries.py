"""Look up what an optimizer keeps for a parameter in its state, whatever else it keeps there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def entry(states: Mapping[Any, Any], parameter: torch.Tensor) -> Any:
    """Return what is kept under the parameter, or None."""
    try:
        return states.get(parameter)
    except (
        RuntimeError
    ):  # a key is the parameter's `id`, which is its hash, too: the dict has asked whether the two are equal
        return None


def entries(states: Mapping[Any, Any], parameter: torch.Tensor) -> dict[Any, Any]:
    """Return the named entries of a parameter; empty where there are none."""
    found = entry(states, parameter)
    return found if isinstance(found, dict) else {}
