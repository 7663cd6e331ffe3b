"""Serves the figures of a controller that has one job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchrelay.controller.core import Core
from torchrelay.controller.metrics.collect import job_samples, total_samples
from torchrelay.controller.metrics.facts import job_facts
from torchrelay.controller.metrics.tally import JobTally, Totals
from torchrelay.protocol.messages import JobEvent
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.metrics.table import LEADS

if TYPE_CHECKING:
    from torchrelay.protocol.metrics.endpoint import Endpoint


class ServedJob:
    """The figures. `hear` is to be told every event of the job, from the first one."""

    def __init__(self, core: Core, run_id: str, restarts: int) -> None:
        self._core = core
        self._labels = ("", run_id)
        self._restarts = restarts
        self._totals = Totals()
        self._tally = JobTally(self._totals)
        self._endpoint: Endpoint | None = None

    def hear(self, event: JobEvent) -> None:
        """Count an event."""
        self._tally.hear(event)

    def open(self, host: str, port: int) -> None:
        """Serve the figures, unless the port is 0. A port that is taken is no reason to end a job.

        The command has looked that the port is free, so another process has taken it since.
        """
        if not port:
            return
        from torchrelay.protocol.metrics.endpoint import endpoint_or_none  # whoever does not ask need not load it

        self._endpoint = endpoint_or_none(host, port, self._samples)

    def close(self) -> None:
        """Close the port."""
        if self._endpoint is not None:
            self._endpoint.close()

    def _samples(self) -> list[Sample]:
        facts = job_facts(self._core, self._restarts, time.monotonic())
        leads = Sample(LEADS, (), float(self._core.leading.is_led))
        return [leads, *job_samples(self._labels, facts, self._tally, time.time()), *total_samples(self._totals)]
