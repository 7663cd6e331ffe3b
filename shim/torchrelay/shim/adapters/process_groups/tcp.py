"""Ask Linux about a TCP connection, and set it up: its ends, whether the peer answers, keepalive, a filter.

Asked by descriptor, through libc: a `socket.socket` around a descriptor of somebody else's would make it non-blocking where the
script has set a default timeout. TCP_INFO (linux/tcp.h) grows at its end; what is read of it here is in every kernel since 2.6. A
filter is a classic BPF program (linux/filter.h), which needs no privilege. Seen on Linux 6.18, x86-64.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torchrelay.shim.adapters.process_groups.sockets import Inode, tcp_sockets

_LIBC = ctypes.CDLL(None, use_errno=True)
_SO_TYPE = 3
_SO_DOMAIN = 39
_SO_ATTACH_FILTER = 26
_TCP_INFO = 11
_ESTABLISHED = 1
_INFO = struct.Struct("=BBBBB3x13I")
"""State, two bytes, probes and backoff; then times in microseconds and milliseconds, the last four since data was sent, since an
acknowledgement was, since data came and since an acknowledgement did."""
_KEEPALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
)
_EVERY_SECOND = (1, 1, 127, 1)
"""Keepalive each second. The kernel breaks the connection after 127 without an answer, the most that it can be told."""
_RETURN = 0x06
_OVERDUE = 2
"""So many retransmissions or probes in a row without an answer are overdue: a single one happens on any connection."""

Keepalive = tuple[int, ...]


class Reading(NamedTuple):
    """What the kernel says of a connection.

    `retransmits`, `probes`: sent one after the other without any answer. `retried_s`: how long the retransmissions have taken, at
    least. `silent_s`: since the last acknowledgement came. `quiet_s`: since data was sent or came; a question whether the peer is
    there is none.
    """

    retransmits: int
    probes: int
    retried_s: float
    silent_s: float
    quiet_s: float

    @property
    def is_overdue(self) -> bool:
        return max(self.retransmits, self.probes) >= _OVERDUE


@contextmanager
def connections(wanted: set[Inode] | None = None) -> Iterator[dict[Inode, int]]:
    """Yield the descriptors of this process's connected TCP sockets, all or those `wanted`. They are good until the block's end."""
    found: dict[Inode, int] = {}
    try:
        for fd, inode in tcp_sockets().items():
            if inode in found or (wanted is not None and inode not in wanted):
                continue
            try:
                own = os.dup(fd)
            except OSError:
                continue  # closed meanwhile
            if _target(own) == inode and _is_connected(own):
                found[inode] = own
            else:
                os.close(own)
        yield found
    finally:
        for own in found.values():
            os.close(own)


def ends(fd: int) -> tuple[str, str]:
    """Return local and remote end as `host:port`. Raises OSError."""
    return _address(_LIBC.getsockname, fd), _address(_LIBC.getpeername, fd)


def read(fd: int) -> Reading | None:
    """Return what the kernel says of the connection; None where it is about to end, or the kernel does not tell. Raises OSError."""
    data = _get(fd, socket.IPPROTO_TCP, _TCP_INFO, 256)
    if len(data) < _INFO.size:
        return None
    state, _, retransmits, probes, backoff, *times = _INFO.unpack_from(data)
    if state != _ESTABLISHED:
        return None
    # Each timeout is twice the one before: those that have passed add up to the one that runs, less the first.
    retried_s = times[0] * 1e-6 * (1.0 - 2.0**-backoff) if retransmits else 0.0
    return Reading(retransmits, probes, retried_s, times[12] * 1e-3, min(times[9], times[11]) * 1e-3)


def keep_alive(fd: int) -> Keepalive:
    """Ask an idle peer every second, from now on, whether it is there. Return what was set before. Raises OSError."""
    before = tuple(_get_number(fd, level, name) for level, name in _KEEPALIVE)
    put_back(fd, _EVERY_SECOND)
    return before


def put_back(fd: int, settings: Keepalive) -> None:
    """Put back the settings that `keep_alive` has returned. Raises OSError."""
    for (level, name), value in zip(_KEEPALIVE, settings):
        _set(fd, level, name, struct.pack("=i", value))


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def drop_all(fd: int) -> None:
    """Let no packet reach this socket any more: neither data nor acknowledgements. Its peer is not told. Raises OSError."""
    take_nothing = _Instruction(_RETURN, 0, 0, 0)
    _set(fd, socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(_Program(1, ctypes.pointer(take_nothing))))


def _target(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _is_connected(fd: int) -> bool:
    try:
        family, kind = (_get_number(fd, socket.SOL_SOCKET, name) for name in (_SO_DOMAIN, _SO_TYPE))
        if kind != socket.SOCK_STREAM or family not in (socket.AF_INET, socket.AF_INET6):
            return False
        return bool(_address(_LIBC.getpeername, fd))
    except OSError:
        return False


def _get(fd: int, level: int, name: int, size_bytes: int) -> bytes:
    data = ctypes.create_string_buffer(size_bytes)
    size = ctypes.c_uint32(size_bytes)
    if _LIBC.getsockopt(fd, level, name, data, ctypes.byref(size)) != 0:
        raise _error()
    return data.raw[: size.value]


def _get_number(fd: int, level: int, name: int) -> int:
    return int(struct.unpack("=i", _get(fd, level, name, 4))[0])


def _set(fd: int, level: int, name: int, value: bytes) -> None:
    if _LIBC.setsockopt(fd, level, name, value, ctypes.c_uint32(len(value))) != 0:
        raise _error()


def _address(call: ctypes._NamedFuncPointer, fd: int) -> str:
    data = ctypes.create_string_buffer(128)
    size = ctypes.c_uint32(128)
    if call(fd, data, ctypes.byref(size)) != 0:
        raise _error()
    family = struct.unpack_from("=H", data)[0]
    port = struct.unpack_from("!H", data, 2)[0]
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(socket.AF_INET, data.raw[4:8])}:{port}"
    host = socket.inet_ntop(socket.AF_INET6, data.raw[8:24])
    # One end may have called another by its IPv4 address that listens on IPv6.
    return f"{host.removeprefix('::ffff:')}:{port}" if "." in host else f"[{host}]:{port}"


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
