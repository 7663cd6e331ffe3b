"""Where this process listens for its peers."""

from __future__ import annotations

import socket


def bind_address(address: str) -> str:
    """Where a socket listens that peers reach under `address`: loopback stays loopback."""
    try:
        local = socket.gethostbyname(address).startswith("127.")
    except OSError:
        local = False
    return address if local else "0.0.0.0"
