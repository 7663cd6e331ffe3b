"""The port that Prometheus asks. The server has threads of its own; figures are taken in the event loop, which owns them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.metrics.loop_watch import LoopWatch
from torchrelay.protocol.metrics.metric import Metric, MetricType
from torchrelay.protocol.metrics.samples import Histogram, Sample, by_metric
from torchrelay.protocol.metrics.table import BUILD_INFO, LOOP_HELD_UP

log = logging.getLogger(__name__)

VERSION = metadata.version("torchrelay")
SILENT_S = 10.0
"""Whoever opens a connection and says nothing is let go."""
MOST_AT_ONCE = 16
"""Connections: each has a thread. Prometheus needs one."""
FRESH_S = 0.5
"""Who asks within this time of another one gets the same figures: to ask often costs the loop nothing."""
STOP_S = 0.1
"""In which the server notices that it is to end."""
WAIT_S = 4.0
"""For a loop that is held up: Prometheus waits for 10 s by default, and is told then that it is held up."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error, unless a connection broke or said nothing: strangers could fill the log with those."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("metrics could not be told to %s", client_address)

    def server_bind(self) -> None:
        # WSGIServer asks the name service for the machine's name here, which can take seconds.
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = SILENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape is no news."""


class _Collected(Collector):
    def __init__(self, take: Callable[[], Iterable[Sample]]) -> None:
        self._take = take

    def collect(self) -> Iterator[Family]:
        for metric, samples in by_metric(self._take()).items():
            yield family(metric, samples)


def family(metric: Metric, samples: Iterable[Sample]) -> Family:
    """Return one metric as an object of Prometheus' library."""
    made: Any
    if metric.type is MetricType.HISTOGRAM:
        made = HistogramMetricFamily(metric.name, metric.help, labels=metric.label_names)
    elif metric.type is MetricType.COUNTER:
        made = CounterMetricFamily(metric.name, metric.help, labels=metric.label_names)
    else:
        made = GaugeMetricFamily(metric.name, metric.help, labels=metric.label_names)
    for sample in samples:
        value = sample.value
        if isinstance(value, Histogram):
            made.add_metric(sample.labels, _buckets(value), value.total)
        else:
            made.add_metric(sample.labels, value)
    found: Family = made
    return found


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    found = []
    seen = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts):
        seen += count
        found.append(("+Inf" if bound == float("inf") else str(float(bound)), float(seen)))
    return found


class Endpoint:
    """Serves what `take()` returns. `take()` is called in the event loop that runs where the endpoint is made.

    While that loop does not answer, only this is served. Raises UserError for a port that is taken.
    """

    def __init__(self, host: str, port: int, take: Callable[[], list[Sample]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._lock = threading.Lock()
        self._latest = list[Sample]()
        self._taken_s = -math.inf
        registry = CollectorRegistry()
        registry.register(_Collected(self._samples))
        ProcessCollector(registry=registry)
        try:
            self._server = _listen(host, port, make_wsgi_app(registry))
        except OSError as e:
            raise UserError(f"metrics cannot be served on {host}:{port}: {e}") from e
        self._watch = LoopWatch()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(STOP_S,), name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        """Close the endpoint, from the event loop. This waits for no scrape, since a scrape may wait for the loop."""
        self._watch.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _samples(self) -> list[Sample]:
        with self._lock:
            if time.monotonic() - self._taken_s > FRESH_S:
                self._latest = self._ask_loop()
                self._taken_s = time.monotonic()
            return self._latest

    def _ask_loop(self) -> list[Sample]:
        asked = asyncio.run_coroutine_threadsafe(self._taken(), self._loop)
        try:
            return asked.result(WAIT_S)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            return [Sample(LOOP_HELD_UP, (), self._watch.held_up_s())]

    async def _taken(self) -> list[Sample]:
        return [*self._take(), *self._watch.samples(), Sample(BUILD_INFO, (VERSION,), 1)]


def _listen(host: str, port: int, app: Any) -> _Server:
    families = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)

    class Server(_Server):
        address_family = families[0][0]

    return make_server(host, port, app, Server, _Handler)


def endpoint_or_none(host: str, port: int, take: Callable[[], list[Sample]]) -> Endpoint | None:
    """Return an endpoint; None for port 0, and also, with a warning, for a port that is taken: that must not end training."""
    if not port:
        return None
    try:
        return Endpoint(host, port, take)
    except UserError as e:
        log.warning("%s", e)
        return None
