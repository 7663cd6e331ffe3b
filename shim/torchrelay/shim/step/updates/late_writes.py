"""Tensors that a step writes after its optimizer step: an average of the weights, a running statistic.

A rank that is lost behind its gate is restored by going through the rest of that step once more, with tensors from a rank that
may be through with it already. For what was written in between that makes a difference.
"""

from __future__ import annotations

import weakref

import torch

from torchrelay.shim.capture.state.host_state import HostState, TreeVersions, catalogue_numbers, versions_now
from torchrelay.shim.tensors.tensor_versions import version_of, writes_between

REBOUND = -1
"""Instead of a number of writes: another tensor has taken its place."""
UNKNOWN = {"(not known before the second step)": REBOUND}


class LateWrites:
    def __init__(self) -> None:
        self._trees: TreeVersions | None = None
        self._values: dict[str, tuple[weakref.ref[torch.Tensor], int]] = {}

    def note(self, state: HostState) -> None:
        """Note the versions of tensors right after an optimizer step. `state`: of the boundary which the step started at."""
        self._trees = versions_now(state.tree_versions)
        self._values = {path: (weakref.ref(t), version_of(t)) for path, t in state.large.items()} if state.large else {}

    def until(self, state: HostState) -> dict[str, int]:
        """Return what was written since the last optimizer step when `state` was taken: how often, by path in the catalogue."""
        if self._trees is None:
            return dict(UNKNOWN)
        found: dict[str, int] = {}
        for place, (number, (large, versions)) in enumerate(
            zip(catalogue_numbers(state.tree_versions), state.tree_versions)
        ):
            then = self._trees[place] if place < len(self._trees) else None
            if then is None or then[0] is not large:
                known = {id(tensor): was for (_, tensor), was in zip(*then)} if then is not None else {}
                for (name, tensor), now in zip(large, versions):
                    before = known.get(id(tensor))
                    if before is None:
                        found[f"module{number}.{name}"] = REBOUND
                    elif before != now:
                        found[f"module{number}.{name}"] = writes_between(before, now, REBOUND)
            elif then[1] != versions:
                writes = zip(large, versions, then[1])
                found |= {
                    f"module{number}.{name}": writes_between(before, now, REBOUND)
                    for (name, _), now, before in writes
                    if now != before
                }
        if state.large:
            now_at = {name: version for _, version, name in state.versions}
            for path, tensor in state.large.items():
                then_tensor, version = self._values.get(path, (None, 0))
                if then_tensor is None or then_tensor() is not tensor:
                    found[f"value.{path}"] = REBOUND
                elif now_at[path] != version:
                    found[f"value.{path}"] = writes_between(version, now_at[path], REBOUND)
        return found
