"""The whole server, over TLS on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
from support.certificate_store import FakeStore
from support.ports import free_port

from torchrelay.protocol.errors import RetryableError
from torchrelay.webhook.serving import server
from torchrelay.webhook.serving.server import Webhook
from torchrelay.webhook.settings import ControllerSettings, ServerSettings, WebhookSettings
from torchrelay.webhook.tls.certificates import CA_CRT

HOST = "torchrelay-webhook.torchrelay-system.svc"
POD = {
    "kind": "Pod",
    "metadata": {"name": "p", "annotations": {"torchrelay.dev/inject": "true"}},
    "spec": {"containers": [{"name": "main", "image": "x"}]},
}
REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "object": POD}}


class Running:
    """A webhook, and a client that trusts what was published alone."""

    def __init__(self, tmp_path: Path, find_sidecar: Callable[[], Awaitable[str]]) -> None:
        self.store, self.port, self.ca = FakeStore(), free_port(), tmp_path / "ca.crt"
        settings = WebhookSettings(
            controller=ControllerSettings(caFile=str(self.ca)), server=ServerSettings(port=self.port)
        )
        self.webhook = Webhook(settings, self.store, find_sidecar)

    async def get(self, path: str) -> httpx2.Response:
        async with httpx2.AsyncClient(verify=False) as client:  # as a kubelet's probe
            return await client.get(f"https://127.0.0.1:{self.port}{path}")

    async def until(self, says: str) -> None:
        while True:
            try:
                if (await self.get("/readyz")).text == says:
                    return
            except httpx2.ConnectError:
                pass
            await asyncio.sleep(0.01)

    async def mutate(self) -> dict[str, Any]:
        context = ssl.create_default_context(cadata=self.store.published[-1].decode())
        async with httpx2.AsyncClient(verify=context) as client:
            url = f"https://127.0.0.1:{self.port}/mutate"
            response = await client.post(url, json=REVIEW, extensions={"sni_hostname": HOST})
        response.raise_for_status()
        answer: dict[str, Any] = response.json()["response"]
        return answer

    def run(self, use: Callable[[], Awaitable[None]]) -> None:
        async def both() -> None:
            serving = asyncio.ensure_future(self.webhook.serve("127.0.0.1"))
            try:
                await asyncio.wait_for(use(), 30)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await serving

        # The server hands the signal on when it has ended; here it has done its work then.
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            asyncio.run(both())
        finally:
            signal.signal(signal.SIGTERM, before)


async def classic() -> str:
    return "classic"


def patched_paths(answer: dict[str, Any]) -> list[str]:
    return [op["path"] for op in json.loads(base64.b64decode(answer["patch"]))]


def test_a_review_is_answered_to_whoever_trusts_what_was_published(tmp_path: Path) -> None:
    running = Running(tmp_path, classic)
    running.ca.write_text("PEM")

    async def use() -> None:
        await running.until("ok")
        answer = await running.mutate()
        assert answer["allowed"] is True
        assert "/spec/containers/-" in patched_paths(answer)

    running.run(use)
    assert running.store.published == [running.store.data[CA_CRT]]


def test_the_controllers_authority_is_taken_up_when_it_appears(tmp_path: Path) -> None:
    running = Running(tmp_path, classic)

    async def use() -> None:
        await running.until("the controller has published no certificate authority yet")
        early = await running.mutate()
        assert "certificate authority" in early["warnings"][0]
        running.ca.write_text("PEM")
        await running.until("ok")
        assert "/spec/volumes" in patched_paths(await running.mutate())

    running.run(use)


def test_while_the_cluster_does_not_answer_it_is_alive_but_not_ready(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "RETRY_S", 0.01)
    answers = False
    asked: list[bool] = []
    asked_again = asyncio.Event()

    async def find_sidecar() -> str:
        asked.append(answers)
        if len(asked) > 2:
            asked_again.set()
        if not answers:
            raise RetryableError("away")
        return "native"

    running = Running(tmp_path, find_sidecar)
    running.ca.write_text("PEM")

    async def use() -> None:
        nonlocal answers
        await asked_again.wait()
        await running.until("the cluster's version is not known yet")
        assert (await running.get("/readyz")).status_code == 503
        assert (await running.get("/healthz")).status_code == 200
        answers = True
        await running.until("ok")
        assert "/spec/initContainers" in patched_paths(await running.mutate())

    running.run(use)
