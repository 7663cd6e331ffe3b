"""A real Prometheus asks our own endpoints, loads our rules, and fires every alert once there is trouble, and none before."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.ports import free_port
from support.prometheus import ALERTS, RULES, program, promtool

from torchrelay.controller.kube.client.api_calls import ApiCalls
from torchrelay.controller.metrics.collect import JobFacts, job_samples, total_samples
from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.protocol.events import IncidentKept, JobStarted, MigrationFinished, ProgressMade
from torchrelay.protocol.metrics import endpoint, table
from torchrelay.protocol.metrics.endpoint import Endpoint
from torchrelay.protocol.metrics.samples import Sample

HOST = "127.0.0.1"
WAIT_S = 60.0
FACTS = JobFacts(
    "protected", "covered", 7, {"running": 4}, {"any-moment": 4}, {"ready": 1}, 1, {}, 0.1, {"gate": 0.001}, 0.01, 0
)
FAILED = MigrationFinished("m1", "unplanned", "abandoned", 1, "", (1,), (), 0, {"detect": 1.0}, 0.0, 0, 1, "no spare")
DAY_S = 86_400.0


class Loop:
    """An event loop in a thread of its own, with an endpoint."""

    def __init__(self, take: Callable[[], list[Sample]]) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.free = threading.Event()
        self.endpoint: Endpoint = self.call(lambda: Endpoint(HOST, 0, take))

    def call(self, work: Callable[[], Any]) -> Any:
        async def done() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(10)

    def hold_up(self) -> None:
        """Until `free` is set."""
        self.loop.call_soon_threadsafe(self.free.wait)

    def close(self) -> None:
        self.free.set()
        self.call(self.endpoint.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class World:
    """What the endpoints tell."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.tally = JobTally(self.totals)
        self.facts, self.leads, self.away_s, self.ends_s = FACTS, 1.0, 0.0, 1000 * DAY_S
        self.tally.take(JobStarted("run", 4, 1, ("n0",)), time.time())
        self.tally.take(ProgressMade(3, 1.0, 4, 1), time.time())

    def controller(self) -> list[Sample]:
        ends = Sample(table.CERTIFICATE_ENDS, (table.AUTHORITY,), time.time() + self.ends_s)
        job = job_samples(("team", "llm"), self.facts, self.tally, time.time())
        calls = ApiCalls().samples()
        return [Sample(table.LEADS, (), self.leads), ends, *job, *total_samples(self.totals), *calls]

    def agent(self) -> list[Sample]:
        return [Sample(table.AGENT_AWAY, (), self.away_s)]

    def trouble(self) -> None:
        """Everything at once."""
        self.facts = dataclasses.replace(FACTS, level="unprotected", cause="no-spare", spares={"ready": 0})
        self.leads, self.away_s, self.ends_s = 0.0, 500.0, 10 * DAY_S
        for _ in range(6):
            self.tally.take(FAILED, time.time())
        self.tally.take(IncidentKept("m1", "", "", "", ""), time.time())


def hurried() -> dict[str, Any]:
    """The rules with seconds for minutes."""
    rules: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\[(\d+)m\]", r"[\1s]", rule["expr"]).replace("[1h]", "[60s]")
            if "for" in rule:
                rule["for"] = "1s"
    return rules


@contextlib.contextmanager
def prometheus(folder: Path, ports: list[int]) -> Iterator[int]:
    """Its port. It asks every second."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(hurried()))
    scrape = {"job_name": "torchrelay", "static_configs": [{"targets": [f"{HOST}:{port}" for port in ports]}]}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [scrape],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    words = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data", "--log.level=warn"]
    with open(folder / "log", "wb") as log:
        child = subprocess.Popen(
            [program("prometheus"), *words, f"--web.listen-address={HOST}:{port}"], stdout=log, stderr=log
        )
        try:
            wait_for(lambda: answers(port), "prometheus has not started: " + str(folder / "log"))
            yield port
        finally:
            child.terminate()
            child.wait(20)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{port}/-/ready", timeout=5):
        return True
    return False


def wait_for(holds: Callable[[], Any], what: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s, what
        time.sleep(0.2)  # Prometheus tells nobody when it has looked


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{port}/api/v1/{path}", timeout=10) as answer:
        return json.loads(answer.read())["data"]


def value(port: int, query: str) -> float:
    found = get(port, asked_for(query))["result"]
    return float(found[0]["value"][1]) if found else -1.0


def firing(port: int) -> set[str]:
    return {a["labels"]["alertname"] for a in get(port, "alerts")["alerts"] if a["state"] == "firing"}


FILTERED = (" > 0", " == 0", " == 1")
"""In queries that tell only what is there, or wrong."""


def panels() -> Iterator[tuple[str, str]]:
    """Of the dashboard: titles and queries with Grafana's variables filled in."""
    for panel in json.loads((RULES.parent / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, filled in (
                ("$namespace", ".*"),
                ("$name", ".*"),
                ("$__rate_interval", "10s"),
                ("$__range", "60s"),
            ):
                query = query.replace(name, filled)
            if not any(word in query for word in FILTERED):
                yield panel["title"], query


def asked_for(query: str) -> str:
    return f"query?query={urllib.parse.quote(query)}"


def test_a_real_prometheus_fires_every_alert_once_there_is_trouble_and_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("prometheus")
    monkeypatch.setattr(endpoint, "WAIT_S", 0.3)
    world = World()
    loops = [Loop(world.controller), Loop(world.agent), Loop(list)]
    try:
        with prometheus(tmp_path, [each.endpoint.port for each in loops]) as port:
            health = 'count(count_over_time(up{job="torchrelay"}[60s]) >= 4 and up == 1)'
            wait_for(lambda: value(port, health) == len(loops), "not all targets are asked")
            rules = [r for group in get(port, "rules")["groups"] for r in group["rules"]]
            assert [(r["name"], r["health"]) for r in rules] == [(name, "ok") for name in ALERTS]
            assert firing(port) == set()
            assert value(port, "torchrelay_job_boundary") == 7
            assert [title for title, query in panels() if not get(port, asked_for(query))["result"]] == []
            world.trouble()
            loops[2].hold_up()
            wait_for(lambda: firing(port) == set(ALERTS), "an alert does not fire")
    finally:
        for each in loops:
            each.close()
    log = (tmp_path / "log").read_text()
    assert "level=error" not in log, log


def test_promtool_has_nothing_against_what_is_told() -> None:
    async def text() -> str:
        made = Endpoint(HOST, 0, lambda: [*World().controller(), *World().agent()])
        try:
            return await asyncio.to_thread(asked, made.port)
        finally:
            made.close()

    def asked(port: int) -> str:
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    told = asyncio.run(text())
    assert told.count("# HELP torchrelay_") > 20
    assert promtool("check", "metrics", given=told) == ""
