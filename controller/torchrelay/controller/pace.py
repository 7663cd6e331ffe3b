"""Decides how often the agents of one job tell of ranks that only move on: more rarely where many agents share one controller."""

from __future__ import annotations

from torchrelay.controller.machines.nodes import Nodes
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.messages import TellEvery
from torchrelay.protocol.transport.telling import pace

CALM_AGAIN_S = 10.0
"""Agents tell more rarely again so long after ranks moved again."""


class Pace:
    """The pace of one job.

    `job.tell_s` is what agents were asked for last. Until `wish` is called, they tell every TELL_S unasked.
    """

    def __init__(self, job: Job, outbox: Outbox, nodes: Nodes) -> None:
        self._job = job
        self._outbox = outbox
        self._nodes = nodes
        self._wished_s: float | None = None
        self._told_s: float | None = None
        self._alarmed_s: float | None = None

    def wish(self, seconds: float, now_s: float) -> None:
        """Set the pace for while all goes well."""
        self._wished_s = seconds
        self._agree(now_s)

    def attached(self, node: str) -> None:
        """Tell the pace to an agent: another controller may have told it another pace before."""
        if self._told_s is not None:
            self._outbox.to_agent(node, TellEvery(self._told_s))

    def tick(self, is_alarmed: bool, now_s: float) -> None:
        """Adapt the pace. `is_alarmed`: a rank stands still or is moved, so that a node may have to be given up for its silence."""
        if is_alarmed:
            self._alarmed_s = now_s
        elif self._alarmed_s is not None and now_s - self._alarmed_s >= CALM_AGAIN_S:
            self._alarmed_s = None
        self._agree(now_s)

    def _agree(self, now_s: float) -> None:
        if self._wished_s is None:
            return
        seconds = self._wished_s if self._alarmed_s is None else min(self._wished_s, pace(len(self._job.nodes)))
        if seconds != self._told_s:
            if seconds < self._job.tell_s:
                self._nodes.asked(now_s)
            self._job.tell_s = self._told_s = seconds
            self._outbox.to_all_agents(TellEvery(seconds))
