"""Names in the cluster that a shell offers behind `kubectl torchrelay`."""

from __future__ import annotations

import asyncio

import typer

from torchrelay.protocol.errors import TorchrelayError

TIMEOUT_S = 2.0
"""Somebody waits at a prompt."""


def jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of the TrainingJobs of the namespace."""
    return _names(ctx, "JOBS", incomplete)


def migrations(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of the Migrations of the namespace."""
    return _names(ctx, "MIGRATIONS", incomplete)


def quarantines(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of the Quarantines of the cluster."""
    return _names(ctx, "QUARANTINES", incomplete)


def _names(ctx: typer.Context, kind: str, incomplete: str) -> list[str]:
    """Return names of a kind; none if the cluster does not answer soon, or refuses. Then the shell offers none."""
    given = ctx.params
    try:
        from torchrelay.cli.cluster import api

        async def ask() -> list[str]:
            async with api.Cluster(given.get("namespace") or "", given.get("context") or "") as cluster:
                found = await asyncio.wait_for(cluster.all(getattr(api, kind)), TIMEOUT_S)
            return sorted(str(one["metadata"]["name"]) for one in found)

        return [name for name in asyncio.run(ask()) if name.startswith(incomplete)]
    except (TorchrelayError, asyncio.TimeoutError):
        return []
