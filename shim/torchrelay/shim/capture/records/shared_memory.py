"""Let tensors that share memory share it in another process, too: parts of a flat buffer, a view that is kept beside its tensor.

Tensors that set-up has made share there what they share here. Of those that training has made the journal says where in which
memory each one lies. What shares the memory of a parameter or buffer is another matter (`models.aliases`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.storages import may_be_shared
from torchrelay.shim.capture.models.aliases import Alias, address_of
from torchrelay.shim.capture.state.host_state import HostState, OptimizerTensor, StateNode
from torchrelay.shim.capture.values.kinds import Kind


class Memory(NamedTuple):
    """Where a tensor lies. `address`: of the memory that it shares, in the process that wrote this. `offset`: in elements."""

    address: int
    n_bytes: int
    offset: int
    stride: tuple[int, ...]

    def has(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        same = tensor.untyped_storage().data_ptr() == storage.data_ptr()
        return same and (tensor.storage_offset(), tensor.stride()) == (self.offset, self.stride)


def find(state: HostState, numbers: Iterable[int]) -> dict[int, Memory]:
    """Return where tensors lie of which two or more share memory, by node: all that share with one of these nodes."""
    asked = [n for n in numbers if _is_own(state.nodes[n]) and may_be_shared(state.nodes[n].obj)]
    wanted = {address_of(state.nodes[number].obj) for number in asked} - {0}
    if not wanted:
        return {}
    at: dict[int, list[int]] = {}
    for number, node in enumerate(state.nodes):
        if _is_own(node) and (address := address_of(node.obj)) in wanted:
            at.setdefault(address, []).append(number)
    return {
        number: _memory(state.nodes[number].obj, address)
        for address, found in at.items()
        if len(found) > 1
        for number in found
    }


def _is_own(node: StateNode) -> bool:
    """Return whether it is a plain tensor whose memory belongs to no model and no optimizer."""
    if node.kind is not Kind.TENSOR or type(node.obj) is not torch.Tensor:
        return False
    return node.content is not None and not isinstance(node.content, (Alias, OptimizerTensor))


def _memory(tensor: torch.Tensor, address: int) -> Memory:
    return Memory(address, tensor.untyped_storage().nbytes(), tensor.storage_offset(), tuple(tensor.stride()))


def share(found: Iterable[tuple[Any, torch.Tensor]]) -> None:
    """Let these tensors share memory as the recorded ones did. Each comes with what was written beside its node.

    Raises StateMismatchError.
    """
    at: dict[tuple[int, torch.device], list[tuple[Memory, torch.Tensor]]] = {}
    for memory, tensor in found:
        if type(memory) is Memory and address_of(tensor):
            at.setdefault((memory.address, tensor.device), []).append((memory, tensor))
    for tensors in at.values():
        if len(tensors) > 1:
            _share(tensors)


def _share(tensors: Sequence[tuple[Memory, torch.Tensor]]) -> None:
    n_bytes = max(memory.n_bytes for memory, _ in tensors)
    storages = [tensor.untyped_storage() for _, tensor in tensors]
    large_enough = (storage for storage in storages if storage.nbytes() >= n_bytes)
    storage = next(large_enough, None)
    if storage is None:
        storage = torch.empty(n_bytes, dtype=torch.uint8, device=tensors[0][1].device).untyped_storage()
    for memory, tensor in tensors:
        if not memory.has(tensor, storage):
            try:
                with torch.no_grad():
                    tensor.set_(storage, memory.offset, tensor.shape, memory.stride)
            except RuntimeError as e:  # of one that inference mode has made
                raise StateMismatchError("a tensor shares memory with others, and cannot here") from e
