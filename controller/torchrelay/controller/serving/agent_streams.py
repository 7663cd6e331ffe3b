"""The streams of a job's agents: what has arrived on each, and what waits for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.messages import AgentHello, Taken, ToAgent
from torchrelay.protocol.transport.delivery import Inbox

MOST_ORDERS = 10_000
"""That wait for one agent: one that takes none is no agent of ours."""


class AgentStream:
    """One agent's stream; `over` when the agent has closed it or a newer one has taken its place."""

    def __init__(self, inbox: Inbox) -> None:
        self.something = asyncio.Event()
        self.over = False
        self.inbox = inbox
        self._taken_said: int | None = None

    def due_taken(self) -> Taken | None:
        """What the agent has not been told yet of how much has arrived."""
        if self._taken_said == self.inbox.count:
            return None
        self._taken_said = self.inbox.count
        return Taken(self.inbox.count)

    def end(self) -> None:
        self.over = True
        self.something.set()


class AgentStreams:
    """Orders for an agent that is away are kept until it is back."""

    def __init__(self) -> None:
        self.orders: dict[str, deque[ToAgent]] = {}
        """By node, those that wait."""
        self._open: dict[str, AgentStream] = {}
        self._inboxes: dict[str, Inbox] = {}

    @property
    def is_any_open(self) -> bool:
        return bool(self._open)

    def open(self, hello: AgentHello) -> AgentStream:
        """A new one of this agent, in the place of the one before."""
        self.hang_up(hello.node)
        inbox = self._inboxes.setdefault(hello.node, Inbox())
        inbox.attach(hello)
        stream = self._open[hello.node] = AgentStream(inbox)
        return stream

    def leave(self, node: str, stream: AgentStream) -> bool:
        """The stream has ended; whether the agent has no other one."""
        if self._open.get(node) is not stream:
            return False
        del self._open[node]
        return True

    def hang_up(self, node: str) -> None:
        """End the agent's stream, if it has one."""
        if node in self._open:
            self._open[node].end()

    def hang_up_all(self) -> None:
        for stream in self._open.values():
            stream.end()

    def queue(self, node: str, order: ToAgent) -> None:
        """Raises FatalError where too many wait for the agent."""
        waiting = self.orders.setdefault(node, deque())
        waiting.append(order)
        if len(waiting) > MOST_ORDERS:
            waiting.clear()
            raise FatalError(f"the agent of {node} takes no orders: {MOST_ORDERS} wait for it")
        if node in self._open:
            self._open[node].something.set()

    async def to_write(self, node: str, stream: AgentStream) -> AsyncGenerator[Taken | ToAgent, None]:
        """Each thing to write, until the stream is over. An order counts as written once the next one is asked for."""
        orders = self.orders.setdefault(node, deque())
        while not stream.over:
            stream.something.clear()
            if taken := stream.due_taken():
                yield taken
            while orders and not stream.over:
                yield orders[0]
                orders.popleft()
            await stream.something.wait()
