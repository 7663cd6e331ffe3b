"""What the webhook asks the cluster about once: can it run native sidecars?"""

from __future__ import annotations

import re
from typing import Any

from lightkube import KubeConfig
from lightkube.config.client_adapter import AsyncClient, ConnectionParams

from torchrelay.protocol.errors import RetryableError
from torchrelay.protocol.kube import kube_names as kube

FIRST_SAFE_MINOR = 32
"""Kubelets know native sidecars from 1.29 on, and may be three releases older than the API server. An older one would
wait for the agent to end before it starts training."""


def sidecar_for(version: dict[str, Any]) -> str:
    """Return the kind of sidecar for the API server's answer to /version. Raises RetryableError if that is no version."""
    numbers = [re.match(r"\d+", str(version.get(part, ""))) for part in ("major", "minor")]
    major, minor = (int(n.group()) if n else None for n in numbers)
    if major is None or minor is None:
        raise RetryableError(f"the API server calls its version {version!r}")
    return kube.NATIVE if (major, minor) >= (1, FIRST_SAFE_MINOR) else kube.CLASSIC


async def find_sidecar() -> str:
    """Ask the API server which kind of sidecar it can run.

    Raises RetryableError for an odd answer, and the client's errors while the API server is away.
    """
    config = KubeConfig.from_env().get()
    if config is None:
        raise RetryableError("no cluster is configured")
    async with AsyncClient(config, ConnectionParams()) as client:
        response = await client.get("/version")
        response.raise_for_status()
        return sidecar_for(response.json())
