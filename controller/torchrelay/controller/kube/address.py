"""Leads agents to the controller that leads: its Service has no selector, and one endpoint, which the leader writes.

So replicas that wait can be ready, as a rolling update wants it, and yet no agent is sent to them.
"""

from __future__ import annotations

import ipaddress
import logging

from torchrelay.controller.kube.client.api import (
    CONFLICT,
    ENDPOINT_SLICES,
    ENDPOINT_SLICES_BETA,
    NOT_FOUND,
    Api,
    Object,
    ObjectKind,
    Refused,
)
from torchrelay.controller.kube.settings import ClusterSettings

log = logging.getLogger(__name__)


class Address:
    def __init__(self, api: Api, settings: ClusterSettings) -> None:
        self._api = api
        self._settings = settings
        self._kind: ObjectKind = ENDPOINT_SLICES

    async def publish(self) -> None:
        """Write the endpoint of this controller. Costs one look where all is as it should be.

        Raises RetryableError while the API server is away, and Refused.
        """
        if not self._settings.address:
            return
        wanted = slice_of(self._settings, self._kind.version)
        name = wanted["metadata"]["name"]
        namespace = self._settings.namespace
        found = await self._api.get(self._kind, name, namespace)
        if found is None:
            await self._create(wanted)
        elif any(found.get(part) != wanted[part] for part in ("endpoints", "ports")):
            await self._api.patch(self._kind, name, {part: wanted[part] for part in ("endpoints", "ports")}, namespace)
        else:
            return
        log.info("agents find this controller at %s", self._settings.address)

    async def _create(self, wanted: Object) -> None:
        try:
            await self._api.create(self._kind, wanted)
        except Refused as e:
            if e.code == NOT_FOUND and self._kind is ENDPOINT_SLICES:
                self._kind = ENDPOINT_SLICES_BETA  # before Kubernetes 1.21
                await self.publish()
            elif e.code != CONFLICT:  # whoever made it in between was another leader: the next look puts it right
                raise


def slice_of(settings: ClusterSettings, version: str) -> Object:
    """Return the manifest of the endpoint slice. The family is part of its name, because that of a slice cannot be changed."""
    family = f"IPv{ipaddress.ip_address(settings.address).version}"
    ports = {"relay": settings.relay_port, "enroll": settings.enrol_port}
    pod = {"kind": "Pod", "name": settings.pod, "namespace": settings.namespace}
    return {
        "apiVersion": version,
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{settings.service}-{family.lower()}",
            "namespace": settings.namespace,
            "labels": {
                "kubernetes.io/service-name": settings.service,
                "endpointslice.kubernetes.io/managed-by": "controller.torchrelay.dev",
            },
        },
        "addressType": family,
        "endpoints": [{"addresses": [settings.address], "conditions": {"ready": True}, "targetRef": pod}],
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports.items()],
    }
