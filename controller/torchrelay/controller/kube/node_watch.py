"""Nodes as the cluster sees them, as evidence for each job whose pods are there. The health policy says what it means."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.kube.informer import Informer
from torchrelay.controller.kube.ledger import Ledger
from torchrelay.controller.kube.nodes import pod_notices
from torchrelay.controller.kube.pods import Pod
from torchrelay.controller.kube.run import JobRun
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.node_facts import NodeEvidence, NodeFacts
from torchrelay.protocol.messages import HealthSignal, HealthSignals

SOURCE = "cluster"


class NodeWatch:
    """`nodes`: the mirror that fills the ledger."""

    def __init__(self, ledger: Ledger, nodes: Informer) -> None:
        self._ledger, self._nodes = ledger, nodes
        self._evidence: dict[tuple[str, str], NodeEvidence] = {}
        """By run and agent: a taint that was there when a pod came is one that it tolerates."""
        self._told_broken: dict[tuple[str, str], str] = {}

    def look(self, run: JobRun) -> None:
        """Tells a job what has begun or is over. To be called often; costs little while nothing changes."""
        if not self._nodes.listed.is_set():
            return  # every taint would look new
        there = set()
        # Spares first: a rank that leaves in the same look goes to none that has to leave, too.
        for pod in sorted(self._ledger.pods_of(run.key), key=lambda p: bool(run.ranks_in(p.agent))):
            if not run.is_over and run.is_attached(pod.agent):
                there.add((run.id, pod.agent))
                self._look_at(run, pod)
        for kept in (self._evidence, self._told_broken):
            for gone in [key for key in kept if key[0] == run.id and key not in there]:
                del kept[gone]

    def _look_at(self, run: JobRun, pod: Pod) -> None:
        key = run.id, pod.agent
        facts = self._ledger.facts(pod.node) or NodeFacts()
        facts = dataclasses.replace(facts, notices=(*facts.notices, *pod_notices(pod)))
        signals = self._evidence.setdefault(key, NodeEvidence()).update(facts)
        broken = self._nodes.broken
        if broken and self._told_broken.get(key) != broken:
            text = f"the cluster's nodes cannot be watched: {broken}"
            signals = (*signals, HealthSignal(k.SOURCE_DEAD, SOURCE, detail=text))
        self._told_broken[key] = broken
        if signals:
            run.relay.evidence(pod.agent, HealthSignals(signals))
