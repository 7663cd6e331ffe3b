"""Find attributes of parameters: what optimizers and trainers keep there, such as `p.grad_sample`, and marks of frameworks.

Each parameter's attributes are a dict of their own below the tree of modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchrelay.shim.capture.models.bound_tensors import Place
from torchrelay.shim.capture.models.spaces import PARAMETERS, tensors


class OfParameter(NamedTuple):
    """A key for a parameter's attributes, in the place of the name of a module's own."""

    name: str


AttributeEdges = list[tuple[tuple[str, OfParameter], dict[str, Any]]]
"""Path of a module and name of a parameter, with the parameter's attributes. Parameters that have none are left out."""


class ParameterAttributes:
    """The attributes of these parameters, until another parameter is bound in the place of one of them."""

    def __init__(self, slots: Sequence[Place], bound: Sequence[Any]) -> None:
        self._all: AttributeEdges = [
            ((name, OfParameter(key)), vars(tensor))
            for (name, where, key), tensor in zip(slots, bound)
            if where == PARAMETERS and _keeps_only_attributes(tensor)
        ]
        self._spaces = [space for _, space in self._all]
        self._has_some: list[bool] = []
        self._latest: AttributeEdges = []

    def take(self) -> AttributeEdges:
        """Return the same list as before, unless a parameter has got its first attribute or lost its last one."""
        has_some = [*map(bool, self._spaces)]
        if has_some != self._has_some:
            self._has_some = has_some
            self._latest = [edge for edge, has in zip(self._all, has_some) if has]
        return self._latest


def attributes_of(module: torch.nn.Module, parameter: OfParameter) -> dict[str, Any] | None:
    """Return the attributes of a parameter that is bound in the module; None where there is no such parameter."""
    bound = tensors(module, PARAMETERS).get(parameter.name)
    return vars(bound) if _keeps_only_attributes(bound) else None


def _keeps_only_attributes(tensor: Any) -> bool:
    """Return whether it keeps only attributes there. A subclass, such as a tensor spread over ranks, keeps its own parts, too."""
    return type(tensor) is torch.nn.Parameter
