"""The server: answers reviews over TLS while its certificates are kept fresh beside it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

from torchrelay.protocol.errors import RetryableError
from torchrelay.webhook.injection.inject import PodDecision, patch
from torchrelay.webhook.serving.app import make_app
from torchrelay.webhook.settings import AUTO, SELF_MADE, ServerSettings, WebhookSettings
from torchrelay.webhook.tls.certificate_keeper import AWAY, RETRY_S, CertificateKeeper, FolderKeeper, load_pair
from torchrelay.webhook.tls.certificates import TLS_CRT, TLS_KEY, renewed
from torchrelay.webhook.tls.stores import CertificateStore

log = logging.getLogger(__name__)

ANY_ADDRESS = "0.0.0.0"


class Webhook:
    """The webhook's server. If the settings leave the kind of sidecar to the cluster, `find_sidecar` is asked until it answers."""

    def __init__(
        self,
        settings: WebhookSettings,
        store: CertificateStore | None,
        find_sidecar: Callable[[], Awaitable[str]],
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.timezone.utc),
    ) -> None:
        self._settings = settings
        self._find_sidecar = find_sidecar
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        names = dns_names(settings.server)
        # Until the real one is there a probe of the kubelet gets an answer: it looks at no certificate.
        stopgap, _ = renewed({}, names, now())
        load_pair(self.context, stopgap[TLS_CRT], stopgap[TLS_KEY])
        if settings.server.certificates == SELF_MADE:
            if store is None:
                raise ValueError("certificates that are made here need a store")
            self._keeper: CertificateKeeper | FolderKeeper = CertificateKeeper(store, names, self.context, now)
        else:
            self._keeper = FolderKeeper(Path(settings.server.certificates), self.context)

    def decide(self, pod: dict[str, Any]) -> PodDecision:
        return patch(pod, self._settings, read_authority(Path(self._settings.controller.caFile)))

    def not_ready(self) -> str:
        """Return why pods would not be injected now; "" if they would."""
        if self._keeper.not_ready:
            return self._keeper.not_ready
        if self._settings.sidecar == AUTO:
            return "the cluster's version is not known yet"
        if not read_authority(Path(self._settings.controller.caFile)):
            return "the controller has published no certificate authority yet"
        return ""

    async def serve(self, address: str = ANY_ADDRESS) -> None:
        """Serve until a signal ends it."""
        config = uvicorn.Config(
            make_app(self.decide, self.not_ready),
            host=address,
            port=self._settings.server.port,
            ssl_context_factory=lambda _config, _default: self.context,
            log_level="warning",
            log_config=None,  # as lines of ours
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=10,
        )
        beside = [asyncio.ensure_future(self._keeper.run()), asyncio.ensure_future(self._decide_sidecar())]
        try:
            await uvicorn.Server(config).serve()
        finally:
            for task in beside:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _decide_sidecar(self) -> None:
        while self._settings.sidecar == AUTO:
            try:
                self._settings = dataclasses.replace(self._settings, sidecar=await self._find_sidecar())
            except (*AWAY, RetryableError) as e:
                log.warning("the cluster's version cannot be found: %s", e)
                await asyncio.sleep(RETRY_S)


def dns_names(settings: ServerSettings) -> tuple[str, ...]:
    """Return the DNS names under which API servers call the webhook."""
    host = f"{settings.service}.{settings.namespace}.svc"
    return host, f"{host}.cluster.local"


def read_authority(path: Path) -> str:
    """Read the controller's certificate authority; "" while the controller has published none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
