from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import threading
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.metrics import endpoint as module
from torchrelay.protocol.metrics import loop_watch
from torchrelay.protocol.metrics.endpoint import Endpoint
from torchrelay.protocol.metrics.samples import Histogram, Sample
from torchrelay.protocol.metrics.table import JOB_STEPS, MIGRATION_STOP

LOOPBACK = "127.0.0.1"


def ask(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for f in text_string_to_metric_families(text)
        for s in f.samples
    }


async def asked(take: object) -> dict[object, float]:
    made = Endpoint(LOOPBACK, 0, take)  # type: ignore[arg-type]
    try:
        return await asyncio.to_thread(ask, made.port)  # type: ignore[return-value]
    finally:
        await asyncio.to_thread(made.close)


def test_figures_are_taken_in_the_loop_and_told_in_prometheus_form() -> None:
    stops = Histogram((0.5, 1.0))
    for value in (0.5, 0.7, 9.0):
        stops.observe(value)
    threads = []

    def take() -> list[Sample]:
        threads.append(threading.current_thread())
        return [
            Sample(JOB_STEPS, ("ns", "a"), 3),
            Sample(MIGRATION_STOP, ("planned",), stops),
            Sample(JOB_STEPS, ("", "b"), 4),
        ]

    told = asyncio.run(asked(take))
    assert threads == [threading.main_thread()]
    assert told["torchrelay_job_steps_total", (("job_name", "a"), ("job_namespace", "ns"))] == 3
    assert told["torchrelay_job_steps_total", (("job_name", "b"), ("job_namespace", ""))] == 4
    name = "torchrelay_migration_downtime_seconds"
    buckets = [told[f"{name}_bucket", (("kind", "planned"), ("le", le))] for le in ("0.5", "1.0", "+Inf")]
    assert buckets == [1, 2, 3]
    assert told[f"{name}_sum", (("kind", "planned"),)] == pytest.approx(10.2)
    assert {n for n, _ in told if not n.startswith(("torchrelay_", "process_"))} == set()


def test_a_port_that_is_taken_is_named() -> None:
    async def twice() -> None:
        with socket.create_server((LOOPBACK, 0)) as other:
            Endpoint(LOOPBACK, other.getsockname()[1], list)

    with pytest.raises(UserError, match=r"metrics cannot be served on 127\.0\.0\.1:\d+"):
        asyncio.run(twice())


def test_a_loop_that_is_held_up_is_told_as_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    monkeypatch.setattr(loop_watch, "EVERY_S", 0.01)
    told: list[dict[object, float]] = []

    async def hold_up() -> None:
        made = Endpoint(LOOPBACK, 0, list)
        asking = threading.Thread(target=lambda: told.append(ask(made.port)))  # type: ignore[arg-type]
        asking.start()
        asking.join()  # the loop stands still here
        await asyncio.to_thread(made.close)

    asyncio.run(hold_up())
    assert told[0]["torchrelay_event_loop_held_up_seconds", ()] > 0


def test_who_says_nothing_is_let_go_and_fills_no_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert module._Handler.timeout == module.SILENT_S
    monkeypatch.setattr(module._Handler, "timeout", 0.05)

    def silent(port: int) -> bytes:
        with socket.create_connection((LOOPBACK, port), timeout=10) as sock:
            return sock.recv(1)

    async def held() -> bytes:
        made = Endpoint(LOOPBACK, 0, list)
        try:
            return await asyncio.to_thread(silent, made.port)
        finally:
            await asyncio.to_thread(made.close)

    began_s = time.monotonic()
    assert asyncio.run(held()) == b""
    assert time.monotonic() - began_s < 5
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("labels", "value"), [(("planned", "x"), Histogram(())), (("sideways",), Histogram(())), (("planned",), 1.0)]
)
def test_a_sample_that_the_table_does_not_know_is_refused(labels: tuple[str, ...], value: float | Histogram) -> None:
    with pytest.raises(ValueError, match="torchrelay_migration_downtime_seconds"):
        Sample(MIGRATION_STOP, labels, value)


def test_more_connections_than_anybody_needs_are_closed_and_the_port_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(module._Handler, "timeout", 30.0)

    def crowd(port: int) -> tuple[int, float]:
        with contextlib.ExitStack() as held:
            silent = [held.enter_context(socket.create_connection((LOOPBACK, port), timeout=10)) for _ in range(6)]
            ends = held.enter_context(selectors.DefaultSelector())
            for connection in silent:
                ends.register(connection, selectors.EVENT_READ)
            while len(closed := ends.select(5)) < 3:
                pass
        return len(closed), ask_until(port)

    def ask_until(port: int) -> float:
        until_s = time.monotonic() + 10
        while True:
            try:
                return ask(port)["torchrelay_event_loop_held_up_seconds", ()]
            except OSError:  # the threads of the others have not noticed yet that these are gone
                assert time.monotonic() < until_s

    async def held() -> tuple[int, float]:
        made = Endpoint(LOOPBACK, 0, list)
        try:
            return await asyncio.to_thread(crowd, made.port)
        finally:
            await asyncio.to_thread(made.close)

    assert asyncio.run(held()) == (3, 0.0)


def test_who_asks_very_often_costs_the_loop_nothing() -> None:
    times = []

    async def often() -> None:
        made = Endpoint(LOOPBACK, 0, lambda: times.append(1) or [])  # type: ignore[func-returns-value]
        try:
            for _ in range(5):
                await asyncio.to_thread(ask, made.port)
        finally:
            await asyncio.to_thread(made.close)

    began_s = time.monotonic()
    asyncio.run(often())
    assert len(times) <= 1 + (time.monotonic() - began_s) / module.FRESH_S


def test_an_ipv6_address_will_do_and_a_name_that_nobody_knows_is_told() -> None:
    async def there(host: str) -> int:
        made = Endpoint(host, 0, list)
        await asyncio.to_thread(made.close)
        return made.port

    assert asyncio.run(there("::1")) > 0
    with pytest.raises(UserError, match=r"metrics cannot be served on no-such-host\.invalid"):
        asyncio.run(there("no-such-host.invalid"))


def test_the_next_controller_has_the_port_at_once() -> None:
    async def twice() -> None:
        port = 0
        for _ in range(2):
            made = Endpoint(LOOPBACK, port, list)
            port = made.port
            await asyncio.to_thread(ask, port)  # its end of the connection stays for a while
            await asyncio.to_thread(made.close)

    asyncio.run(twice())
