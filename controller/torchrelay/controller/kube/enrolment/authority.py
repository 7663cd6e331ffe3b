"""The cluster's certificate authority: a secret that the controller makes once, and its public part for all agents.

It can be exchanged under running jobs (docs/security.md has the steps): the Secret may hold a `next` one, which agents learn to
trust before anything is signed by it, and a `previous` one, whose certificates are good until they run out. Each begins with the
day on which it was made, from which its authority is good for AUTHORITY_LIFETIME.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime as dt
import logging
import re
import secrets
from collections.abc import Callable

from torchrelay.controller.kube.client.api import CONFIG_MAPS, CONFLICT, SECRETS, Api, Object, Refused
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.security.tls import Credentials, Validity

log = logging.getLogger(__name__)

_KEY = "secret"
_DAY = "%Y-%m-%d"
_OTHERS = ("next", "previous")
_SECRET_BYTES = 32
_DATED = re.compile(rb"(\d{4}-\d{2}-\d{2}):")
AUTHORITY_LIFETIME = dt.timedelta(days=5 * 365)
WARNED_BEFORE = dt.timedelta(days=180)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)


async def open_authority(api: Api, namespace: str, now: Callable[[], dt.datetime] = _now) -> Credentials:
    """Read the secret, or make it, and publish the certificate that agents are to trust.

    Raises FatalError for a secret that is none or whose time is over, Refused, RetryableError.
    """
    secret = await api.get(SECRETS, kube.CA_SECRET, namespace) or await _make(api, namespace, now())
    created = str(secret["metadata"].get("creationTimestamp") or "")[:10]
    data = secret.get("data") or {}
    if not data.get(_KEY):
        raise FatalError(f"the Secret {namespace}/{kube.CA_SECRET} has no {_KEY}")
    others = b"".join(_credentials(data, name, created).authority for name in _OTHERS if data.get(name))
    authority = dataclasses.replace(_credentials(data, _KEY, created), others=others)
    if reason := why_exchange(authority.validity, now()):
        log.warning("%s", reason)
    await _publish(api, namespace, authority.authority.decode())
    return authority


def why_exchange(validity: Validity, now: dt.datetime) -> str:
    """Return a warning that the authority has to be exchanged; empty as long as there is time.

    Raises FatalError when it is over.
    """
    text = f"the certificate authority of the Secret {kube.CA_SECRET} ends on {validity.ends:%Y-%m-%d}"
    if now >= validity.ends:
        raise FatalError(f"{text}: no agent trusts it any more; docs/security.md says how to exchange it")
    return f"{text}: exchange it before (docs/security.md)" if now >= validity.ends - WARNED_BEFORE else ""


def _credentials(data: Object, name: str, created: str) -> Credentials:
    """Return the credentials in the Secret.

    `created`: the day on which the Secret was made, for a secret of an earlier version, which has no date.
    Raises FatalError for what is no base64, UserError for a secret that could be guessed.
    """
    try:
        value = base64.b64decode(data[name], validate=True)
    except binascii.Error as e:
        raise FatalError(f"{name} in the Secret {kube.CA_SECRET} is no base64: {e}") from e
    dated = _DATED.match(value)
    try:
        made = dt.datetime.strptime(dated[1].decode() if dated else created, _DAY).replace(tzinfo=dt.timezone.utc)
    except ValueError as e:
        raise FatalError(f"{name} in the Secret {kube.CA_SECRET} begins with no day: {e}") from e
    validity = Validity(made - dt.timedelta(days=1), made + AUTHORITY_LIFETIME)
    return Credentials.from_secret(value[dated.end() :] if dated else value, "controller", validity)


async def _make(api: Api, namespace: str, now: dt.datetime) -> Object:
    value = base64.b64encode(f"{now:{_DAY}}:".encode() + secrets.token_bytes(_SECRET_BYTES)).decode()
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
