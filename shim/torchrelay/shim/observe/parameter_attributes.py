"""Attributes that training keeps at parameters (`p.momentum = ...`, `p.grad_sample`): they are neither carried nor put back.

A new process has none, and a rank that goes back finds those of the step that failed. Frameworks mark parameters with flags,
which stay as set-up has made them: only what changes counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.iteration.data_changes import is_due
from torchrelay.shim.capture.state.host_state import HostState, catalogue_numbers
from torchrelay.shim.capture.values.kinds import PLAIN
from torchrelay.shim.tensors.tensor_versions import version_of


class ParameterAttributes:
    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        """Names of those that were seen to change, in the order in which they were."""
        self._trees: list[object] = []
        self._with_some: list[tuple[str, torch.Tensor]] = []
        self._before: dict[str, Any] = {}

    def look(self, state: HostState, boundary: int) -> None:
        """At a boundary: all parameters at first and now and then, else those that had attributes."""
        trees = [large for large, _ in state.tree_versions]
        is_anew = len(trees) != len(self._trees) or any(now is not then for now, then in zip(trees, self._trees))
        if is_anew or is_due(boundary):
            self._trees = [*trees]
            self._with_some = [*_with_attributes(state)]
        marks = {f"{path}.{name}": _mark(value) for path, p in self._with_some for name, value in vars(p).items()}
        if not is_anew:  # of models that are met for the first time, set-up has made what is there
            self.found.update((name, None) for name, mark in marks.items() if self._before.get(name) != mark)
        self._before = marks

    def gaps(self) -> list[Gap]:
        for name in self.found:
            text = (
                f"{name} and {len(self.found) - 1} more: attributes of parameters that change while training runs; they are not "
                "carried: no rank can be replaced"
            )
            return [Gap("parameter-attribute", BARS, text)]
        return []


def _with_attributes(state: HostState) -> Iterator[tuple[str, torch.Tensor]]:
    for number, (large, _) in zip(catalogue_numbers(state.tree_versions), state.tree_versions):
        for name, tensor in large:
            if type(tensor) is torch.nn.Parameter and tensor.__dict__:
                yield f"module{number}.{name}", tensor


def _mark(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return id(value), version_of(value)
    if isinstance(value, list | tuple):
        return [_mark(item) for item in value[:16]]
    return id(value)
