"""What the controller of a cluster tells Prometheus: of itself, and of each job that it looks after."""

from __future__ import annotations

import time
from collections.abc import Iterator

from torchrelay.controller.kube.client.api_calls import ApiCalls
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.metrics.collect import job_samples, total_samples
from torchrelay.controller.metrics.facts import job_facts
from torchrelay.protocol.metrics import table as t
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.security.tls import Credentials


class ClusterFigures:
    """`lead` is called once this replica leads; until then it tells of itself alone."""

    def __init__(self, calls: ApiCalls) -> None:
        self._calls = calls
        self._ledger: Ledger | None = None
        self._authority: Credentials | None = None

    def lead(self, ledger: Ledger, authority: Credentials) -> None:
        """Jobs are looked after here from now on."""
        self._ledger = ledger
        self._authority = authority

    def samples(self) -> list[Sample]:
        """Costs in proportion to the number of ranks in all jobs."""
        found = [Sample(t.LEADS, (), float(self._ledger is not None)), *self._calls.samples()]
        if self._authority is not None:
            validity = self._authority.validity
            found.append(Sample(t.CERTIFICATE_BEGINS, (t.AUTHORITY,), validity.begins.timestamp()))
            found.append(Sample(t.CERTIFICATE_ENDS, (t.AUTHORITY,), validity.ends.timestamp()))
        if self._ledger is not None:
            found += total_samples(self._ledger.totals)
            for run in list(self._ledger.runs.values()):
                found += _job(run)
        return found


def _job(run: JobRun) -> Iterator[Sample]:
    facts = job_facts(run.core, len(run.restarts), time.monotonic())
    return job_samples((run.key.namespace, run.key.name), facts, run.tally, time.time())
