"""A gradient that was there at a boundary, and what becomes of it in the step."""

from __future__ import annotations

import enum

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.tensors.dtensor import is_spread, local
from torchrelay.shim.adapters.tensors.own_refs import OwnRef
from torchrelay.shim.adapters.tensors.storages import unseen
from torchrelay.shim.gradients.gradient_record import GradientForm, form_of
from torchrelay.shim.tensors import tensor_bytes
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of


class Fate(enum.Enum):
    """What has become, in the step, of a gradient that was there at its boundary."""

    OPEN = enum.auto()
    """The gradient is as it was."""
    DROPPED = enum.auto()
    """Another gradient, or none, is in its place."""
    ZEROED = enum.auto()
    """It was zero before anything was added to it."""
    ADDED = enum.auto()
    """It was added to, written to, or used by an update as it was."""


class NotedGradient:
    """A gradient that was there at the latest boundary."""

    __slots__ = (
        "at_gate",
        "before",
        "content",
        "fate",
        "form",
        "is_kept",
        "parameter",
        "path",
        "there",
        "version",
        "was_zero",
        "zero_at",
    )

    def __init__(self, path: str, parameter: torch.Tensor, gradient: torch.Tensor, version: int) -> None:
        self.path = path
        self.parameter = parameter
        self.version = version
        self.there = OwnRef(gradient)
        """Returns the gradient's tensor, as long as it lives."""
        self.form: GradientForm | None = None
        """The gradient's form; None where it has its parameter's."""
        self.is_kept = False
        self.fate = Fate.OPEN
        self.content: torch.Tensor | None = None
        """A copy of this rank's part, as of the boundary."""
        self.before: int | None = None
        """Writes between the last gate and the boundary, where that is known."""
        self.at_gate: int | None = None
        """Its version at the gate behind the boundary."""
        self.was_zero = False
        """Whether it was zero at the boundary, as far as that is known."""
        self.zero_at: int | None = None
        """The version at which it was seen to be zero."""

    def at_boundary(self, version: int) -> None:
        """Note that the gradient is there at the next boundary, too."""
        self.before = version - self.at_gate if self.at_gate is not None else None
        self.version = version
        self.at_gate = None
        self.fate = Fate.OPEN
        self.content = None

    def note_form(self, gradient: torch.Tensor) -> None:
        form = form_of(gradient)
        self.form = form if form != form_of(self.parameter) else None

    def keep(self, gradient: torch.Tensor) -> None:
        with torch.no_grad(), unseen():
            self.content = local(gradient).detach().clone()


def versions(tensors: list[torch.Tensor]) -> list[int]:
    """Return the version of each.

    A tensor that is spread over ranks counts its own writes, and not all of them are writes to its part (seen on torch 2.13).
    """
    found = versions_of(tensors)
    return [v + version_of(local(t)) if is_spread(t) else v for t, v in zip(tensors, found)]


def are_zero(gradients: list[torch.Tensor]) -> list[bool]:
    """Return for each gradient whether it is zero. The host waits once for each of them."""
    with torch.no_grad(), unseen():
        parts = [local(gradient) for gradient in gradients]
        return [not (part._values() if part.is_sparse else part).count_nonzero().item() for part in parts]


def is_plain(gradient: torch.Tensor) -> bool:
    """Return whether the gradient has plain bytes, which can be given to another process."""
    try:
        tensor_bytes.local(gradient)
    except UnsupportedError:
        return False
    return True


def refused(path: str, reason: str) -> str:
    return (
        f"gradients are kept across optimizer steps ({path}), and {reason}: what one step leaves is added to by the next. "
        "Call zero_grad() in each step"
    )
