"""The mirror of a cluster, by the real client over HTTP: whatever happens to a watch, it ends up as the cluster is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from lightkube import AsyncClient
from support.http_api import HttpApi

from torchrelay.controller.kube.client import informer
from torchrelay.controller.kube.client.api import PAGE, PODS, Api
from torchrelay.controller.kube.client.informer import Informer

pytestmark = pytest.mark.core


def pod(name: str, **labels: str) -> dict[str, Any]:
    meta = {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "labels": {"torchrelay.dev/job": "llama", **labels},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": []}}


class Mirror:
    """`there`: what the controller would know; `told`: each change."""

    def __init__(self, api: HttpApi) -> None:
        self.api = api
        self.there: dict[str, dict[str, Any]] = {}
        self.told: list[tuple[str, bool]] = []
        self._change = asyncio.Event()
        self.client = AsyncClient(field_manager="torchrelay")
        self.informer = Informer(Api(self.client), PODS, self._changed)

    def _changed(self, found: dict[str, Any], deleted: bool) -> None:
        name = found["metadata"]["name"]
        self.told.append((name, deleted))
        if deleted:
            self.there.pop(name, None)
        else:
            self.there[name] = found
        self._change.set()

    async def settle(self) -> None:
        """Until the mirror is as the cluster is. Without an end where it never is."""
        while self.there != {name: o for (_, name), o in self.api.of("pods").objects.items()}:
            self._change.clear()
            await self._change.wait()


Test = Callable[[HttpApi, Mirror], Awaitable[None]]


@pytest.fixture
def mirrored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Test], None]:
    """Runs a test with pods a, b and c, which are mirrored."""
    monkeypatch.setattr(informer, "FIRST_BACKOFF_S", 0.01)

    async def run(test: Test) -> None:
        api = HttpApi()
        for name in "abc":
            api.put("pods", pod(name))
        async with api.served(tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            mirror = Mirror(api)
            task = asyncio.create_task(mirror.informer.run())
            await asyncio.wait_for(api.wait_for_watch("pods"), 20)
            await asyncio.wait_for(mirror.settle(), 20)
            await asyncio.wait_for(test(api, mirror), 20)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await mirror.client.close()

    return lambda test: asyncio.run(run(test))


def in_a_gap(api: HttpApi) -> None:
    """What happens while nobody watches, and is forgotten by the time that somebody does again."""
    api.put("pods", pod("a", changed="yes"))
    api.delete("pods", "b", "team")
    api.put("pods", pod("d"))
    api.forget("pods")


def test_a_watch_that_ends_goes_on_from_where_it_was_without_a_list(mirrored: Callable[[Test], None]) -> None:
    async def test(api: HttpApi, mirror: Mirror) -> None:
        api.put("pods", pod("d"))
        await mirror.settle()
        seen = str(api.version)
        api.end_watches("pods")
        api.delete("pods", "b", "team")
        await api.wait_for_watch("pods", 2)
        await mirror.settle()
        assert api.of("pods").asked_from[1] == seen
        assert api.of("pods").lists == 1

    mirrored(test)


def test_a_version_that_is_gone_when_a_watch_begins(mirrored: Callable[[Test], None]) -> None:
    async def test(api: HttpApi, mirror: Mirror) -> None:
        api.end_watches("pods")
        in_a_gap(api)
        await mirror.settle()
        assert ("b", True) in mirror.told
        assert api.of("pods").lists == 2

    mirrored(test)


def test_a_version_that_is_gone_while_a_watch_is_open(mirrored: Callable[[Test], None]) -> None:
    async def test(api: HttpApi, mirror: Mirror) -> None:
        watching, api.of("pods").watchers = api.of("pods").watchers, []
        in_a_gap(api)
        api.of("pods").watchers = watching
        api.send("pods", "ERROR", {"apiVersion": "v1", "kind": "Status", "code": 410, "message": "too old"})
        await mirror.settle()
        assert ("b", True) in mirror.told

    mirrored(test)


@pytest.mark.parametrize("half", [b"", b'{"type": "MODIFIED", "object": {"metadata": {"na', b'{"type": "ADDED"}\n'])
def test_a_connection_that_breaks(mirrored: Callable[[Test], None], half: bytes) -> None:
    async def test(api: HttpApi, mirror: Mirror) -> None:
        api.cut_watches("pods", half)
        in_a_gap(api)
        await mirror.settle()
        assert ("b", True) in mirror.told

    mirrored(test)


def test_events_that_come_twice_or_late(mirrored: Callable[[Test], None]) -> None:
    async def test(api: HttpApi, mirror: Mirror) -> None:
        gone = api.of("pods").objects[("team", "b")]
        api.delete("pods", "b", "team")
        api.send("pods", "DELETED", gone)
        api.send("pods", "ADDED", api.of("pods").objects[("team", "a")])
        api.send("pods", "ADDED", api.of("pods").objects[("team", "a")])
        api.put("pods", pod("d"))
        await mirror.settle()
        assert sorted(mirror.there) == ["a", "c", "d"]

    mirrored(test)


def test_a_pod_that_is_made_again_in_a_gap_is_another_one(mirrored: Callable[[Test], None]) -> None:
    async def test(api: HttpApi, mirror: Mirror) -> None:
        api.end_watches("pods")
        api.delete("pods", "b", "team")
        api.put("pods", {**pod("b"), "metadata": {**pod("b")["metadata"], "uid": "uid-b-again"}})
        api.forget("pods")
        await mirror.settle()
        assert [deleted for name, deleted in mirror.told if name == "b"] == [False, True, False]

    mirrored(test)


def test_pods_come_in_pages(mirrored: Callable[[Test], None]) -> None:
    async def test(api: HttpApi, mirror: Mirror) -> None:
        api.cut_watches("pods")
        for number in range(1234):
            api.put("pods", pod(f"p{number}"))
        api.forget("pods")
        await mirror.settle()
        assert len(mirror.there) == 1237
        assert api.of("pods").pages == 1 + -(-1237 // PAGE)

    mirrored(test)
