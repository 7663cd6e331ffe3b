"""Does a process have connections to programs beside the job? An answer from one of those may wake it at any time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator

import psutil

Address = tuple[str, int]
_HALF_CLOSED = (psutil.CONN_CLOSE_WAIT, psutil.CONN_LAST_ACK, psutil.CONN_TIME_WAIT, psutil.CONN_CLOSING)
"""States in which the other end sends nothing more."""
_MAPPED = "::ffff:"
"""In front of an IPv4 address that a socket of IPv6 has."""


def speaks_outside(pid: int, own: Collection[str], job: Iterable[int]) -> bool:
    """Return whether the process or one below it is connected to a program that is not of the job; True where nobody knows.

    `own`: sockets of the job's own, as the process knows them (`socket:[INODE]`). `job`: processes of the job on this machine,
    which wait for this one and do not wake it. Raises psutil.Error if the process is gone.
    """
    try:
        open_ones = [(ours, theirs) for ours, theirs, name in _connections(pid) if name not in own]
    except psutil.AccessDenied:
        return True
    if not open_ones:
        return False
    ends = {ours for ours, _ in open_ones}  # both ends may be here
    for each in job:
        with contextlib.suppress(psutil.Error):
            ends |= {ours for ours, _, _ in _connections(each)}
    return any(theirs not in ends for _, theirs in open_ones)


def _connections(pid: int) -> Iterator[tuple[Address, Address, str]]:
    """Yield, of the process and all below it, both ends of each connection and the socket's name."""
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        try:
            found = each.net_connections(kind="inet")
        except psutil.NoSuchProcess:
            if each.pid == pid:
                raise
            continue  # a child that has ended meanwhile
        for c in found:
            if c.raddr and c.status not in _HALF_CLOSED:
                yield _address(c.laddr), _address(c.raddr), _name(each.pid, c.fd)


def _address(address: tuple[str, int]) -> Address:
    host, port = address[:2]
    return host.removeprefix(_MAPPED), port


def _name(pid: int, fd: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
