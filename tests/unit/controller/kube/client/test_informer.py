"""A mirror of objects: nothing is missed over gaps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from torchrelay.controller.kube.client import informer
from torchrelay.controller.kube.client.api import PODS, QUARANTINES, SPARE_POOLS, Object
from torchrelay.controller.kube.client.informer import Informer
from torchrelay.protocol.errors import RetryableError
from torchrelay.protocol.kube.changed_by import changed_by

Change = tuple[str, bool]


def pod(uid: str) -> Object:
    return {"metadata": {"name": f"pod-{uid}", "uid": uid, "managedFields": [{"large": "thing"}]}}


class Scripted:
    """Lists and watches as they come; the last watch stays open."""

    def __init__(self, lists: list[list[str] | Exception], watches: list[list[tuple[str, str]]]) -> None:
        self._lists, self._watches = lists, watches
        self.all_seen = asyncio.Event()

    async def scan(self, kind: Any, take: Callable[[Object], None], *_: Any) -> str:
        found = self._lists.pop(0)
        if isinstance(found, Exception):
            raise found
        for uid in found:
            take(pod(uid))
        return "7"

    async def watch(self, *_: Any) -> AsyncIterator[tuple[str, Object]]:
        for what, uid in self._watches.pop(0):
            yield what, pod(uid)
        if self._watches:
            raise RetryableError("410 Gone")
        self.all_seen.set()
        await asyncio.Event().wait()


def mirror(scripted: Callable[[], Scripted]) -> list[Change]:
    changes: list[Change] = []

    def changed(found: Object, deleted: bool) -> None:
        assert "managedFields" not in found["metadata"] or deleted
        changes.append((found["metadata"]["uid"], deleted))

    async def run() -> None:
        api = scripted()
        task = asyncio.create_task(Informer(api, PODS, changed).run())  # type: ignore[arg-type]  # a stand-in
        await asyncio.wait_for(api.all_seen.wait(), 10)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    return changes


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "FIRST_BACKOFF_S", 0.0)


def test_what_is_listed_and_what_changes_is_told() -> None:
    changes = mirror(lambda: Scripted([["a"]], [[("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]]))
    assert changes == [("a", False), ("b", False), ("a", False), ("b", True)]


def test_who_has_changed_a_pool_or_a_quarantine_past_the_webhook_is_told_by_the_program() -> None:
    told: list[str] = []

    async def run() -> None:
        for kind in (SPARE_POOLS, QUARANTINES):
            mirror_of = Informer(object(), kind, lambda found, _: told.append(changed_by(found)))  # type: ignore[arg-type]  # asked for nothing
            scaled = {"manager": "kubectl", "time": "2026-11-20T10:00:00Z", "fieldsV1": {"f:spec": {}}}
            meta = {"name": "llama", "uid": "1", "generation": 2, "managedFields": [scaled]}
            mirror_of._take({"metadata": meta, "spec": {}})

    asyncio.run(run())
    assert told == ["somebody with kubectl"] * 2


def test_what_went_in_a_gap_is_told_as_deleted() -> None:
    changes = mirror(lambda: Scripted([["a", "b"], ["b", "c"]], [[("MODIFIED", "a")], []]))
    assert changes[3:] == [("b", False), ("c", False), ("a", True)]


def test_a_list_that_fails_is_tried_again() -> None:
    changes = mirror(lambda: Scripted([RetryableError("away"), ["a"]], [[]]))
    assert changes == [("a", False)]


def test_a_list_that_fails_is_said_until_one_works_and_a_watch_that_ends_is_not() -> None:
    said: list[str] = []

    class Telling(Scripted):
        async def scan(self, *given: Any) -> str:
            said.append(mirrors[0].broken)
            return await super().scan(*given)

    mirrors: list[Informer] = []

    async def run() -> None:
        api = Telling([["a"], RetryableError("no route"), RetryableError("refused"), ["a"], ["a"]], [[], [], []])
        mirrors.append(Informer(api, PODS, lambda *_: None))  # type: ignore[arg-type]  # a stand-in
        task = asyncio.create_task(mirrors[0].run())
        await asyncio.wait_for(api.all_seen.wait(), 10)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert said == ["", "", "no route", "refused", ""]


def test_a_silent_watch_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "SILENT_S", 0.05)

    class Silent(Scripted):
        async def watch(self, *_: Any) -> AsyncIterator[tuple[str, Object]]:
            if not self._lists:
                self.all_seen.set()
            await asyncio.Event().wait()
            yield "", {}

    assert mirror(lambda: Silent([["a"], ["a", "b"]], [])) == [("a", False), ("a", False), ("b", False)]


def test_what_goes_wrong_at_one_object_is_told_and_the_others_are_taken_in() -> None:
    failed: list[tuple[str, str]] = []
    changes: list[Change] = []

    def changed(found: Object, deleted: bool) -> None:
        if found["metadata"]["uid"] == "b":
            raise ZeroDivisionError("a bug")
        changes.append((found["metadata"]["uid"], deleted))

    def told(found: Object, error: Exception) -> None:
        failed.append((found["metadata"]["uid"], type(error).__name__))

    async def run() -> None:
        api = Scripted([["a", "b", "c"], ["c"]], [[("MODIFIED", "b"), ("DELETED", "b"), ("ADDED", "b")], []])
        task = asyncio.create_task(Informer(api, PODS, changed, failed=told).run())  # type: ignore[arg-type]  # a stand-in
        await asyncio.wait_for(api.all_seen.wait(), 10)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert set(failed) == {("b", "ZeroDivisionError")}
    assert len(failed) == 5  # listed, changed, deleted, made again, gone in a gap
    assert changes == [("a", False), ("c", False), ("c", False), ("a", True)]


def test_a_list_that_fails_in_a_way_that_nobody_foresaw_is_tried_again_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert mirror(lambda: Scripted([KeyError("a bug"), ["a"]], [[]])) == [("a", False)]
    assert "Traceback" in caplog.text
