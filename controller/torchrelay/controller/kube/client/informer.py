"""A mirror of one kind of objects: listed, then watched, and listed again whenever something may have been missed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from torchrelay.controller.kube.client.api import ALL, Api, Object, ObjectKind, Refused
from torchrelay.controller.kube.client.packed import pack, unpack
from torchrelay.protocol.errors import RetryableError

log = logging.getLogger(__name__)

SILENT_S = 90.0
"""A connection may be dead without a word; listing anew costs little."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0
_DELETED = "DELETED"
_Key = tuple[str, str]
"""Namespace and name."""


def log_failed(found: Object, error: Exception) -> None:
    """Where nobody else is to know."""
    log.error("an object is left out: %s: %s", type(error).__name__, error, exc_info=error)


class Informer:
    """`changed(object, deleted)` is called for each change, and again for all that is there after a gap.

    `failed(object, error)` is told what goes wrong at one object, which is left out then: the others are taken in as always.
    """

    def __init__(
        self,
        api: Api,
        kind: ObjectKind,
        changed: Callable[[Object, bool], None],
        namespace: str = ALL,
        labels: dict[str, Any] | None = None,
        failed: Callable[[Object, Exception], None] = log_failed,
    ) -> None:
        self._api = api
        self._kind = kind
        self._changed = changed
        self._failed = failed
        self._namespace = namespace
        self._labels = labels
        self._known: dict[_Key, tuple[str, bytes]] = {}
        """With the uid of each."""
        self.listed = asyncio.Event()
        self.broken = ""
        """Why nothing is known of changes now, or empty: a watch that ends and a list that works is the ordinary case."""

    async def run(self) -> None:
        """Until cancelled."""
        backoff_s = FIRST_BACKOFF_S
        was_listed = False
        while True:
            try:
                version = await self._list()
                backoff_s = FIRST_BACKOFF_S
                was_listed = True
                self.broken = ""
                await self._watch(version)
            except asyncio.TimeoutError:
                log.debug("%s: silent for %.0f s, listed anew", self._kind.name, SILENT_S)
            except Exception as e:  # whatever it is, all jobs rest on this mirror
                self.broken = "" if was_listed else str(e)
                was_listed = False
                unforeseen = not isinstance(e, (RetryableError, Refused))
                log.warning("%s: %s; listed anew in %.1f s", self._kind.name, e, backoff_s, exc_info=unforeseen)
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _list(self) -> str:
        there: set[_Key] = set()

        def take(found: Object) -> None:
            there.add(_key(found))
            self._take(found)

        version = await self._api.scan(
            self._kind, lambda found: self._contained(take, found), self._namespace, self._labels
        )
        for key in self._known.keys() - there:
            self._gone(key)
        self.listed.set()
        return version

    async def _watch(self, version: str) -> None:
        changes = self._api.watch(self._kind, version, self._namespace, self._labels)
        while True:
            what, found = await _within(SILENT_S, anext(changes))
            self._contained(self._delete if what == _DELETED else self._take, found)

    def _contained(self, take: Callable[[Object], None], found: Object) -> None:
        try:
            take(found)
        except Exception as e:  # noqa: BLE001 - whatever it is, the next object must not notice
            self._failed(found, e)

    def _delete(self, found: Object) -> None:
        if (known := self._known.get(_key(found))) is not None and known[0] == found["metadata"]["uid"]:
            del self._known[_key(found)]
            self._changed(found, True)

    def _take(self, found: Object) -> None:
        key = _key(found)
        uid = found["metadata"]["uid"]
        if key in self._known and self._known[key][0] != uid:
            self._gone(key)  # made again under its name in a gap
        if not self._kind.has_authors:
            found["metadata"].pop("managedFields", None)
        self._known[key] = uid, pack(found)
        self._changed(found, False)

    def _gone(self, key: _Key) -> None:
        _, packed = self._known.pop(key)
        self._contained(lambda found: self._changed(found, True), unpack(packed))


async def _within(seconds: float, coming: Awaitable[tuple[str, Object]]) -> tuple[str, Object]:
    """As `asyncio.wait_for`, which keeps a cancellation to itself that comes together with the result."""
    task = asyncio.ensure_future(coming)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


def _key(found: Object) -> _Key:
    return found["metadata"].get("namespace") or "", found["metadata"]["name"]
