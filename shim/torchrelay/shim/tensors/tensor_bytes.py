"""Reach the bytes of tensors, without a copy and without numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.tensors import dtensor
from torchrelay.shim.adapters.tensors.storages import is_freed

WORD_BYTES = 8


def local(tensor: torch.Tensor, path: str = "tensor") -> torch.Tensor:
    """Return what this process holds of `tensor`: itself without its graph, or the local shard of a DTensor.

    Raises UnsupportedError, with `path`, where there are no plain bytes: sparse, quantized, fake, freed.
    """
    tensor = dtensor.local(tensor).detach()
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedError(f"{path}: a {tensor.layout} tensor of {tensor.dtype} has no plain bytes")
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"{path}: tensors on {tensor.device.type} are not supported")
    if tensor.numel() and (tensor.data_ptr() == 0 or is_freed(tensor)):
        raise UnsupportedError(f"{path}: the tensor's memory was freed, or it never had any")
    return tensor


def await_writes(device: torch.device) -> None:
    """Return when nothing that was queued writes to the device's memory any more.

    A stream other than the current one may still write to a tensor: scripts fetch the next batch beside the step.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether memory holds the tensor's values in order: contiguous, not lazily conjugated or negated."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides in which a tensor like this one is made: its own, or of the same order where it leaves gaps or overlaps.

    Empty where it is contiguous: kernels choose by strides, and round otherwise.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return ()
    if tensor.dim() < 2 or (tensor.is_contiguous() and (tensor.dim() < 4 or 1 not in tensor.shape)):
        return ()
    strides = torch.empty_like(tensor, device="meta", requires_grad=False).stride()
    return () if strides == torch.empty(tensor.shape, device="meta").stride() else tuple(strides)


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Return the tensor, or a copy of it in these strides. Empty ones stand for a contiguous tensor."""
    if not strides:
        return tensor
    return torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` itself if it is plain, else a plain copy."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor as uint8[size], in the same memory and on the same device."""
    return tensor.reshape(-1).view(torch.uint8)


def memory(tensor: torch.Tensor) -> memoryview:
    """Return the writable bytes of a plain CPU tensor, in place. The view keeps the tensor alive."""
    size = size_bytes(tensor)
    if size == 0:
        return memoryview(bytearray())
    array = (ctypes.c_char * size).from_address(tensor.data_ptr())
    array.owner = tensor  # type: ignore[attr-defined]  # keeps the tensor alive
    return memoryview(array).cast("B")


def write(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Copy `content` into the tensor's memory. Elements that share memory, as `expand` makes them, are written once.

    Raises StateMismatchError where they would have to hold different values.
    """
    if 0 not in tensor.stride():
        tensor.copy_(content)
        return
    whole = content
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
            content = content.narrow(dim, 0, 1)
    if not _equal_bytes(content.expand_as(whole), whole):
        raise StateMismatchError("elements that share memory here hold different values there")
    tensor.copy_(content)


def _equal_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(flat_bytes(plain_copy(one)), flat_bytes(plain_copy(other)))


def padded(size: int) -> int:
    """Return `size` in bytes, rounded up to whole words."""
    return -(-size // WORD_BYTES) * WORD_BYTES


def pack(tensors: Sequence[torch.Tensor], packed: torch.Tensor) -> None:
    """Copy small tensors one after the other into `packed` (CPU, uint8), each padded with zeros to whole words."""
    packed.zero_()
    held = _on_host(tensors)
    address = packed.data_ptr()
    for tensor in held:
        size = tensor.numel() * tensor.element_size()
        ctypes.memmove(address, tensor.data_ptr(), size)
        address += padded(size)


def unpack(packed: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy what `pack` has packed into tensors of any device and layout. Raises StateMismatchError, as `write` does."""
    address = packed.data_ptr()
    elsewhere: list[tuple[torch.Tensor, torch.Tensor]] = []
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if tensor.device.type == "cpu" and is_plain(tensor):
            ctypes.memmove(tensor.data_ptr(), address, size)
        else:
            staged = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            ctypes.memmove(staged.data_ptr(), address, size)
            elsewhere.append((tensor, staged))
        address += padded(size)
    _scatter(elsewhere)


def contents(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """Return each tensor's bytes, in the order of its elements. There is one transfer for each device, which the host waits for."""
    held = [b""] * len(tensors)
    by_device: dict[torch.device, dict[torch.dtype, list[int]]] = {}
    for index, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, {}).setdefault(tensor.dtype, []).append(index)
    with torch.no_grad():
        for device, by_dtype in by_device.items():
            await_writes(device)
            plain = {i: plain_copy(tensors[i]).reshape(-1) for indices in by_dtype.values() for i in indices}
            joined = [torch.cat([plain[i] for i in indices]).view(torch.uint8) for indices in by_dtype.values()]
            data = memory(torch.cat(joined).cpu()).tobytes()
            start = 0
            for i, tensor in plain.items():
                held[i] = data[start : start + size_bytes(tensor)]
                start += size_bytes(tensor)
    return held


def _on_host(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return plain CPU tensors with the content of `tensors`. Those of a device come in one transfer."""
    by_device: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.device.type != "cpu":
            by_device.setdefault(tensor.device, []).append(index)
    for device in by_device:
        await_writes(device)
    held = [t if is_plain(t) else plain_copy(t) for t in tensors]
    for indices in by_device.values():
        flats = [flat_bytes(held[i]) for i in indices]
        together = torch.cat(flats).cpu()
        for i, part in zip(indices, together.split_with_sizes([f.numel() for f in flats]), strict=True):
            held[i] = part
    return held


def _scatter(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy each staged host tensor into its target. The plain targets of a device are reached by one transfer."""
    by_device: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for target, staged in pairs:
        if target.device.type == "cpu" or not is_plain(target):
            write(target, staged)
        else:
            by_device.setdefault(target.device, []).append((flat_bytes(target), flat_bytes(staged)))
    for device, flats in by_device.items():
        together = torch.cat([staged for _, staged in flats]).to(device)
        parts = together.split_with_sizes([staged.numel() for _, staged in flats])
        for (target, _), part in zip(flats, parts, strict=True):
            target.copy_(part)
        torch.cuda.synchronize(device)
