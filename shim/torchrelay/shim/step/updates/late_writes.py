"""Tensors that a step writes after its optimizer step: an average of the weights, a running statistic.

A rank that is lost behind its gate is restored by going through the rest of that step once more, with tensors from a rank that
may be through with it already. For what was written in between that makes a difference.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence

import torch

from torchrelay.shim.adapters.tensors.own_refs import OwnRef
from torchrelay.shim.capture.state.host_state import HostState, TreeVersions, catalogue_numbers, versions_now
from torchrelay.shim.tensors.tensor_versions import version_of, writes_between

REBOUND = -1
"""Instead of a number of writes: another tensor has taken its place."""
_TreeVersions = tuple[list[tuple[str, torch.Tensor]], list[int]]
UNKNOWN = {"(not known before the second step)": REBOUND}


class LateWrites:
    def __init__(self) -> None:
        self._trees: TreeVersions | None = None
        self._values: dict[str, tuple[weakref.ref[torch.Tensor], int]] = {}

    def note(self, state: HostState) -> None:
        """Note the versions of tensors right after an optimizer step. `state`: of the boundary which the step started at."""
        self._trees = versions_now(state.tree_versions)
        self._values = {path: (OwnRef(t), version_of(t)) for path, t in state.large.items()} if state.large else {}

    def until(self, state: HostState) -> dict[str, int]:
        """Return what was written since the last optimizer step when `state` was taken: how often, by path in the catalogue."""
        if self._trees is None:
            return dict(UNKNOWN)
        found: dict[str, int] = {}
        for place, number in enumerate(catalogue_numbers(state.tree_versions)):
            then = self._trees[place] if place < len(self._trees) else None
            now = state.tree_versions[place]
            if then is None or then[0] is not now[0] or then[1] != now[1]:
                found |= {f"module{number}.{name}": writes for name, writes in _in_tree(then, now)}
        if state.large:
            now_at = {name: version for _, version, name in state.versions}
            found |= {f"value.{path}": writes for path, writes in self._in_values(state.large, now_at)}
        return found

    def _in_values(self, large: Mapping[str, torch.Tensor], now_at: Mapping[str, int]) -> Iterator[tuple[str, int]]:
        for path, tensor in large.items():
            then, version = self._values.get(path, (None, 0))
            if then is None or then() is not tensor:
                yield path, REBOUND
            elif now_at[path] != version:
                yield path, writes_between(version, now_at[path], REBOUND)


def _in_tree(then: _TreeVersions | None, now: _TreeVersions) -> Iterator[tuple[str, int]]:
    """Return what was written in a tree since `then`: names of tensors, and how often each was written."""
    large, versions = now
    if then is not None and then[0] is large:
        known: Sequence[int | None] = then[1]
    else:
        by_tensor = {id(tensor): version for (_, tensor), version in zip(*then)} if then is not None else {}
        known = [by_tensor.get(id(tensor)) for _, tensor in large]
    for (name, _), version, before in zip(large, versions, known):
        if before is None:
            yield name, REBOUND
        elif before != version:
            yield name, writes_between(before, version, REBOUND)
