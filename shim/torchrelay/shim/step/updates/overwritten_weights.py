"""Weights that make room for others between two steps, as the update has left them: an average is evaluated in their place.

A rank that is lost meanwhile goes through the rest of its step once more. Others may stand in the evaluation then, where none of
their tensors has the weights any more, but a copy that the script has put aside. So this process keeps one of its own from the
moment when they are overwritten until the next gate, in the memory of the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.tensors.tensor_bytes import size_bytes

MOST_BYTES = 1 << 30
"""The script has put aside as much itself. Weights that are larger together have no copy."""


class OverwrittenWeights:
    def __init__(self, tell: Callable[..., Any]) -> None:
        """Begin without copies. `tell`: calls what it is given, and lets nothing that fails there reach the script."""
        self._tell = tell
        self._training_thread = threading.main_thread().ident
        self._state: HostState | None = None
        """State of the boundary whose update is done, until the next head is reached."""
        self._weights: dict[int, tuple[str, torch.Tensor]] | None = None
        """Parameters that an optimizer updates by the address of their memory, once somebody has asked since the update."""
        self._of_trees: tuple[list[object], dict[int, tuple[str, torch.Tensor]]] = ([], {})
        """The same, as found in these trees."""
        self._copies: dict[str, torch.Tensor] = {}
        self._size_bytes = 0

    def note(self, state: HostState) -> None:
        """Note that an update was made; the latest one of a step counts."""
        self.gate_passed()
        self._state = state

    def look_no_more(self) -> None:
        """Stop looking at the next head: what is overwritten from here on belongs to the next step."""
        self._state = self._weights = None

    def gate_passed(self) -> None:
        """Drop the copies: until the update is done no rank has what it leaves."""
        self._state = self._weights = None
        self._copies = {}
        self._size_bytes = 0

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what the weights held after the latest update, by path."""
        return self._copies

    def about_to_overwrite(self, targets: Iterable[Any]) -> None:
        """Copy weights among `targets` before they are overwritten, in any thread.

        Some scripts overwrite a thousand times in a step.
        """
        if self._state is None or threading.get_ident() != self._training_thread:
            return
        weights = self._weights
        if weights is None:
            self._tell(self._find_weights, self._state)
            weights = self._weights or {}
        for target in targets:
            address = _address(target)
            if address in weights:
                self._tell(self._keep, address, *weights[address])

    def _keep(self, address: int, path: str, parameter: torch.Tensor) -> None:
        if path in self._copies or _address(parameter) != address:
            return
        with torch._C.DisableTorchFunction():
            part = local(parameter).detach()
            self._size_bytes += size_bytes(part)
            if self._size_bytes > MOST_BYTES:
                self.gate_passed()
            else:
                self._copies[path] = part.to("cpu", copy=True)

    def _find_weights(self, state: HostState) -> None:
        trees: list[object] = [large for large, _ in state.tree_versions]
        known, found = self._of_trees
        if len(known) != len(trees) or any(now is not then for now, then in zip(trees, known)):
            updated = {
                id(p) for _, optimizer in state.optimizers for group in optimizer.param_groups for p in group["params"]
            }
            found = dict(_by_address((path, p) for path, p in device.parameters(state).items() if id(p) in updated))
            self._of_trees = trees, found
        self._weights = found


def _by_address(found: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[int, tuple[str, torch.Tensor]]]:
    for path, parameter in found:
        if address := _address(parameter):
            yield address, (path, parameter)


def _address(tensor: Any) -> int:
    """Return where the tensor's memory is; 0 for a tensor without memory of its own."""
    if not isinstance(tensor, torch.Tensor):
        return 0
    try:
        with torch._C.DisableTorchFunction():
            return tensor.data_ptr() if type(tensor) in _PLAIN else local(tensor).data_ptr()
    except RuntimeError:  # NotImplementedError is one: a sparse tensor, a fake one
        return 0


_PLAIN = (torch.Tensor, torch.nn.Parameter)
