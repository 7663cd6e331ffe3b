"""What the controller has to say: orders to agents and events for watchers, collected until somebody sends them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torchrelay.controller.picture.job import Job
from torchrelay.protocol.events import Log, MigrationProgressed, Occurrence, ProgressMade, to_job_event
from torchrelay.protocol.messages import Fence, JobEvent, ShimOrder, ToAgent, ToWorker

ONCE_REMEMBERED = 1000
RECENT = 400


class Outbox:
    """`wall_s`: the time of day for events."""

    def __init__(self, job: Job, wall_s: Callable[[], float]) -> None:
        self._job = job
        self._wall_s = wall_s
        self._said: set[str] = set()
        self.orders: list[tuple[str, ToAgent]] = []
        self.events: list[JobEvent] = []
        self.recent: deque[JobEvent] = deque(maxlen=RECENT)
        """The latest events but progress, whether or not somebody has taken them."""

    def to_worker(self, worker: str, order: ShimOrder) -> None:
        self.to_agent_of(worker, ToWorker(worker, order))

    def to_agent_of(self, worker: str, message: ToAgent) -> None:
        known = self._job.workers[worker]
        known.told_to_end = known.told_to_end or isinstance(message, Fence)
        self.to_agent(known.node, message)

    def to_agent(self, node: str, message: ToAgent) -> None:
        """Nothing is kept for a node that was given up."""
        if not self._job.nodes[node].lost:
            self.orders.append((node, message))

    def to_all_agents(self, message: ToAgent) -> None:
        for node in self._job.nodes:
            self.to_agent(node, message)

    def emit(self, occurrence: Occurrence) -> None:
        event = to_job_event(occurrence, self._wall_s())
        self.events.append(event)
        if not isinstance(occurrence, (ProgressMade, MigrationProgressed)):
            self.recent.append(event)

    def log(self, level: str, text: str) -> None:
        self.emit(Log(level, text))

    def log_once(self, level: str, text: str) -> None:
        if text not in self._said and len(self._said) < ONCE_REMEMBERED:
            self._said.add(text)
            self.log(level, text)

    def take(self) -> tuple[list[tuple[str, ToAgent]], list[JobEvent]]:
        taken = self.orders, self.events
        self.orders = []
        self.events = []
        return taken
