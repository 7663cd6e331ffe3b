"""Writes the conditions of Quarantines, which `kubectl wait` can ask for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchrelay.controller.kube.client.api import NOT_FOUND, QUARANTINES, Api, Object, Refused
from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.cluster.quarantines import Quarantined, read_quarantine
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.status.conditions import Conditions
from torchrelay.controller.kube.status.quarantine_conditions import find_quarantine_conditions
from torchrelay.protocol.errors import RetryableError

log = logging.getLogger(__name__)

LOOK_S = 2.0


@dataclass
class _Known:
    """A Quarantine. `written`: its conditions, as they were read or written last."""

    uid: str
    quarantined: Quarantined
    conditions: Conditions
    written: Any
    failure: str = ""
    """Why they could not be written, as it was said last."""


class QuarantineStatus:
    """The Quarantines. `changed` takes what their mirror sees."""

    def __init__(self, api: Api, ledger: Ledger) -> None:
        self._api = api
        self._ledger = ledger
        self._known: dict[str, _Known] = {}
        self._said = ""

    def changed(self, quarantine: Object, deleted: bool) -> None:
        meta = quarantine["metadata"]
        if deleted:
            self._known.pop(meta["name"], None)
            return
        known = self._known.get(meta["name"])
        read = read_quarantine(quarantine)
        if known is not None and known.uid == meta["uid"]:
            known.quarantined = read
        else:
            before = (quarantine.get("status") or {}).get("conditions") or []
            self._known[meta["name"]] = _Known(meta["uid"], read, Conditions(before), before)

    async def run(self) -> None:
        """Look at all of them again and again, until cancelled."""
        while True:
            try:
                await self.look(time.time())
            except RetryableError as e:
                if str(e) != self._said:
                    self._said = str(e)
                    log.warning("conditions of Quarantines are not written yet: %s", e)
            await asyncio.sleep(LOOK_S)

    async def look(self, now_s: float) -> None:
        """Write what has changed. `now_s`: seconds since the epoch. Raises RetryableError while the API server is away."""
        ranks = self._ranks({k.quarantined.node for k in self._known.values() if not k.quarantined.device})
        for name, known in list(self._known.items()):
            found = find_quarantine_conditions(known.quarantined, now_s, ranks.get(known.quarantined.node, {}))
            wanted = known.conditions.as_status(found, now_s)
            if wanted != known.written:
                await self._write(name, known, wanted)

    async def _write(self, name: str, known: _Known, wanted: list[dict[str, str]]) -> None:
        try:
            await self._api.patch(QUARANTINES, name, {"status": {"conditions": wanted}}, status=True)
        except Refused as e:
            if e.code != NOT_FOUND and known.failure != str(e):
                known.failure = str(e)
                log.error("conditions of Quarantine %s are not written: %s", name, e)
            return
        known.written = wanted

    def _ranks(self, nodes: set[str]) -> Mapping[str, Mapping[JobKey, list[int]]]:
        """Return node -> job -> ranks that live there, of these nodes."""
        found: dict[str, dict[JobKey, list[int]]] = {}
        for pod in self._ledger.pods.values() if nodes else ():
            run = self._ledger.runs.get(pod.key)
            if pod.node in nodes and run is not None and (ranks := run.ranks_in(pod.agent)):
                found.setdefault(pod.node, {}).setdefault(pod.key, []).extend(ranks)
        return found
