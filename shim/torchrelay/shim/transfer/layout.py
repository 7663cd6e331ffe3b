"""What is transferred, and in which chunks: both sides derive the same chunks from the same manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchrelay.protocol.errors import FrameError
from torchrelay.shim.tensors.digest import ROW_BYTES, dtype_name
from torchrelay.shim.tensors.tensor_bytes import padded

CHUNK_BYTES = 4 << 20
"""What a connection asks for at a time; a whole number of rows."""
SMALL_BYTES = ROW_BYTES
"""Tensors up to this size are packed together: one by one they would cost a system call and a request each."""
FINGERPRINT_BYTES = 16
_PACK_BYTES = 1 << 20
_PACK_TENSORS = 1024
_MAX_DIMENSIONS = 64


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the manifest, by the path under which both sides know it."""

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Span:
    """Part of one large tensor: `start` and `size` in bytes, `start` at a row."""

    tensor: int
    start: int
    size: int


@dataclass(frozen=True)
class Chunk:
    """Either parts of large tensors, or several whole small ones, each padded to whole words on the wire."""

    spans: tuple[Span, ...] = ()
    small: tuple[int, ...] = ()
    size: int = 0


def describe(path: str, tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(path, tensor.dtype, tuple(tensor.shape), tensor.numel() * tensor.element_size())


def plan(infos: Sequence[TensorInfo]) -> list[Chunk]:
    """Return the chunks with all bytes of all tensors, each once. Tensors without bytes are in no chunk."""
    chunks: list[Chunk] = []
    spans: list[Span] = []
    small: list[int] = []
    span_bytes = small_bytes = 0
    for index, info in enumerate(infos):
        if 0 < info.size_bytes <= SMALL_BYTES:
            small.append(index)
            small_bytes += padded(info.size_bytes)
            if small_bytes >= _PACK_BYTES or len(small) == _PACK_TENSORS:
                chunks.append(Chunk(small=tuple(small), size=small_bytes))
                small = []
                small_bytes = 0
            continue
        start = 0
        while start < info.size_bytes:
            # Rows start at the start of a tensor, so a part that is not the last one ends at a row.
            room = (CHUNK_BYTES - span_bytes) // ROW_BYTES * ROW_BYTES
            size = min(info.size_bytes - start, room)
            if size > 0:
                spans.append(Span(index, start, size))
                start += size
                span_bytes += size
            if CHUNK_BYTES - span_bytes < ROW_BYTES:
                chunks.append(Chunk(spans=tuple(spans), size=span_bytes))
                spans = []
                span_bytes = 0
    if spans:
        chunks.append(Chunk(spans=tuple(spans), size=span_bytes))
    if small:
        chunks.append(Chunk(small=tuple(small), size=small_bytes))
    return chunks


def is_numbers(chunk: Chunk, infos: Sequence[TensorInfo]) -> bool:
    """Return whether a chunk holds nothing but floating-point numbers.

    Everything else may be bytes that are unpickled: parts of a journal, or what a script keeps pickled in a tensor.
    """
    tensors = chunk.small or [span.tensor for span in chunk.spans]
    return all(infos[tensor].dtype.is_floating_point or infos[tensor].dtype.is_complex for tensor in tensors)


def encode(infos: Sequence[TensorInfo]) -> bytes:
    rows = [[info.path, dtype_name(info.dtype), list(info.shape)] for info in infos]
    return json.dumps({"tensors": rows}, separators=(",", ":")).encode()


def fingerprint(manifest: bytes) -> bytes:
    """Return FINGERPRINT_BYTES by which two manifests are known to be the same."""
    return hashlib.blake2b(manifest, digest_size=FINGERPRINT_BYTES).digest()


def decode(data: bytes) -> list[TensorInfo]:
    """Return the tensors of a manifest. Raises FrameError for anything that is no manifest."""
    try:
        infos = [_info(*row) for row in json.loads(data)["tensors"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise FrameError(f"not a manifest of tensors: {type(e).__name__}: {e}") from e
    if len({info.path for info in infos}) != len(infos):
        raise FrameError("not a manifest of tensors: a path is there twice")
    return infos


def _info(path: object, dtype: object, shape: object) -> TensorInfo:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(path, str) or not isinstance(found, torch.dtype):
        raise TypeError(f"{path!r} of {dtype!r}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise TypeError(f"{path}: a shape is a list of sizes")
    size = found.itemsize
    for length in shape:
        if type(length) is not int or not 0 <= length < 1 << 48:
            raise TypeError(f"{path}: a shape is a list of sizes")
        size *= length
    return TensorInfo(path, found, tuple(shape), size)
