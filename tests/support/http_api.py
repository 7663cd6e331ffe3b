"""A Kubernetes API server over HTTP, in memory: lists in pages, watches with a history that can be forgotten, and broken ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]


@dataclass
class Collection:
    """`log`: version, type and object of each change that is remembered. `forgotten`: the newest change that is not."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    log: list[tuple[int, str, Object]] = field(default_factory=list)
    forgotten: int = 0
    watchers: list[asyncio.StreamWriter] = field(default_factory=list)
    asked_from: list[str] = field(default_factory=list)
    """The version that each watch has begun from."""
    lists: int = 0
    pages: int = 0


@dataclass(frozen=True)
class Target:
    resource: str
    namespace: str
    name: str
    is_status: bool


class HttpApi:
    """Collections are named by their plural: `pods`."""

    def __init__(self) -> None:
        self.collections: dict[str, Collection] = {}
        self.version = 1
        self._connections: set[asyncio.StreamWriter] = set()
        self._changes = asyncio.Condition()

    def of(self, resource: str) -> Collection:
        return self.collections.setdefault(resource, Collection())

    @contextlib.asynccontextmanager
    async def served(self, folder: Path) -> AsyncIterator[Path]:
        """A kubeconfig that leads here."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "me", "user": {}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        try:
            yield folder / "kubeconfig"
        finally:
            server.close()
            for writer in self._connections:
                writer.transport.abort()

    # What a test does to it.

    def put(self, resource: str, manifest: Object) -> Object:
        """Made or changed, and told to those who watch."""
        meta = manifest["metadata"]
        key = meta.get("namespace", ""), meta["name"]
        what = "MODIFIED" if key in self.of(resource).objects else "ADDED"
        meta.setdefault("uid", f"uid-{resource}-{self.version}")
        self.of(resource).objects[key] = manifest
        self._changed(resource, what, manifest)
        return manifest

    def delete(self, resource: str, name: str, namespace: str = "") -> None:
        self._changed(resource, "DELETED", self.of(resource).objects.pop((namespace, name)))

    def forget(self, resource: str) -> None:
        """What has happened so far: who was away has to list anew."""
        collection = self.of(resource)
        collection.log, collection.forgotten = [], self.version

    def send(self, resource: str, what: str, found: Object) -> None:
        """An event out of turn."""
        for writer in self.of(resource).watchers:
            _chunk(writer, json.dumps({"type": what, "object": found}).encode() + b"\n")

    async def wait_for_watch(self, resource: str, count: int = 1) -> None:
        await self.wait_until(lambda: len(self.of(resource).asked_from) >= count)

    async def wait_until(self, asked: Callable[[], bool]) -> None:
        """`asked`: whether requests have had some effect."""
        async with self._changes:
            await self._changes.wait_for(asked)

    def end_watches(self, resource: str) -> None:
        """As an API server does it from time to time."""
        for writer in self._taken(resource):
            writer.write(b"0\r\n\r\n")
            writer.close()

    def cut_watches(self, resource: str, half: bytes = b"") -> None:
        for writer in self._taken(resource):
            if half:
                _chunk(writer, half)
                writer.close()
            else:
                writer.transport.abort()

    def _taken(self, resource: str) -> list[asyncio.StreamWriter]:
        collection = self.of(resource)
        taken, collection.watchers = collection.watchers, []
        return taken

    def _changed(self, resource: str, what: str, manifest: Object) -> None:
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        self.of(resource).log.append((self.version, what, manifest))
        self.send(resource, what, manifest)

    # HTTP.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while head := (await reader.readline()).decode():
                method, path, _ = head.split()
                length = 0
                while line := (await reader.readline()).decode().strip():
                    name, _, value = line.partition(":")
                    length = int(value) if name.lower() == "content-length" else length
                body = json.loads(await reader.readexactly(length)) if length else {}
                stays = self._answer(method, path, body, writer)
                await writer.drain()
                async with self._changes:
                    self._changes.notify_all()
                if not stays:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return

    def _answer(self, method: str, path: str, body: Object, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        parsed = urlsplit(path)
        query = {name: values[-1] for name, values in parse_qs(parsed.query).items()}
        target = _target(parsed.path)
        if method == "GET" and query.get("watch"):
            return self._watch(target, query.get("resourceVersion", ""), writer)
        if method == "GET" and not target.name:
            _reply(writer, 200, self._list(target, query))
            return True
        _reply(writer, *self._one(method, target, body))
        return True

    def _watch(self, target: Target, version: str, writer: asyncio.StreamWriter) -> bool:
        collection = self.of(target.resource)
        collection.asked_from.append(version)
        if int(version) < collection.forgotten:
            _reply(writer, *_status(410, f"too old resource version: {version}"))
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number, what, found in collection.log:
            if number > int(version):
                _chunk(writer, json.dumps({"type": what, "object": found}).encode() + b"\n")
        collection.watchers.append(writer)
        return False

    def _list(self, target: Target, query: dict[str, str]) -> Object:
        collection = self.of(target.resource)
        collection.lists += not query.get("continue")
        collection.pages += 1
        found = [o for (namespace, _), o in collection.objects.items() if target.namespace in ("", namespace)]
        first = int(query.get("continue") or 0)
        last = first + int(query.get("limit") or len(found) or 1)
        meta = {"resourceVersion": str(self.version), **({"continue": str(last)} if last < len(found) else {})}
        return {"apiVersion": "v1", "kind": "List", "metadata": meta, "items": found[first:last]}

    def _one(self, method: str, target: Target, body: Object) -> tuple[int, Object]:
        objects, key = self.of(target.resource).objects, (target.namespace, target.name)
        if method == "POST":
            meta = body["metadata"]
            if (target.namespace, meta["name"]) in objects:
                return _status(409, f"{meta['name']} exists")
            return 201, self.put(target.resource, body)
        if key not in objects:
            return _status(404, f"{target.name} is not there")
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != objects[key]["metadata"]["resourceVersion"]:
                return _status(409, f"{target.name} has been changed meanwhile")
            return 200, self.put(target.resource, body)
        if method == "PATCH":
            return 200, self.put(target.resource, _merged(objects[key], body))
        if method == "DELETE":
            self.delete(target.resource, target.name, target.namespace)
            return _status(200, "")
        return 200, objects[key]


def _target(path: str) -> Target:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    return Target(parts[0], namespace, parts[1] if len(parts) > 1 else "", parts[2:] == ["status"])


def _merged(found: Object, patch: Object) -> Object:
    made = dict(found)
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name) or {}, value) if isinstance(value, dict) else value
    return made


def _status(code: int, message: str) -> tuple[int, Object]:
    return code, {"apiVersion": "v1", "kind": "Status", "code": code, "message": message}


def _reply(writer: asyncio.StreamWriter, code: int, body: Object) -> None:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    writer.writelines((head.encode(), text))


def _chunk(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
