"""Serves the figures of a controller that has one job."""

from __future__ import annotations

import logging
import time

from torchrelay.controller.core import Core
from torchrelay.controller.metrics.collect import job_samples, total_samples
from torchrelay.controller.metrics.facts import job_facts
from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.messages import JobEvent
from torchrelay.protocol.metrics.endpoint import Endpoint
from torchrelay.protocol.metrics.samples import Sample

log = logging.getLogger(__name__)


class ServedJob:
    """`hear` is to be told every event of the job, from the first one."""

    def __init__(self, core: Core, run_id: str) -> None:
        self._core, self._labels = core, ("", run_id)
        self._totals = Totals()
        self._tally = JobTally(self._totals)
        self._endpoint: Endpoint | None = None

    def hear(self, event: JobEvent) -> None:
        """Counts it."""
        self._tally.hear(event)

    def open(self, host: str, port: int) -> None:
        """Port 0: nobody asks. The command has looked that the port is free: whoever took it since is no reason to end a job."""
        if not port:
            return
        try:
            self._endpoint = Endpoint(host, port, self._samples, lambda held_up_s: [])
        except UserError as e:
            log.warning("%s", e)

    def close(self) -> None:
        """Takes the port back."""
        if self._endpoint is not None:
            self._endpoint.close()

    def _samples(self) -> list[Sample]:
        facts = job_facts(self._core, time.monotonic())
        return [*job_samples(self._labels, facts, self._tally, time.time()), *total_samples(self._totals)]
