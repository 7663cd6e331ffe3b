"""Contexts of TLS 1.3 for connections of our own beside gRPC's. Standard library only.

`ssl` is imported where it is used: most jobs have one machine, and need none of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import FrameError

if TYPE_CHECKING:
    import ssl


def of_server(identity: str) -> ssl.SSLContext:
    """Return the context of a server. Raises OSError, also if `identity` is no identity.

    `identity`: key and certificate, PEM. Python takes them only from a file, so they are written to one that never has a name.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody comes back to go on with a session
    file = os.memfd_create("torchrelay-identity", os.MFD_CLOEXEC)
    try:
        os.write(file, identity.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def to_one_server(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts the holder of this one certificate (PEM) and nobody else. Raises FrameError if it is none."""
    import ssl

    context = _of_client()
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError) as e:
        raise FrameError(f"the keeper's certificate cannot be read: {e}") from e
    return context


def to_whoever_proves_it() -> ssl.SSLContext:
    """Return a context that takes any certificate: the peer has to prove who it is inside the connection (`transfer.handshake`)."""
    import ssl

    context = _of_client()
    context.verify_mode = ssl.CERT_NONE
    return context


def _of_client() -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a peer is known by its certificate, not by where it is
    return context
