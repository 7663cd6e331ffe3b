"""The imitated GPU, as a Python program sees it: torch loads it by itself, and what it counts can be read.

Only in the virtual environment of `make imitated-gpu`; `imitated_gpu.faults` can be imported anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "lib")  # where torch looks for CUDA's libraries


@dataclass(frozen=True)
class Counts:
    """What there is and what was done in this process."""

    communicators: int  # made and neither destroyed nor aborted to the end
    split_communicators: int  # made by ncclCommSplit so far
    device_bytes: int  # got from cudaMalloc; torch's allocator keeps what it has freed
    pinned_bytes: int
    streams: int
    events: int
    skipped_kernels: int  # CUDA kernels that nothing stands for; each raised an error
    queued_operators: int  # the host went on
    waited_for_operators: int  # the host waited for the stream, and ran them itself
    host_waits: int  # calls that wait for the device: synchronize, copies to pageable memory, cudaFree


@functools.cache
def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(LIBRARIES / name))


def _read(library: str, count: str) -> int:
    function = getattr(_library(library), f"imitated_gpu_{count}")
    function.restype = ctypes.c_long
    return int(function())


def counts() -> Counts:
    """Reads all counts. Raises OSError where the imitated GPU is not built."""
    runtime = ("device_bytes", "pinned_bytes", "host_waits", "skipped_kernels")
    return Counts(
        communicators=_read("libnccl.so.2", "live_communicators"),
        split_communicators=_read("libnccl.so.2", "split_communicators"),
        streams=_read("libcudart.so.13", "live_streams"),
        events=_read("libcudart.so.13", "live_events"),
        queued_operators=_read("libimitated_operators.so", "queued_operators"),
        waited_for_operators=_read("libimitated_operators.so", "waited_for_operators"),
        **{name: _read("libcudart.so.13", name) for name in runtime},
    )


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Keeps the current stream busy within the block: the host runs ahead of it for as long as the block takes."""
    import torch

    runtime = _library("libcudart.so.13")
    runtime.imitated_gpu_hold(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    try:
        yield
    finally:
        runtime.imitated_gpu_release()


def install() -> None:
    """Puts CPU kernels in the place of CUDA's. torch calls it when it is imported (entry point `torch.backends`)."""
    import torch

    _library("libimitated_operators.so").imitated_gpu_install_operators()
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def is_built() -> bool:
    """Tells whether this interpreter's environment has the imitated GPU."""
    return (LIBRARIES / "libimitated_operators.so").exists()
