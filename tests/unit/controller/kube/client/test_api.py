"""Which failures of the API server may go away, and which will not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from lightkube.core.exceptions import ApiError

from torchrelay.controller.kube.client.api import NOT_FOUND, PODS, Api, Refused, connect
from torchrelay.protocol.errors import FatalError, RetryableError


def status(code: int) -> ApiError:
    request = httpx2.Request("GET", "https://x/")
    body = {"apiVersion": "v1", "kind": "Status", "code": code, "message": f"says {code}"}
    return ApiError(request=request, response=httpx2.Response(code, json=body, request=request))


class Failing:
    """A client whose every call fails alike."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def get(self, *_: Any, **__: Any) -> Any:
        raise self._error

    delete = create = get

    async def watch(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield "ADDED", {"metadata": {"uid": "a"}}
        raise self._error


def api(error: Exception) -> Api:
    return Api(Failing(error))  # type: ignore[arg-type]  # a stand-in


@pytest.mark.parametrize("error", [httpx2.ConnectError("refused"), status(500), status(429), ConnectionResetError()])
def test_a_server_that_is_away_or_overloaded_is_asked_again(error: Exception) -> None:
    with pytest.raises(RetryableError):
        asyncio.run(api(error).get(PODS, "a", "team"))


def test_a_refusal_says_what_the_server_said() -> None:
    with pytest.raises(Refused, match="Pod a: says 403") as refused:
        asyncio.run(api(status(403)).get(PODS, "a", "team"))
    assert refused.value.code == 403


def test_what_is_not_there_is_none_and_need_not_be_deleted() -> None:
    assert asyncio.run(api(status(NOT_FOUND)).get(PODS, "a", "team")) is None
    asyncio.run(api(status(NOT_FOUND)).delete(PODS, "a", "team"))


@pytest.mark.parametrize("error", [ValueError("half a line"), status(410), httpx2.ReadError("cut")])
def test_a_watch_that_breaks_is_begun_again(error: Exception) -> None:
    async def watch() -> None:
        changes = api(error).watch(PODS, "1")
        assert await anext(changes) == ("ADDED", {"metadata": {"uid": "a"}})
        with pytest.raises(RetryableError):
            await anext(changes)

    asyncio.run(watch())


def test_without_a_cluster_it_is_said_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    with pytest.raises(FatalError, match="no way to the Kubernetes API: Configuration file /nowhere/config"):
        connect()
