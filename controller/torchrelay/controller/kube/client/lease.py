"""Leader election: keeps a Lease, or waits for it.

While the API server is away no replica can take the lease, so that the one which leads goes on.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from torchrelay.controller.kube.client.api import CONFLICT, LEASES, Api, Object, Refused
from torchrelay.controller.kube.decide.leadership import (
    FOLLOW,
    LEASE_S,
    RENEW_S,
    STEP_DOWN,
    TAKE,
    SeenLease,
    judge_lease,
)
from torchrelay.protocol.errors import FatalError, RetryableError
from torchrelay.protocol.kube.kube_names import CONTROLLER_LEASE

log = logging.getLogger(__name__)


class Elector:
    """One replica. `me`: a name that no other replica has."""

    def __init__(self, api: Api, namespace: str, me: str) -> None:
        self._api = api
        self._namespace = namespace
        self._me = me
        self._leads = False
        self._looked = False
        self._last: Any = None
        self._since_s = 0.0
        self._said = ""
        self.holder = ""
        """The holder of the lease when it was looked at last; empty where there was none."""

    async def look(self) -> None:
        """Wait until the lease could be looked at: from then on this replica leads, or could."""
        while not self._looked:
            await self._turn()
            if not self._looked:
                await asyncio.sleep(RENEW_S)

    async def win(self) -> None:
        """Wait until this replica leads."""
        while not self._leads:
            await self._turn()
            if not self._leads:
                await asyncio.sleep(RENEW_S)

    async def hold(self, renewed: Callable[[], Awaitable[None]]) -> None:
        """Keep the lease until it is lost. Then raise FatalError: the process ends, and begins anew as one that follows.

        `renewed` is called after each renewal.
        """
        while True:
            await asyncio.sleep(RENEW_S)
            if await self._turn():
                await renewed()

    async def release(self) -> None:
        """Let another replica lead at once."""
        if self._leads:
            lease = await self._api.get(LEASES, CONTROLLER_LEASE, self._namespace)
            if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._me:
                lease["spec"]["holderIdentity"] = None
                await self._api.replace(LEASES, lease)

    async def _turn(self) -> bool:
        """Look at the lease, and take or renew it if that is due. Return whether this replica leads for certain."""
        try:
            lease = await self._api.get(LEASES, CONTROLLER_LEASE, self._namespace) or await self._make()
            self._looked = True
            spec = lease.setdefault("spec", {})
            verdict = judge_lease(
                SeenLease(self._me, spec.get("holderIdentity") or "", self._unchanged_s(spec), self._leads)
            )
            if verdict.reason != self._said:
                self._said = verdict.reason
                log.info("%s: %s", verdict.action, verdict.reason)
            if verdict.action == STEP_DOWN:
                raise FatalError(f"no leader any more: {verdict.reason}")
            if verdict.action == FOLLOW:
                self.holder = spec.get("holderIdentity") or ""
                return False
            await self._renew(lease, takes=verdict.action == TAKE)
            self._leads = True
            self.holder = self._me
            return True
        except RetryableError as e:
            log.warning("the lease cannot be looked at: %s", e)
            self._last = None  # who leads could not renew it either: its time begins anew
        except Refused as e:
            if e.code != CONFLICT:
                raise
            log.info("another one was faster with the lease")
        return False

    def _unchanged_s(self, spec: dict[str, Any]) -> float:
        now_s = asyncio.get_running_loop().time()
        record = spec.get("holderIdentity"), spec.get("renewTime")
        if record != self._last:
            self._last = record
            self._since_s = now_s
        return now_s - self._since_s

    async def _make(self) -> Object:
        manifest = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": CONTROLLER_LEASE, "namespace": self._namespace},
            "spec": {},
        }
        return await self._api.create(LEASES, manifest)

    async def _renew(self, lease: Object, takes: bool) -> None:
        spec = lease["spec"]
        now = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec |= {"holderIdentity": self._me, "renewTime": now, "leaseDurationSeconds": int(LEASE_S)}
        if takes:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        await self._api.replace(LEASES, lease)
