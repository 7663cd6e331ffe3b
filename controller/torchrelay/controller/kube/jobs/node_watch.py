"""Nodes as the cluster sees them, as evidence for each job whose pods are there. The health policy says what it means."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from torchrelay.controller.kube.client.informer import Informer
from torchrelay.controller.kube.cluster.nodes import pod_notices
from torchrelay.controller.kube.cluster.pods import Pod
from torchrelay.controller.kube.jobs.ledger import Ledger
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.node_facts import NodeEvidence, NodeFacts
from torchrelay.protocol.messages import HealthSignal, HealthSignals

SOURCE = "cluster"


@dataclass
class _Looked:
    """What was known of a pod and its node at the last look. `evidence`: a taint that was there when a pod came is one that it
    tolerates. `broken`: as the job was told."""

    evidence: NodeEvidence
    pod: Pod | None = None
    facts: NodeFacts | None = None
    broken: str = ""

    def is_new(self, pod: Pod, facts: NodeFacts | None, broken: str) -> bool:
        return self.pod is not pod or self.facts is not facts or self.broken != broken


class NodeWatch:
    """`nodes`: the mirror that fills the ledger."""

    def __init__(self, ledger: Ledger, nodes: Informer) -> None:
        self._ledger = ledger
        self._nodes = nodes
        self._looked: dict[str, dict[str, _Looked]] = {}
        """By run and agent."""

    def look(self, run: JobRun) -> None:
        """Tells a job what has begun or is over. To be called often; costs little while nothing changes."""
        if not self._nodes.listed.is_set():
            return  # every taint would look new
        if run.is_over:
            self._looked.pop(run.id, None)
            return
        before = self._looked.get(run.id, {})
        broken = self._nodes.broken
        now: dict[str, _Looked] = {}
        changed = []
        for pod in self._ledger.pods_of(run.key):
            if run.is_attached(pod.agent):
                looked = before.get(pod.agent) or _Looked(NodeEvidence())
                now[pod.agent] = looked
                if looked.is_new(pod, self._ledger.facts(pod.node), broken):
                    changed.append(pod)
        self._looked[run.id] = now
        # Spares are judged first: a rank that leaves in the same look goes to none that has to leave, too.
        for pod in sorted(changed, key=lambda p: bool(run.ranks_in(p.agent))):
            self._look_at(run, pod, now[pod.agent], broken)

    def _look_at(self, run: JobRun, pod: Pod, looked: _Looked, broken: str) -> None:
        known = self._ledger.facts(pod.node)
        told = looked.broken
        looked.pod = pod
        looked.facts = known
        looked.broken = broken
        facts = known or NodeFacts()
        facts = dataclasses.replace(facts, notices=(*facts.notices, *pod_notices(pod)))
        signals = looked.evidence.update(facts)
        if broken and told != broken:
            text = f"the cluster's nodes cannot be watched: {broken}"
            signals = (*signals, HealthSignal(k.SOURCE_DEAD, SOURCE, detail=text))
        if signals:
            run.relay.evidence(pod.agent, HealthSignals(signals))
