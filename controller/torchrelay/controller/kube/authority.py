"""The cluster's certificate authority: a secret that the controller makes once, and its public part for everybody.

It can be exchanged under running jobs (docs/security.md has the steps): the Secret may hold a `next` one, which agents learn to
trust before anything is signed by it, and a `previous` one, whose certificates are good until they run out.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import secrets

from torchrelay.controller.kube.api import CONFIG_MAPS, CONFLICT, SECRETS, Api, Object, Refused
from torchrelay.protocol import kube_names as kube
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.tls import Credentials

_KEY = "secret"
_OTHERS = ("next", "previous")
_SECRET_BYTES = 32


async def open_authority(api: Api, namespace: str) -> Credentials:
    """Reads the secret, or makes it, and publishes the certificate that agents are to trust.

    Raises FatalError, Refused, RetryableError.
    """
    secret = await api.get(SECRETS, kube.CA_SECRET, namespace) or await _make(api, namespace)
    data = secret.get("data") or {}
    if not data.get(_KEY):
        raise FatalError(f"the Secret {namespace}/{kube.CA_SECRET} has no {_KEY}")
    others = b"".join(_credentials(data, name).authority for name in _OTHERS if data.get(name))
    authority = dataclasses.replace(_credentials(data, _KEY), others=others)
    await _publish(api, namespace, authority.authority.decode())
    return authority


def _credentials(data: Object, name: str) -> Credentials:
    """Raises FatalError for what is no base64, UserError for a secret that could be guessed."""
    try:
        return Credentials.from_secret(base64.b64decode(data[name], validate=True), "controller")
    except binascii.Error as e:
        raise FatalError(f"{name} in the Secret {kube.CA_SECRET} is no base64: {e}") from e


async def _make(api: Api, namespace: str) -> Object:
    value = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    manifest = _manifest("Secret", namespace, kube.CA_SECRET, {_KEY: value})
    try:
        return await api.create(SECRETS, manifest)
    except Refused as e:
        found = await api.get(SECRETS, kube.CA_SECRET, namespace) if e.code == CONFLICT else None
        if found is None:
            raise
        return found  # another replica was faster


async def _publish(api: Api, namespace: str, pem: str) -> None:
    found = await api.get(CONFIG_MAPS, kube.CA_CONFIG_MAP, namespace)
    if found is None:
        await api.create(CONFIG_MAPS, _manifest("ConfigMap", namespace, kube.CA_CONFIG_MAP, {kube.CA_KEY: pem}))
    elif (found.get("data") or {}).get(kube.CA_KEY) != pem:
        await api.patch(CONFIG_MAPS, kube.CA_CONFIG_MAP, {"data": {kube.CA_KEY: pem}}, namespace)


def _manifest(kind: str, namespace: str, name: str, data: Object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "data": data}
