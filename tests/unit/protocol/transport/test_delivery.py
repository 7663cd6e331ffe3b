"""Every message arrives once and in order, whatever streams break in between."""

from __future__ import annotations

import random

import pytest

from torchrelay.protocol.messages import Progress, Taken
from torchrelay.protocol.transport.delivery import Inbox, SendQueue


class Line:
    """An agent and a controller with a connection that loses the tail of what was written, and of the answers."""

    def __init__(self) -> None:
        self.outbox: SendQueue[Taken] = SendQueue()
        self.inbox = Inbox()
        self.arrived: list[int] = []

    def stream(self, carried: int, lost: int, answers_lost: int) -> None:
        """Writes `carried` messages, of which the last `lost` never arrive, nor do the last `answers_lost` answers."""
        self.outbox.rewind()
        self.inbox.attach("life", self.outbox.first)
        written = []
        while len(written) < carried and (due := self.outbox.next()) is not None:
            written.append(due[1])
            self.outbox.wrote(due[0])
        answers = [self.inbox.count]
        for message in written[: max(len(written) - lost, 0)]:
            assert self.inbox.is_new(Progress(()))
            if self.inbox.is_new(message):
                self.arrived.append(message.count)
            answers.append(self.inbox.count)
        for answer in answers[: max(len(answers) - answers_lost, 0)]:
            self.outbox.taken(answer)


@pytest.mark.parametrize("seed", range(20))
def test_messages_arrive_once_and_in_order_over_streams_that_break(seed: int) -> None:
    chance = random.Random(seed)
    line = Line()
    line.outbox.taken(0)
    for number in range(200):
        line.outbox.add(Taken(number))
        if chance.random() < 0.3:
            line.stream(chance.randrange(10), chance.randrange(4), chance.randrange(4))
    line.stream(1000, 0, 0)
    assert line.arrived == list(range(200))
    assert line.outbox.next() is None


def test_a_controller_that_never_answers_gets_nothing_twice() -> None:
    line = Line()
    for number in range(5):
        line.outbox.add(Taken(number))
    line.stream(3, 0, 99)
    line.stream(99, 0, 99)
    assert line.arrived == [0, 1, 2, 3, 4]
    assert line.outbox.is_empty


def test_an_answer_that_overtakes_the_end_of_the_write_skips_nothing() -> None:
    outbox: SendQueue[str] = SendQueue()
    outbox.taken(0)
    for text in "ab":
        outbox.add(text)
    due = outbox.next()
    assert due == (0, "a")
    outbox.taken(1)
    outbox.wrote(due[0])
    assert outbox.next() == (1, "b")


def test_nothing_that_was_said_is_said_to_another_process() -> None:
    outbox: SendQueue[str] = SendQueue()
    outbox.taken(0)
    for text in "abc":
        outbox.add(text)
    for _ in range(2):
        due = outbox.next()
        assert due is not None
        outbox.wrote(due[0])
    outbox.forget_written()
    outbox.rewind()
    assert outbox.next() == (2, "c")
    outbox.clear()
    outbox.add("d")
    assert outbox.next() == (3, "d")


def test_an_agent_that_started_anew_is_heard_from_its_first_message() -> None:
    inbox = Inbox()
    inbox.attach("first life", 0)
    assert inbox.is_new(Taken(0))
    inbox.attach("second life", 0)
    assert inbox.is_new(Taken(0))
    assert inbox.count == 1
