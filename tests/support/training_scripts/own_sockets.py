"""The TCP connections of this process, whoever has opened them."""

import os
import socket
import stat


def duplicates():
    """Each as a socket of the caller's own."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            own = os.dup(int(name))
        except OSError:
            continue  # the listing's own descriptor
        if not stat.S_ISSOCK(os.fstat(own).st_mode):
            os.close(own)
            continue
        made = socket.socket(fileno=own)
        if made.family in (socket.AF_INET, socket.AF_INET6):
            found.append(made)
        else:
            made.close()
    return found
