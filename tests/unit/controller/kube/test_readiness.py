from __future__ import annotations

import asyncio

import pytest
from support.ports import free_port

from torchrelay.controller.kube import readiness
from torchrelay.controller.kube.pulse import STILL_S, Pulse
from torchrelay.controller.kube.readiness import serve_readiness
from torchrelay.controller.kube.settings import ClusterSettings


async def asked(port: int, request: bytes = b"GET /livez HTTP/1.1\r\n\r\n") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 60.0)
    finally:
        writer.close()


@pytest.mark.parametrize(("still_s", "status"), [(0.0, b"200"), (STILL_S + 5, b"503")])
def test_a_loop_that_stands_still_is_told(still_s: float, status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        settings, pulse = ClusterSettings("s", "p", host="127.0.0.1", ready_port=free_port()), Pulse()
        monkeypatch.setattr(pulse, "still_s", lambda: still_s)
        async with await serve_readiness(settings, pulse):
            assert (await asked(settings.ready_port)).split()[1] == status

    asyncio.run(test())


def test_who_opens_a_connection_and_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(readiness, "ASK_S", 0.1)
        settings = ClusterSettings("s", "p", host="127.0.0.1", ready_port=free_port())
        async with await serve_readiness(settings, Pulse()):
            assert await asked(settings.ready_port, b"") == b""

    asyncio.run(test())


def test_a_pulse_that_has_not_begun_says_nothing_of_a_loop() -> None:
    assert Pulse().still_s() == 0.0
