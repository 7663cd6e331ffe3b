"""Where the certificates are kept, and how API servers are told whom to trust."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Protocol

from lightkube import ApiError, AsyncClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Secret
from lightkube.types import PatchType

from torchrelay.webhook.settings import ServerSettings
from torchrelay.webhook.tls.certificates import Data

_NOT_FOUND = 404
_CONFLICT = 409


@dataclass(frozen=True)
class Stored:
    """What the Secret holds. `version`: of the Secret as it was read; "" if there was none."""

    data: Data
    version: str


class CertificateStore(Protocol):
    """A place for certificates. Its methods raise OSError or the client's errors while it cannot be reached."""

    async def read(self) -> Stored: ...

    async def write(self, data: Data, version: str) -> bool:
        """Write the data. Return False if somebody else has written since `version`."""

    async def publish(self, authorities: bytes) -> None:
        """Tell API servers whom to trust, unless they know."""


class KubernetesStore:
    """Keeps certificates in a Secret, and publishes the authority in `caBundle` of the webhook's configuration."""

    def __init__(self, client: AsyncClient, settings: ServerSettings) -> None:
        self._client = client
        self._settings = settings

    async def read(self) -> Stored:
        try:
            secret = await self._client.get(Secret, self._settings.secret, namespace=self._settings.namespace)
        except ApiError as e:
            if e.status.code != _NOT_FOUND:
                raise
            return Stored({}, "")
        data = {k: base64.b64decode(v) for k, v in (secret.data or {}).items()}
        assert secret.metadata is not None
        return Stored(data, secret.metadata.resourceVersion or "")

    async def write(self, data: Data, version: str) -> bool:
        name = self._settings.secret
        namespace = self._settings.namespace
        encoded = {k: base64.b64encode(v).decode() for k, v in data.items()}
        try:
            if version:
                patch = {"metadata": {"resourceVersion": version}, "data": encoded}
                await self._client.patch(Secret, name, patch, namespace=namespace, patch_type=PatchType.MERGE)
            else:
                await self._client.create(Secret(metadata=ObjectMeta(name=name, namespace=namespace), data=encoded))
        except ApiError as e:
            # If it was deleted in between, somebody else has done that, too.
            if e.status.code not in (_CONFLICT, _NOT_FOUND):
                raise
            return False
        return True

    async def publish(self, authorities: bytes) -> None:
        bundle = base64.b64encode(authorities).decode()
        found = await self._client.get(MutatingWebhookConfiguration, self._settings.configuration)
        assert found.metadata is not None
        webhooks = found.webhooks or []
        stale = [i for i, w in enumerate(webhooks) if w.clientConfig.caBundle != bundle]
        if not stale:
            return
        patch: list[dict[str, object]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": found.metadata.resourceVersion}
        ]
        patch += [{"op": "add", "path": f"/webhooks/{i}/clientConfig/caBundle", "value": bundle} for i in stale]
        await self._client.patch(
            MutatingWebhookConfiguration, self._settings.configuration, patch, patch_type=PatchType.JSON
        )
