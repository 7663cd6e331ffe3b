"""A mirror of one kind of objects: listed, then watched, and listed again whenever something may have been missed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from torchrelay.controller.kube.api import ALL, Api, Kind, Object, Refused
from torchrelay.protocol.errors import RetryableError

log = logging.getLogger(__name__)

SILENT_S = 90.0
"""A connection may be dead without a word; listing anew costs little."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 10.0
_DELETED = "DELETED"


class Informer:
    """`changed(object, deleted)` is called for each change, and again for all that is there after a gap."""

    def __init__(
        self,
        api: Api,
        kind: Kind,
        changed: Callable[[Object, bool], None],
        namespace: str = ALL,
        labels: dict[str, Any] | None = None,
    ) -> None:
        self._api, self._kind, self._changed = api, kind, changed
        self._namespace, self._labels = namespace, labels
        self._known: dict[str, Object] = {}
        self.listed = asyncio.Event()
        self.broken = ""
        """Why nothing is known of changes now, or empty: a watch that ends and a list that works is the ordinary case."""

    async def run(self) -> None:
        """Until cancelled."""
        backoff_s, was_listed = FIRST_BACKOFF_S, False
        while True:
            try:
                version = await self._list()
                backoff_s, was_listed, self.broken = FIRST_BACKOFF_S, True, ""
                await self._watch(version)
            except asyncio.TimeoutError:
                log.debug("%s: silent for %.0f s, listed anew", self._kind.name, SILENT_S)
            except (RetryableError, Refused) as e:
                self.broken = "" if was_listed else str(e)
                was_listed = False
                log.warning("%s: %s; listed anew in %.1f s", self._kind.name, e, backoff_s)
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _list(self) -> str:
        objects, version = await self._api.list(self._kind, self._namespace, self._labels)
        there = {o["metadata"]["uid"]: o for o in objects}
        for uid in self._known.keys() - there.keys():
            self._changed(self._known.pop(uid), True)
        for uid, found in there.items():
            self._take(uid, found)
        self.listed.set()
        return version

    async def _watch(self, version: str) -> None:
        changes = self._api.watch(self._kind, version, self._namespace, self._labels)
        while True:
            what, found = await asyncio.wait_for(anext(changes), SILENT_S)
            uid = found["metadata"]["uid"]
            if what == _DELETED:
                self._known.pop(uid, None)
                self._changed(found, True)
            else:
                self._take(uid, found)

    def _take(self, uid: str, found: Object) -> None:
        found["metadata"].pop("managedFields", None)
        self._known[uid] = found
        self._changed(found, False)
