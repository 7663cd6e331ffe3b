"""What the controller of a cluster tells Prometheus: of itself, its jobs, its requests."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import httpx2
import pytest
from lightkube.core.exceptions import ApiError
from support.kube_world import KEY, World, in_world
from support.ports import free_port

from torchrelay.controller.kube.__main__ import _metrics
from torchrelay.controller.kube.client.api import NODES, PODS, Api, Refused
from torchrelay.controller.kube.client.api_calls import ApiCalls
from torchrelay.controller.kube.figures import ClusterFigures
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol import events as e
from torchrelay.protocol.errors import RetryableError, UserError
from torchrelay.protocol.kube.kube_names import METRICS_PORT
from torchrelay.protocol.metrics.samples import Histogram, Sample
from torchrelay.protocol.security.tls import Credentials

AUTHORITY = Credentials.from_secret(b"0123456789abcdef", "controller")


def told(samples: list[Sample]) -> dict[tuple[str, ...], float | Histogram]:
    return {(s.metric.name, *s.labels): s.value for s in samples}


def test_a_replica_that_waits_for_the_lease_tells_that_it_does_not_lead_and_of_no_job() -> None:
    found = told(ClusterFigures(ApiCalls()).samples())
    assert found["torchrelay_controller_leads",] == 0
    assert {key[0] for key in found} == {
        "torchrelay_controller_leads",
        "torchrelay_kubernetes_requests_total",
        "torchrelay_kubernetes_request_duration_seconds",
    }


def test_each_job_is_told_under_its_name_and_what_is_counted_for_all_outlives_it() -> None:
    async def test(w: World) -> None:
        figures = ClusterFigures(ApiCalls())
        figures.lead(w.ledger, AUTHORITY)
        w.begin()
        done = e.MigrationFinished(
            "m1", "planned", "committed", 1, "", (1,), (), 0, {"quiesce": 0.2}, 0.0, 10, 1, "", "asked"
        )
        w.run._hear(e.to_job_event(done, 1000.0))
        found = told(figures.samples())
        assert found["torchrelay_controller_leads",] == 1
        assert found["torchrelay_job_ranks", "team", KEY.name, "starting"] == 2
        assert found["torchrelay_job_migrations_total", "team", KEY.name, "committed"] == 1
        assert (
            found["torchrelay_certificate_not_after_timestamp_seconds", "authority"]
            == AUTHORITY.validity.ends.timestamp()
        )
        w.ledger.runs.pop(KEY).task.cancel()
        found = told(figures.samples())
        assert found["torchrelay_migrations_total", "planned", "committed", "asked"] == 1
        assert not [key for key in found if KEY.name in key]

    in_world(test)


class Answers:
    """A client: each call has the next answer."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def get(self, *_: Any, **__: Any) -> Any:
        if isinstance(answer := self._answers.pop(0), Exception):
            raise answer
        return answer


def status(code: int) -> ApiError:
    request = httpx2.Request("GET", "https://x/")
    body = {"apiVersion": "v1", "kind": "Status", "code": code, "message": "no"}
    return ApiError(request=request, response=httpx2.Response(code, json=body, request=request))


def test_every_request_is_counted_by_how_it_ended() -> None:
    async def ask() -> ApiCalls:
        api = Api(Answers({}, status(403), status(503), httpx2.ConnectError("refused")))  # type: ignore[arg-type]
        await api.get(NODES, "a")
        for expected in (Refused, RetryableError, RetryableError):
            with pytest.raises(expected):
                await api.get(PODS, "a", "team")
        return api.calls

    found = told([*asyncio.run(ask()).samples()])
    outcomes = {
        outcome: found["torchrelay_kubernetes_requests_total", "get", outcome]
        for outcome in ("answered", "refused", "away")
    }
    assert outcomes == {"answered": 1, "refused": 1, "away": 2}
    times = found["torchrelay_kubernetes_request_duration_seconds", "get"]
    assert isinstance(times, Histogram)
    assert sum(times.counts) == 4
    assert found["torchrelay_kubernetes_requests_total", "delete", "answered"] == 0


def test_the_port_is_off_unless_it_is_given() -> None:
    assert ClusterSettings.from_environ({}).metrics_port == 0
    assert ClusterSettings.from_environ({"TORCHRELAY_METRICS_PORT": str(METRICS_PORT)}).metrics_port == METRICS_PORT
    with pytest.raises(UserError, match="TORCHRELAY_METRICS_PORT"):
        ClusterSettings.from_environ({"TORCHRELAY_METRICS_PORT": "x"})


def test_a_replica_answers_before_it_leads_and_a_port_that_is_taken_ends_it() -> None:
    def ask(port: int) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    async def test() -> None:
        settings = ClusterSettings("s", "p", host="127.0.0.1", metrics_port=free_port())
        figures = ClusterFigures(ApiCalls())
        with _metrics(settings, figures):
            assert "torchrelay_controller_leads 0.0" in await asyncio.to_thread(ask, settings.metrics_port)
            with pytest.raises(UserError, match="metrics cannot be served"):
                _metrics(settings, figures)
        with _metrics(ClusterSettings("s", "p"), figures):
            pass

    asyncio.run(test())
