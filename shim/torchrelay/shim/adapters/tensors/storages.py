"""Keep notes on storages without keeping them alive: what was computed into a tensor concerns its aliases, while one lives.

Leans on `torch.multiprocessing.reductions.StorageWeakRef`: its `cdata` is no other storage's as long as the reference is held,
`expired` says whether the storage is gone. Seen on torch 2.13.0; in torch since 1.0. And on `torch._C.DisableTorchFunction`, and
`torch._C._storage_Use_Count`, which counts a storage's tensors and the object that Python has for it.
"""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_SWEEP = 4096
unseen = torch._C.DisableTorchFunction
"""A context in which no `TorchFunctionMode` is told of what is called."""


class StorageNotes:
    """Keep a set of bits for each storage."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[StorageWeakRef, int]] = {}
        self._sweep_at = _SWEEP

    def of(self, tensor: torch.Tensor) -> int:
        storage = _storage(tensor)
        known = self._notes.get(storage._cdata) if storage is not None else None
        return known[1] if known is not None else 0

    def add(self, tensor: torch.Tensor, bits: int) -> bool:
        """Add bits to the note on the tensor's storage. Return False for a tensor without a storage, such as a sparse one."""
        storage = _storage(tensor)
        if storage is None:
            return False
        known = self._notes.get(storage._cdata)
        if known is not None:
            self._notes[storage._cdata] = known[0], known[1] | bits
            return True
        if len(self._notes) >= self._sweep_at:
            self._notes = {key: note for key, note in self._notes.items() if not note[0].expired()}
            self._sweep_at = 2 * len(self._notes) + _SWEEP
        reference = StorageWeakRef(storage)
        self._notes[reference.cdata] = reference, bits
        return True

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget the note: all of the tensor has been written anew.

        Does nothing for a part of a storage: the rest is as it was.
        """
        storage = _storage(tensor)
        if storage is not None and storage.nbytes() == tensor.numel() * tensor.element_size():
            self._notes.pop(storage._cdata, None)

    def drop(self, tensor: torch.Tensor) -> None:
        """Forget the note on the tensor's storage, even where the tensor is only a part of it."""
        storage = _storage(tensor)
        if storage is not None:
            self._notes.pop(storage._cdata, None)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except RuntimeError:  # NotImplementedError is one
        return None


_use_count = getattr(torch._C, "_storage_Use_Count", None)


def may_be_shared(tensor: torch.Tensor) -> bool:
    """Return whether another tensor may have the same storage. False if certainly none has."""
    storage = _storage(tensor)
    return storage is not None and (_use_count is None or _use_count(storage._cdata) > 2)


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether its storage has let go of its memory, as FullyShardedDataParallel's gathered parameters do between uses.

    The address of a view is not zero then, and to read there ends the process.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if tensor.is_meta or not tensor.numel() or (tensor.data_ptr() and not tensor.storage_offset()):
        return False
    with unseen():
        return tensor.untyped_storage().nbytes() == 0
