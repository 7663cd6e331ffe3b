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
from torchrelay.shim.capture.models.aliases import Alias, address_of, as_tensor, memory_of
from torchrelay.shim.capture.state.host_state import HostState, OptimizerTensor, StateNode
from torchrelay.shim.capture.values.kinds import TENSOR, Kind
from torchrelay.shim.capture.values.replay_point import ABSENT


class SharedPlace(NamedTuple):
    """Where a tensor lies. `address`: of the memory that it shares, in the process that wrote this. `offset`: in elements.

    `array`: the node of an array of numpy that has this memory, or -1.
    """

    address: int
    n_bytes: int
    offset: int
    stride: tuple[int, ...]
    array: int

    def has(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        same = tensor.untyped_storage().data_ptr() == storage.data_ptr()
        return same and (tensor.storage_offset(), tensor.stride()) == (self.offset, self.stride)


def find(state: HostState, numbers: Iterable[int]) -> dict[int, SharedPlace]:
    """Return where tensors lie that share memory with others, or with an array: all that share with one of these nodes."""
    nodes = [state.nodes[number] for number in numbers]
    wanted = {address_of(node.obj) for node in nodes if _is_own(node) and _may_share(node.obj)}
    wanted.update(memory_of(node.obj) for node in nodes if _is_array(node))
    wanted.discard(0)
    if not wanted:
        return {}
    at: dict[int, list[int]] = {}
    arrays: dict[int, int] = {}
    for number, node in enumerate(state.nodes):
        if node.kind is TENSOR:
            if (address := address_of(node.obj)) in wanted and _is_own(node):
                at.setdefault(address, []).append(number)
        elif _is_array(node) and (address := memory_of(node.obj) or _address(node.obj)) in wanted:
            arrays.setdefault(address, number)
    return {
        number: _memory(state.nodes[number].obj, address, arrays.get(address, -1))
        for address, found in at.items()
        if len(found) > 1 or address in arrays
        for number in found
    }


def _may_share(tensor: torch.Tensor) -> bool:
    """Return whether another tensor may have its memory, or another library has made that, as `torch.from_numpy` does."""
    return may_be_shared(tensor) or not tensor.untyped_storage().resizable()


def _is_array(node: StateNode) -> bool:
    """Return whether it is an array that is all of its memory, and can be written to."""
    if node.kind is not Kind.NDARRAY or isinstance(node.content, Alias):
        return False
    return bool(node.obj.flags.c_contiguous and node.obj.flags.writeable and not node.obj.dtype.hasobject)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _is_own(node: StateNode) -> bool:
    """Return whether it is a plain tensor whose memory belongs to no model and no optimizer."""
    if node.kind is not TENSOR or type(node.obj) is not torch.Tensor:
        return False
    return node.content is not None and not isinstance(node.content, (Alias, OptimizerTensor))


def _memory(tensor: torch.Tensor, address: int, array: int) -> SharedPlace:
    n_bytes = tensor.untyped_storage().nbytes()
    return SharedPlace(address, n_bytes, int(tensor.storage_offset()), tuple(tensor.stride()), array)


def share(found: Iterable[tuple[Any, torch.Tensor]], objects: Sequence[Any]) -> None:
    """Let these tensors share memory as the recorded ones did. Each comes with what was written beside its node.

    `objects`: of all nodes. Raises StateMismatchError.
    """
    at: dict[tuple[int, torch.device], list[tuple[SharedPlace, torch.Tensor]]] = {}
    for memory, tensor in found:
        if type(memory) is SharedPlace and address_of(tensor):
            at.setdefault((memory.address, tensor.device), []).append((memory, tensor))
    for tensors in at.values():
        array = tensors[0][0].array
        of_array = as_tensor(objects[array]) if array >= 0 and objects[array] is not ABSENT else None
        if len(tensors) > 1 or of_array is not None:
            _share(tensors, of_array)


def _share(tensors: Sequence[tuple[SharedPlace, torch.Tensor]], of_array: torch.Tensor | None) -> None:
    n_bytes = max(memory.n_bytes for memory, _ in tensors)
    candidates = [tensor for _, tensor in tensors] if of_array is None else [of_array]
    storages = [tensor.untyped_storage() for tensor in candidates]
    storage = next((storage for storage in storages if storage.nbytes() >= n_bytes), None)
    if storage is None:
        storage = torch.empty(n_bytes, dtype=torch.uint8, device=tensors[0][1].device).untyped_storage()
    for memory, tensor in tensors:
        if not memory.has(tensor, storage):
            try:
                with torch.no_grad():
                    tensor.set_(storage, memory.offset, tensor.shape, memory.stride)
            except RuntimeError as e:  # of one that inference mode has made
                raise StateMismatchError("a tensor shares memory with others, and cannot here") from e
