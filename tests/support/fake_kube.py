"""A Kubernetes API in memory, for tests without a cluster."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from torchrelay.controller.kube.client.api import ALL, CONFLICT, NOT_FOUND, Object, ObjectKind, Refused
from torchrelay.protocol.errors import RetryableError

FORBIDDEN = 403
CHANGES_KEPT = 256


class FakeApi:
    """As `kube.client.api.Api`. `away`: every call fails as if the API server were not there."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.away = False
        self.answers_lost = 0
        """How many of the next calls that change something are carried out, and seem to have failed."""
        self.hidden: set[str] = set()
        """Kinds of which nothing is found by name, as if it came a moment later."""
        self.refused: dict[str, str] = {}
        """By kind, why nothing of it may be made."""
        self.unknown: set[str] = set()
        """Versions of APIs that this cluster does not have."""
        self.asked: dict[str, int] = {}
        """By kind, how often something was to be made."""
        self.calls: list[tuple[str, str, str]] = []
        """What was asked: the verb, the kind, the name."""
        self._numbers = itertools.count(1)
        self._changed = 0
        self._changes: deque[tuple[int, str, str, Object]] = deque(maxlen=CHANGES_KEPT)
        """For who watches from a list on that was made before them."""
        self._watchers: list[tuple[str, asyncio.Queue[tuple[str, Object]]]] = []

    def put(self, kind: ObjectKind, manifest: Object) -> Object:
        """As if it had been there before."""
        made = copy.deepcopy(manifest)
        meta = made["metadata"]
        number = next(self._numbers)
        meta.setdefault("name", f"{meta.get('generateName', '')}{number}")
        meta.setdefault("uid", f"uid-{number:04}")
        meta.setdefault("creationTimestamp", f"2026-01-01T00:00:{number:02}Z")
        meta["resourceVersion"] = str(number)
        key = self._key(kind, meta["name"], meta.get("namespace"))
        self._tell(kind.name, "MODIFIED" if key in self.objects else "ADDED", made)
        self.objects[key] = made
        return copy.deepcopy(made)

    def remove(self, kind: ObjectKind, name: str, namespace: str | None = "team") -> None:
        """As if somebody else had deleted it."""
        if (gone := self.objects.pop(self._key(kind, name, namespace), None)) is not None:
            self._tell(kind.name, "DELETED", gone)

    def collect(self) -> None:
        """As the garbage collector does: whatever has owners, none of which is there any more, goes too."""
        while True:
            there = {o["metadata"]["uid"] for o in self.objects.values()}
            gone = [key for key, o in self.objects.items() if _is_orphan(o, there)]
            if not gone:
                return
            for key in gone:
                self._tell(key[0], "DELETED", self.objects.pop(key))

    def _tell(self, kind: str, what: str, found: Object) -> None:
        self._changed += 1
        self._changes.append((self._changed, kind, what, found))
        for name, queue in self._watchers:
            if name == kind:
                queue.put_nowait((what, copy.deepcopy(found)))

    def named(self, kind: ObjectKind, name: str, namespace: str = "team") -> Object:
        return self.objects[self._key(kind, name, namespace)]

    def all(self, kind: ObjectKind) -> list[Object]:
        return [o for (of, _, _), o in self.objects.items() if of == kind.name]

    async def list(self, kind: ObjectKind, namespace: str = ALL, labels: Any = None) -> tuple[list[Object], str]:
        self._check()
        return copy.deepcopy(self.all(kind)), str(self._changed)

    async def scan(
        self, kind: ObjectKind, take: Callable[[Object], None], namespace: str = ALL, labels: Any = None
    ) -> str:
        found, version = await self.list(kind, namespace, labels)
        for each in found:
            take(each)
        return version

    async def watch(
        self, kind: ObjectKind, version: str, namespace: str = ALL, labels: Any = None
    ) -> AsyncIterator[tuple[str, Object]]:
        """`version`: of a list, as a real API has it; empty: from now on."""
        self._check()
        queue: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        seen = int(version) if version else self._changed
        if self._changes and seen < self._changes[0][0] - 1:
            raise RetryableError("too old resource version")
        for number, name, what, found in self._changes:
            if name == kind.name and number > seen:
                queue.put_nowait((what, copy.deepcopy(found)))
        self._watchers.append((kind.name, queue))
        while True:
            yield await queue.get()

    async def get(self, kind: ObjectKind, name: str, namespace: str | None = None) -> Object | None:
        self._check("get", kind, name)
        if kind.name in self.hidden:
            self.hidden.remove(kind.name)
            return None
        return copy.deepcopy(self.objects.get(self._key(kind, name, namespace)))

    async def create(self, kind: ObjectKind, manifest: Object) -> Object:
        self._check("create", kind, manifest["metadata"].get("name", ""))
        self.asked[kind.name] = self.asked.get(kind.name, 0) + 1
        if kind.version in self.unknown:
            raise Refused(NOT_FOUND, "the server could not find the requested resource")
        if reason := self.refused.get(kind.name):
            raise Refused(FORBIDDEN, reason)
        meta = manifest["metadata"]
        if "name" in meta and self._key(kind, meta["name"], meta.get("namespace")) in self.objects:
            raise Refused(CONFLICT, f"{meta['name']} exists")
        return self._answered(self.put(kind, manifest))

    async def replace(self, kind: ObjectKind, manifest: Object) -> Object:
        self._check()
        meta = manifest["metadata"]
        there = self.objects.get(self._key(kind, meta["name"], meta.get("namespace")))
        if there is None or there["metadata"]["resourceVersion"] != meta.get("resourceVersion"):
            raise Refused(CONFLICT, f"{meta['name']} has been changed meanwhile")
        return self.put(kind, manifest)

    async def patch(
        self, kind: ObjectKind, name: str, patch: Object, namespace: str | None = None, status: bool = False
    ) -> Object:
        self._check("patch", kind, name)
        found = self.objects.get(self._key(kind, name, namespace))
        if found is None:
            raise Refused(NOT_FOUND, f"{name} is not there")
        _merge(found, patch)
        self._tell(kind.name, "MODIFIED", found)
        return self._answered(copy.deepcopy(found))

    async def delete(
        self, kind: ObjectKind, name: str, namespace: str | None = None, grace_s: int | None = None
    ) -> None:
        self._check("delete", kind, name)
        self.remove(kind, name, namespace)

    def _answered(self, found: Object) -> Object:
        if self.answers_lost:
            self.answers_lost -= 1
            raise RetryableError("the API server cannot be reached: the connection was cut")
        return found

    def _check(self, verb: str = "", kind: ObjectKind | None = None, name: str = "") -> None:
        if kind is not None:
            self.calls.append((verb, kind.name, name))
        if self.away:
            raise RetryableError("the API server cannot be reached")

    def _key(self, kind: ObjectKind, name: str, namespace: str | None) -> tuple[str, str, str]:
        return kind.name, (namespace or "") if kind.namespaced else "", name


def _is_orphan(found: Object, there: set[str]) -> bool:
    owners = found["metadata"].get("ownerReferences") or ()
    return bool(owners) and not any(o["uid"] in there for o in owners)


def _merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)
