"""The streams of a job's agents: what has arrived on each, and what waits for each."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator

from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.messages import AgentHello, Taken, ToAgent
from torchrelay.protocol.transport.delivery import Inbox, SendQueue
from torchrelay.protocol.transport.telling import ANSWER_S

MOST_ORDERS = 10_000
"""The most orders that wait for one agent. An agent that takes none is no agent of this job."""


class AgentStream:
    """One agent's stream. `over`: the agent has closed it, or a newer one has taken its place."""

    def __init__(self, inbox: Inbox, orders_session: str = "", orders_first: int = 0) -> None:
        self.something = asyncio.Event()
        self.over = False
        self.inbox = inbox
        self._orders = orders_session, orders_first
        self._taken_said: int | None = None
        self._answered_s: float | None = None
        self._is_answer_due = False

    def heard(self, now_s: float) -> None:
        """Take note that the agent has told its progress. It is answered now and then, so that it knows that it is heard."""
        if self._answered_s is None or now_s - self._answered_s >= ANSWER_S:
            self._answered_s = now_s
            self._is_answer_due = True
            self.something.set()

    def due_taken(self) -> Taken | None:
        """Return what the agent has not been told yet of how much has arrived, or an answer; None if neither is due."""
        if self._taken_said == self.inbox.count and not self._is_answer_due:
            return None
        is_first = self._taken_said is None
        self._taken_said = self.inbox.count
        self._is_answer_due = False
        return Taken(self.inbox.count, *self._orders, ANSWER_S) if is_first else Taken(self.inbox.count)

    def end(self) -> None:
        self.over = True
        self.something.set()


class AgentStreams:
    """The streams. Orders for an agent are kept until it has said that it has them."""

    def __init__(self) -> None:
        self.orders: dict[str, SendQueue[ToAgent]] = {}
        """Orders by node: those that wait, and those that may not have arrived."""
        self._session = secrets.token_hex(8)
        self._of: dict[str, str] = {}
        """The session of each node's agent."""
        self._open: dict[str, AgentStream] = {}
        self._inboxes: dict[str, Inbox] = {}

    @property
    def is_any_open(self) -> bool:
        return bool(self._open)

    def open(self, hello: AgentHello) -> AgentStream:
        """Open a new stream of this agent, in the place of the one before."""
        self.hang_up(hello.node)
        inbox = self._inboxes.setdefault(hello.node, Inbox())
        inbox.attach(hello.session, hello.first)
        orders = self.orders.setdefault(hello.node, SendQueue())
        if self._of.get(hello.node) != hello.session:
            self._of[hello.node] = hello.session
            orders.forget_written()
        orders.rewind()
        stream = self._open[hello.node] = AgentStream(inbox, self._session, orders.first)
        return stream

    def taken(self, node: str, stream: AgentStream, count: int) -> None:
        """Take note that the agent has so many orders."""
        if not stream.over:
            self.orders[node].taken(count)

    def leave(self, node: str, stream: AgentStream) -> bool:
        """Drop a stream that has ended. Return whether the agent has no other one."""
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
        """Queue an order. Raises FatalError where too many wait for the agent."""
        waiting = self.orders.setdefault(node, SendQueue())
        waiting.add(order)
        if len(waiting) > MOST_ORDERS:
            waiting.clear()
            raise FatalError(f"the agent of {node} takes no orders: {MOST_ORDERS} wait for it")
        if node in self._open:
            self._open[node].something.set()

    async def to_write(self, node: str, stream: AgentStream) -> AsyncGenerator[Taken | ToAgent, None]:
        """Yield each thing to write, until the stream is over. An order counts as written once the next one is asked for."""
        while not stream.over:
            stream.something.clear()
            if taken := stream.due_taken():
                yield taken
            while not stream.over and (due := self.orders[node].next()) is not None:
                yield due[1]
                if not stream.over:  # else the next stream has begun to say it again
                    self.orders[node].wrote(due[0])
            await stream.something.wait()
