"""Optimizers that are stepped in turn in one iteration, each after a backward of its own: updates before the gate.

A backward cannot be done again by itself, so the gate belongs in front of the last update that follows one. The updates before it
can be taken back: of what they write there is a copy until the gate, on the same device. Optimizers that are stepped one after the
other without a backward in between need none: whoever has passed the gate in front of the first one makes them all.
"""

from __future__ import annotations

from typing import Any

import torch

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.capture.models.optimizer_entries import entry
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.tensors.tensor_bytes import write
from torchrelay.shim.tensors.tensor_versions import version_of


class EarlyUpdates:
    def __init__(self) -> None:
        self.turns: dict[str, tuple[int, int]] = {}
        """By training loop: how many updates in an iteration come before the gate, and before the last one of all."""
        self.pending = False
        """Whether there was one since the boundary that no gate has confirmed."""
        self.copied_bytes = 0
        """Of the latest iteration that had any."""
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._states: list[tuple[dict[Any, Any], torch.Tensor, dict[str, Any] | None]] = []
        """Of optimizers that nothing of the script's leads to, too."""
        self._versions: dict[int, int] = {}

    def learn(self, site: str, number: int, *, together: bool) -> bool:
        """Note that update `number` (from 0) of an iteration is about to be made. Return whether that moves the gate.

        The gate moves from the next iteration on. `together`: all ranks have done something together for it, a backward or a
        collective of the optimizer's own.
        """
        before, last = self.turns.get(site, (0, 0))
        now = max(before, number if together else 0), max(last, number)
        if now != (before, last):
            self.turns[site] = now
        return now[0] != before

    def go_on_in(self, site: str, before: str) -> None:
        """Count for the loop of `site` what was learned in its first iteration, while the loop of `before` stood in for it."""
        if before in self.turns:
            self.turns.setdefault(site, self.turns[before])

    def before_gate(self, site: str) -> int:
        return self.turns.get(site, (0, 0))[0]

    def last(self, site: str) -> int:
        return self.turns.get(site, (0, 0))[1]

    def keep(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy what the optimizer owns, before it updates that."""
        self.pending = True
        held = {id(tensor) for tensor, _ in self._kept}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = entry(optimizer.state, parameter)
                own = values if isinstance(values, dict) else {}
                tensors = [v for v in own.values() if isinstance(v, torch.Tensor)]
                for tensor in (parameter, *tensors):
                    if id(tensor) not in held:
                        held.add(id(tensor))
                        self._versions[id(tensor)] = version_of(tensor)
                        self._kept.append((tensor, local(tensor).detach().clone()))
                if values is None or isinstance(values, dict):
                    self._states.append((optimizer.state, parameter, dict(values) if values is not None else None))

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for tensor, _ in self._kept]

    def put_back(self, state: HostState) -> dict[int, int]:
        """Put the copies back. `state`: of the boundary.

        A tensor that was written to before its copy was made still differs from the boundary, and is found to.

        Returns how often each tensor that was put back had been written to when it was copied, by its id.
        """
        with torch.no_grad():
            for tensor, content in self._kept:
                write(local(tensor).detach(), content)
        for states, parameter, values in reversed(self._states):
            if values is None:
                states.pop(parameter, None)
            else:
                now = states[parameter]
                now.clear()
                now.update(values)
        state.versions[:] = [(t, self._version(t, v), path) for t, v, path in state.versions]
        for large, versions in state.tree_versions:
            versions[:] = [self._version(t, v) for (_, t), v in zip(large, versions)]
        copied_at = self._versions
        self.drop()
        return copied_at

    def _version(self, tensor: torch.Tensor, at_boundary: int) -> int:
        return version_of(tensor) if self._versions.get(id(tensor)) == at_boundary else at_boundary

    def drop(self) -> None:
        """Drop the copies: the gate is passed."""
        if self.pending:
            self.pending = False
            self.copied_bytes = sum(copy.numel() * copy.element_size() for _, copy in self._kept)
            self._kept = []
            self._states = []
            self._versions = {}
