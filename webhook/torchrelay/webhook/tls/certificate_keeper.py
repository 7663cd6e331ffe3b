"""Keeps the server's certificate fresh while it runs."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from httpx2 import HTTPError
from lightkube import ApiError

from torchrelay.protocol.errors import FatalError
from torchrelay.webhook.tls.certificates import CA_CRT, TLS_CRT, TLS_KEY, renewed
from torchrelay.webhook.tls.stores import CertificateStore

log = logging.getLogger(__name__)

LOOK_EVERY_S = 60.0
RETRY_S = 5.0
ATTEMPTS = 10
AWAY = (ApiError, HTTPError, OSError)
"""What a call raises while the API server is away, or says no."""


class CertificateKeeper:
    """Makes the webhook's own certificates, and renews them. `now` gives the time."""

    def __init__(
        self, store: CertificateStore, names: tuple[str, ...], context: ssl.SSLContext, now: Callable[[], dt.datetime]
    ) -> None:
        self._store = store
        self._names = names
        self._context = context
        self._now = now
        self._loaded: tuple[bytes, bytes] | None = None
        self.not_ready = "no certificate yet"

    async def refresh(self) -> None:
        """Renew the certificates if needed, publish the authority, and load them.

        Raises the store's errors; FatalError if others write the Secret again and again.
        """
        for _ in range(ATTEMPTS):
            stored = await self._store.read()
            data, reason = renewed(stored.data, self._names, self._now())
            if reason and not await self._store.write(data, stored.version):
                continue  # another replica was faster; what it wrote will do
            if reason:
                log.warning("certificates renewed: %s", reason)
            # First everybody is told of a new authority, then it is used.
            await self._store.publish(data[CA_CRT])
            self._load(data[TLS_CRT], data[TLS_KEY])
            self.not_ready = ""
            return
        raise FatalError(f"the Secret was written by others {ATTEMPTS} times in a row")

    def _load(self, certificate: bytes, key: bytes) -> None:
        if (certificate, key) != self._loaded:
            load_pair(self._context, certificate, key)
            self._loaded = (certificate, key)

    async def run(self) -> None:
        """Refresh until cancelled. While the API server is away, the old certificate stays in use."""
        while True:
            try:
                await self.refresh()
                pause_s = LOOK_EVERY_S
            except (*AWAY, FatalError) as e:
                log.warning("certificates could not be looked at: %s", e)
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)


class FolderKeeper:
    """Certificates that others make and renew, such as cert-manager: tls.crt and tls.key in a folder."""

    def __init__(self, folder: Path, context: ssl.SSLContext) -> None:
        self._folder = folder
        self._context = context
        self._loaded: tuple[bytes, bytes] | None = None
        self.not_ready = "no certificate yet"

    def refresh(self) -> None:
        """Load the certificate if its files have changed.

        Raises OSError while a file is missing, ssl.SSLError while certificate and key do not belong together.
        """
        pair = (self._folder / TLS_CRT).read_bytes(), (self._folder / TLS_KEY).read_bytes()
        if pair != self._loaded:
            load_pair(self._context, *pair)
            self._loaded = pair
        self.not_ready = ""

    async def run(self) -> None:
        while True:
            try:
                self.refresh()
                pause_s = LOOK_EVERY_S
            except OSError as e:  # ssl.SSLError is one
                log.warning("the certificate in %s cannot be used: %s", self._folder, e)
                pause_s = RETRY_S
            await asyncio.sleep(pause_s)


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Use the certificate for connections from now on.

    The ssl module takes only files. They are deleted again at once.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / TLS_CRT, Path(folder) / TLS_KEY
        for path, content in zip(paths, (certificate, key)):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        context.load_cert_chain(*paths)
