"""Where this process listens for its peers."""

from __future__ import annotations

import socket


def bind_address(address: str) -> str:
    """Return the address to listen at, for peers that connect to `address`: loopback stays loopback."""
    try:
        local = socket.gethostbyname(address).startswith("127.")
    except OSError:
        local = False
    return address if local else "0.0.0.0"
