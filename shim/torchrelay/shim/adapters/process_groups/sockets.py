"""Break a blocked gloo operation: shutting down the connected sockets of its pairs makes both ends fail at once.

`abort()` of gloo's backend returns but frees no thread (torch 2.13). The sockets are found in /proc/self/fd: those that were opened
while a communicator was built. A listening socket must be left alone: shutting it down ends the process.
"""

from __future__ import annotations

import os
import socket

Inode = str


def tcp_sockets() -> dict[int, Inode]:
    """Return file descriptor -> inode of each socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # closed meanwhile, or the listing's own descriptor
        if target.startswith("socket:"):
            found[int(name)] = target
    return found


def connected_to(port: int) -> set[Inode]:
    """Return the sockets of this process whose other end has this port."""
    found = set()
    for fd, inode in tcp_sockets().items():
        try:
            with socket.socket(fileno=os.dup(fd)) as duplicate:
                is_ip = duplicate.family in (socket.AF_INET, socket.AF_INET6)
                if is_ip and duplicate.getpeername()[1] == port:
                    found.add(inode)
        except OSError:
            continue  # a listener, or closed meanwhile
    return found


def shut_down(wanted: set[Inode]) -> int:
    """Shut down the connected TCP sockets among `wanted`. Return how many.

    A descriptor that another thread has closed, and that is another file's by now, has another inode.
    """
    count = 0
    for fd, inode in tcp_sockets().items():
        if inode not in wanted:
            continue
        try:
            duplicate = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        try:
            is_same = f"socket:[{os.fstat(duplicate.fileno()).st_ino}]" == inode
            if is_same and duplicate.family in (socket.AF_INET, socket.AF_INET6):
                duplicate.getpeername()
                duplicate.shutdown(socket.SHUT_RDWR)
                count += 1
        except OSError:
            pass  # a listener or already closed by the peer
        finally:
            duplicate.close()
    return count
