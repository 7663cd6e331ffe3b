"""What is known of a machine as a whole, from the people or programs that run it, and the evidence in it. Pure.

A watcher (a Kubernetes client, the agent with files of its machine) gives the facts as they are now, each time they
change. This module returns which of them are evidence, and which evidence is over. The policy decides by the text what matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

READY = "Ready"
"""The one condition that is well when it is true."""
NO_EXECUTE = "NoExecute"
FROM_THE_START = " (there from the start)"


@dataclass(frozen=True)
class NodeCondition:
    """As a Kubernetes node has it. `status`: True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Taint:
    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True)
class Notice:
    """Something that is announced of a machine or a device.

    `what`: eviction, termination, shutdown, notice, quarantine or device-quarantine; `text`: who says so, until when, and why.
    `device`: the device that it is about, as its driver names it; empty for the whole machine.
    """

    what: str
    text: str = ""
    device: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """The facts about a node. `cordoned`: no new pods are to come (Kubernetes: spec.unschedulable).

    `name`: of the machine, if its agent has another. `ended`: how notices ended, by what they were about, as far as known.
    """

    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    notices: tuple[Notice, ...] = ()
    name: str = ""
    ended: Mapping[str, str] = field(default_factory=dict)


class NodeEvidence:
    """The evidence about one node: `update` tells what has begun or ended since the previous facts."""

    def __init__(self) -> None:
        self._holding: dict[str, str] = {}
        self._tolerated: frozenset[Taint] | None = None

    def update(self, facts: NodeFacts) -> tuple[HealthSignal, ...]:
        if self._tolerated is None:
            # The job's pods were started here all the same.
            self._tolerated = frozenset(facts.taints)
        now = dict(evidence(facts, self._tolerated))
        over = [
            _signal(subject, f"{text}, {facts.ended[subject]}" if subject in facts.ended else text, 0.0)
            for subject, text in self._holding.items()
            if subject not in now
        ]
        begun = [_signal(s, text, 1.0) for s, text in now.items() if self._holding.get(s) != text]
        self._holding = now
        return (*over, *begun)


def evidence(facts: NodeFacts, tolerated: Iterable[Taint] = ()) -> Iterable[tuple[str, str]]:
    """Yield what is not as it should be: the subject, and the text that the rows of the policy match."""
    of_node = f" of node {facts.name}" if facts.name else ""
    if facts.cordoned:
        yield "cordon", f"cordon{of_node}"
    for taint in facts.taints:
        name = f"{taint.key}={taint.value}" if taint.value else taint.key
        known = FROM_THE_START if taint in tolerated and taint.effect == NO_EXECUTE else ""
        yield f"taint:{taint.key}:{taint.effect}", f"taint {name}:{taint.effect}{of_node}{known}"
    for c in facts.conditions:
        if (c.status != "True") if c.type == READY else (c.status == "True"):
            why = ": ".join(filter(None, (c.reason, " ".join(c.message.split()))))
            yield f"condition:{c.type}", f"condition {c.type}={c.status}{of_node}" + (f" ({why})" if why else "")
    for notice in facts.notices:
        yield notice.device or notice.what, notice.what + (f" ({notice.text})" if notice.text else "")


def _signal(subject: str, text: str, value: float) -> HealthSignal:
    return HealthSignal(k.NODE_CONDITION, subject, value=value, detail=text)
