"""Whether a script adds the gradients of one step to those of the next: then there is no going back, and nobody can take over.

Gradients are no part of what a new process is given, and a step that is done again begins without any. That is right where
they are zeroed, whenever and by whatever means. It is looked at in the first steps, and in ever fewer of those that follow: a
gradient that is not zero before the first backward, and that backward writes to, is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.dtensor import local
from torchrelay.shim.adapters.tensor_versions import version_of

if TYPE_CHECKING:
    from torchrelay.shim.commit import Commit

_FIRST_STEPS = 4


class KeptGradients:
    """Of the iteration that began at the latest boundary."""

    def __init__(self) -> None:
        self._commit: Commit | None = None
        self._has_begun = False
        self._left_over: list[tuple[str, weakref.ref[torch.Tensor], tuple[int, int]]] = []
        """Gradients of the step before, when the first backward began, by name and with their versions."""

    def at_boundary(self, commit: Commit) -> None:
        self._commit, self._has_begun, self._left_over = commit, False, []

    def before_backward(self) -> None:
        """Remembers what is left over from the step before, if this is the first backward of an iteration that is looked at."""
        if self._has_begun or self._commit is None:
            return
        self._has_begun = True
        if _is_looked_at(self._commit.boundary):
            self._left_over = [
                (name, weakref.ref(gradient), _versions(gradient))
                for name, gradient in _gradients(self._commit)
                if _has_any(gradient)
            ]

    def has_begun(self) -> bool:
        """Whether gradients were computed since the boundary: those of before are no more as they were."""
        return self._has_begun

    def check(self) -> None:
        """Raises UnsupportedError if this iteration has added to what was left over."""
        if not self._left_over or self._commit is None:
            return
        now = dict(_gradients(self._commit))
        for name, before, version in self._left_over:
            gradient = before()
            if gradient is not None and now.get(name) is gradient and _versions(gradient) != version:
                raise UnsupportedError(
                    f"gradients are kept across optimizer steps ({name}): what one step leaves is added to by the next, and a new "
                    "process would begin without it. Call zero_grad() in each step"
                )


def _is_looked_at(boundary: int) -> bool:
    return boundary <= _FIRST_STEPS or boundary & (boundary - 1) == 0


def _gradients(commit: Commit) -> Iterator[tuple[str, torch.Tensor]]:
    for optimizer_name, optimizer in commit.state.optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    yield f"{optimizer_name}.param_groups[{number}]['params'][{place}]", parameter.grad


def _versions(gradient: torch.Tensor) -> tuple[int, int]:
    """One that is spread over ranks counts its own writes, and not all of them are its part's (seen on torch 2.13)."""
    return version_of(gradient), version_of(local(gradient))


def _has_any(gradient: torch.Tensor) -> bool:
    with torch.no_grad():
        part = local(gradient)
        values = part._values() if part.is_sparse else part
        return bool(torch.count_nonzero(values))
