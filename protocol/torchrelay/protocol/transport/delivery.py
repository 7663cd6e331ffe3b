"""Between agent and controller, each message once and in order, over as many streams as it takes. Pure.

A stream that breaks loses what was on its way. Each side keeps its messages until the other side has confirmed them (`Taken`,
`OrdersTaken`), and sends them again on the next stream. The other side skips those that it knows already. Taken, OrdersTaken,
AgentHello and Progress are not counted: each replaces the one before.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

from torchrelay.protocol.messages import AgentHello, OrdersTaken, Progress

M = TypeVar("M")


class SendQueue(Generic[M]):
    """What the other side has not confirmed, and how far the present stream has carried it."""

    def __init__(self) -> None:
        self._kept: deque[M] = deque()
        self._due = 0
        self._is_answered = False
        self.first = 0
        """Number of the message that a new stream begins with."""

    @property
    def is_empty(self) -> bool:
        """Return whether no message is left that the other side may lack."""
        return not self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, message: M) -> None:
        self._kept.append(message)

    def rewind(self) -> None:
        """Begin a new stream: everything that the other side has not confirmed is due again."""
        self._due = self.first

    def next(self) -> tuple[int, M] | None:
        """Return number and message of the next one that is due, or None."""
        at = self._due - self.first
        return (self._due, self._kept[at]) if at < len(self._kept) else None

    def wrote(self, number: int) -> None:
        """Note that the stream has this message. If the other side has never confirmed any, that has to be enough."""
        self._due = max(self._due, number + 1)
        if not self._is_answered:
            self._drop(number + 1)

    def taken(self, count: int) -> None:
        """Note that the other side has the first `count` messages. It may say so before the stream's write returns."""
        self._is_answered = True
        self._drop(count)

    def clear(self) -> None:
        """Drop everything that was added so far."""
        self._drop(self.first + len(self._kept))

    def forget_written(self) -> None:
        """Drop what was written: another process is at the other end now, and it was meant for the process before."""
        self._drop(self._due)

    def _drop(self, count: int) -> None:
        while self.first < count and self._kept:
            self._kept.popleft()
            self.first += 1
        self._due = max(self._due, self.first)


class Inbox:
    """What has arrived, kept over the streams of one peer.

    `Taken(count)` goes to the agent when a stream begins and after each message that is not Progress, `OrdersTaken(count)` to the
    controller.
    """

    def __init__(self) -> None:
        self._session = ""
        self._next = 0
        self.count = 0
        """How many messages of this peer are here: what to answer with."""

    def attach(self, session: str, first: int) -> None:
        """Begin a stream whose first message has number `first`. A peer with another session has started anew."""
        if session != self._session:
            self._session = session
            self.count = 0
        self._next = first

    def is_new(self, message: Any) -> bool:
        """Return False if an earlier stream has brought the message already. To be called once for each message of the stream."""
        if isinstance(message, (AgentHello, OrdersTaken, Progress)):
            return True
        self._next += 1
        if self._next <= self.count:
            return False
        self.count = self._next
        return True
