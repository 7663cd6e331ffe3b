"""Free a thread that gloo has forgotten.

When a connection fails, gloo's TCP transport wakes the threads that wait for an operation that is queued. It does not wake the
thread whose operation is half sent or half received, nor the one whose operation's first bytes met the broken connection
(`Pair::signalException` passes over the unbound buffers of `tx_` and `rx_`). That thread sleeps until the group's timeout, half an
hour by default.

Such a thread is found by the futex that the kernel says it sleeps on. The futex lies within the `UnboundBuffer` that the thread
waits for. The thread is told with the function that gloo should have called: `UnboundBuffer::signalException`. An object is taken
for such a buffer only where it begins with the address of that class's table of virtual functions. Seen on torch 2.13.0 with
libstdc++ on x86-64. On other machines, and where a symbol or what is read of /proc is missing, nothing is done.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import UnsupportedError

_MACHINE = "x86_64"
_FUTEX = "202"
"""The machine, and the number of the system call futex(2) on it."""
_TABLE = "_ZTVN4gloo9transport3tcp13UnboundBufferE"
_SIGNAL = "_ZN4gloo9transport3tcp13UnboundBuffer15signalExceptionENSt15__exception_ptr13exception_ptrE"
_HEADER_BYTES = 16
"""The size of the part of a table of virtual functions that lies in front of the place that objects point to (Itanium C++ ABI)."""
_LARGEST_BYTES = 512
"""A buffer begins at most so many bytes in front of its futex. A buffer had 264 bytes when this was written."""
_RUNTIME_ERROR_BYTES = 16
TEXT = b"torchrelay: Connection closed under an operation of gloo that was half done"


class Sleeper(NamedTuple):
    """A thread that waits on a futex. Two equal values mean that the thread has not run in between."""

    thread: int
    futex: int
    switches: bytes


def sleepers() -> set[Sleeper]:
    """Return the threads of this process that wait on a futex; none where the kernel does not tell."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        folder = Path("/proc/self/task", thread)
        try:
            number, first, *_ = (folder / "syscall").read_text().split()
            status = (folder / "status").read_bytes()
        except (OSError, ValueError):
            continue  # it has ended, it runs, or the kernel does not tell
        if number == _FUTEX:
            found.add(Sleeper(int(thread), int(first, 16), status[status.find(b"\nvoluntary") :]))
    return found


class GlooWaits:
    """Call the functions of gloo and of the C++ runtime that wake a thread.

    Raises UnsupportedError, AttributeError or OSError where one is missing.
    """

    def __init__(self) -> None:
        if os.uname().machine != _MACHINE:
            raise UnsupportedError(f"waits of gloo are not known on {os.uname().machine}")
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        self._table = ctypes.addressof(ctypes.c_char.in_dll(library, _TABLE)) + _HEADER_BYTES
        self._signal = _function(library, _SIGNAL, ctypes.c_void_p, ctypes.c_void_p)
        self._allocate = _function(library, "__cxa_allocate_exception", ctypes.c_size_t, result=ctypes.c_void_p)
        self._construct = _function(library, "_ZNSt13runtime_errorC1EPKc", ctypes.c_void_p, ctypes.c_char_p)
        self._initialise = _function(
            library, "__cxa_init_primary_exception", *[ctypes.c_void_p] * 3, result=ctypes.c_void_p
        )
        self._refer = _function(library, "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv", ctypes.c_void_p)
        self._type = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZTISt13runtime_error"))
        self._destructor = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZNSt13runtime_errorD1Ev"))
        self.buffers(set())  # whether this process may read its own memory

    def buffers(self, asleep: set[Sleeper]) -> set[int]:
        """Return the addresses of the buffers that these threads wait for."""
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            return {found for sleeper in asleep if (found := self._buffer_around(memory.fileno(), sleeper.futex))}

    def _buffer_around(self, memory: int, futex: int) -> int:
        end = futex & ~7
        if end <= _LARGEST_BYTES:
            return 0
        try:
            data = os.pread(memory, _LARGEST_BYTES, end - _LARGEST_BYTES)
        except (OSError, OverflowError):
            return 0  # no address: the first argument of another system call
        place = data.rfind(struct.pack("=Q", self._table))
        return end - _LARGEST_BYTES + place if place >= 0 and place % 8 == 0 else 0

    def fail(self, buffer: int) -> None:
        """Raise RuntimeError in the threads that wait for the buffer.

        It must be alive: nothing else may wake its thread meanwhile.
        """
        error = self._allocate(_RUNTIME_ERROR_BYTES)
        self._construct(error, TEXT)
        self._initialise(error, self._type, self._destructor)
        pointer = ctypes.c_void_p(error)
        self._refer(ctypes.byref(pointer))
        self._signal(buffer, ctypes.byref(pointer))


def _function(
    library: ctypes.CDLL, name: str, *arguments: type[Any], result: type[Any] | None = None
) -> ctypes._NamedFuncPointer:
    function = library[name]
    function.argtypes = list(arguments)
    function.restype = result
    return function
