"""Remember by which names a rank has told of its tensors: a loop that begins may have other names for them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

import torch

from torchrelay.shim.adapters.tensors.own_refs import OwnRef

_Names = dict[int, tuple["weakref.ref[torch.Tensor]", str]]
"""By a tensor's id, the tensor and its name."""


class NamesTold:
    def __init__(self) -> None:
        self._boundary = -1
        self._latest: _Names = {}
        self._before: _Names = {}
        """Of the latest boundary told of, and of the latest one before it."""

    def told(self, tensors: Mapping[str, torch.Tensor], boundary: int) -> None:
        """Note that the rank tells of these tensors, by these names, at this boundary."""
        if boundary != self._boundary:
            self._boundary = boundary
            self._before = self._latest
        self._latest = {id(tensor): (OwnRef(tensor), path) for path, tensor in tensors.items()}

    def of_loop_before(self, tensors: Mapping[str, torch.Tensor], boundary: int) -> dict[str, str]:
        """Return the name now and the latest one before this boundary, of tensors that were told of then."""
        known = self._before if boundary == self._boundary else self._latest
        pairs = ((path, tensor, known.get(id(tensor))) for path, tensor in tensors.items())
        return {path: told[1] for path, tensor, told in pairs if told is not None and told[0]() is tensor}
