"""Against an API server of our own: just the two resources, with versions and conflicts as Kubernetes has them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import jsonpatch
import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from torchrelay.webhook.settings import ServerSettings
from torchrelay.webhook.tls.stores import KubernetesStore, Stored

SETTINGS = ServerSettings(namespace="system", secret="cert", configuration="torchrelay")

KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "http://api"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "current-context": "c",
}


def status(code: int) -> Response:
    return JSONResponse({"kind": "Status", "apiVersion": "v1", "code": code, "message": "no"}, status_code=code)


class FakeApi:
    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None
        self.version = 0
        self.webhooks: dict[str, Any] = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "torchrelay", "resourceVersion": "7"},
            "webhooks": [
                {
                    "name": name,
                    "clientConfig": {"service": {"name": "s", "namespace": "system"}},
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }
                for name in ("a", "b")
            ],
        }
        self.patches: list[Any] = []
        self.forbidden = False

    async def secrets(self, request: Request) -> Response:
        if self.forbidden:
            return status(403)
        if request.method == "POST":
            if self.secret is not None:
                return status(409)
        elif self.secret is None:
            return status(404)
        if request.method == "GET":
            return JSONResponse(self.secret)
        body = await request.json()
        if request.method == "PATCH":
            assert request.headers["content-type"] == "application/merge-patch+json"
            if body["metadata"]["resourceVersion"] != str(self.version):
                return status(409)
            body = {**self.secret, "data": {**self.secret.get("data", {}), **body["data"]}}
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.secret = body
        return JSONResponse(body)

    async def configurations(self, request: Request) -> Response:
        if request.method == "PATCH":
            assert request.headers["content-type"] == "application/json-patch+json"
            patch = await request.json()
            self.patches.append(patch)
            self.webhooks = jsonpatch.apply_patch(self.webhooks, patch)
        return JSONResponse(self.webhooks)

    def run(self, use: Callable[[KubernetesStore], Awaitable[Any]]) -> Any:
        methods = ["GET", "POST", "PUT", "PATCH"]
        folder = "/api/v1/namespaces/system/secrets"
        app = Starlette(
            routes=[
                Route(folder, self.secrets, methods=methods),
                Route(f"{folder}/cert", self.secrets, methods=methods),
                Route(
                    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/torchrelay",
                    self.configurations,
                    methods=methods,
                ),
            ]
        )

        async def with_client() -> Any:
            transport = httpx2.ASGITransport(app=app)
            client = AsyncClient(config=KubeConfig.from_dict(KUBECONFIG), transport=transport)
            try:
                return await use(KubernetesStore(client, SETTINGS))
            finally:
                await client.aclose()

        return asyncio.run(with_client())


def test_no_secret_is_nothing_stored() -> None:
    assert FakeApi().run(lambda s: s.read()) == Stored({}, "")


def test_what_is_written_is_read_again() -> None:
    api = FakeApi()
    assert api.run(lambda s: s.write({"tls.crt": b"\x00\xff"}, "")) is True
    assert api.run(lambda s: s.read()) == Stored({"tls.crt": b"\x00\xff"}, "1")
    assert api.run(lambda s: s.write({"tls.crt": b"new"}, "1")) is True
    assert api.run(lambda s: s.read()) == Stored({"tls.crt": b"new"}, "2")


@pytest.mark.parametrize("version", ["", "0"])
def test_a_write_that_comes_too_late_changes_nothing(version: str) -> None:
    api = FakeApi()
    api.run(lambda s: s.write({"tls.crt": b"theirs"}, ""))
    assert api.run(lambda s: s.write({"tls.crt": b"ours"}, version)) is False
    assert api.run(lambda s: s.read()) == Stored({"tls.crt": b"theirs"}, "1")


def test_the_empty_secret_of_the_chart_is_filled_and_stays_what_it_is() -> None:
    api = FakeApi()
    api.secret, api.version = (
        {"metadata": {"name": "cert", "labels": {"a": "b"}, "resourceVersion": "1"}, "type": "Opaque"},
        1,
    )
    assert api.run(lambda s: s.read()) == Stored({}, "1")
    assert api.run(lambda s: s.write({"tls.crt": b"x"}, "1")) is True
    assert api.secret["type"] == "Opaque"
    assert api.secret["metadata"]["labels"] == {"a": "b"}


def test_a_secret_that_was_deleted_meanwhile_is_no_success() -> None:
    assert FakeApi().run(lambda s: s.write({"tls.crt": b"x"}, "5")) is False


def test_a_refusal_is_raised() -> None:
    api = FakeApi()
    api.forbidden = True
    with pytest.raises(ApiError):
        api.run(lambda s: s.read())
    with pytest.raises(ApiError):
        api.run(lambda s: s.write({}, ""))


def test_all_webhooks_are_told_whom_to_trust_and_only_when_they_do_not_know() -> None:
    api = FakeApi()
    api.run(lambda s: s.publish(b"authorities"))
    bundles = [w["clientConfig"]["caBundle"] for w in api.webhooks["webhooks"]]
    assert bundles == [base64.b64encode(b"authorities").decode()] * 2
    api.run(lambda s: s.publish(b"authorities"))
    assert len(api.patches) == 1
    del api.webhooks["webhooks"][1]["clientConfig"]["caBundle"]
    api.run(lambda s: s.publish(b"authorities"))
    assert [op["path"] for op in api.patches[1]] == ["/metadata/resourceVersion", "/webhooks/1/clientConfig/caBundle"]
