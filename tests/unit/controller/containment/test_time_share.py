from __future__ import annotations

import asyncio
import time

import pytest

from torchrelay.controller.containment.containment import MOST_SHORT_S, Containment
from torchrelay.controller.containment.time_share import LONGEST_REST_S, TimeShare, rest_s
from torchrelay.controller.serving.agent_streams import AgentStream
from torchrelay.controller.serving.relay import Relay
from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2
from torchrelay.protocol.transport.convert import wrap
from torchrelay.protocol.transport.delivery import Inbox


def test_a_job_may_take_its_burst_at_once() -> None:
    assert TimeShare(share=0.5, burst_s=1.0).spend(1.0, 10.0) == 0.0


def test_who_took_more_waits_until_its_share_has_made_up_for_it() -> None:
    share = TimeShare(share=0.5, burst_s=1.0)
    wait_s = share.spend(2.0, 10.0)
    assert wait_s == pytest.approx(2.0)
    assert share.spend(0.0, 10.0 + wait_s) == 0.0
    assert share.spend(0.1, 10.0 + wait_s) == pytest.approx(0.2)


def test_a_job_that_was_idle_for_long_has_saved_up_no_more_than_its_burst() -> None:
    share = TimeShare(share=0.5, burst_s=1.0)
    share.spend(1.0, 10.0)
    assert share.spend(1.5, 10_000.0) == pytest.approx(1.0)


def test_a_job_that_keeps_to_its_share_never_waits() -> None:
    share = TimeShare(share=0.5, burst_s=1.0)
    assert [share.spend(0.4, 10.0 + second) for second in range(100)] == [0.0] * 100


def test_who_is_called_in_time_need_not_rest_and_nobody_rests_for_long() -> None:
    assert rest_s(-0.1) == rest_s(0.0) == 0.0
    assert 0.0 < rest_s(0.01) < rest_s(0.1) < LONGEST_REST_S
    assert rest_s(3.0) == LONGEST_REST_S


class Outbox:
    def to_agent(self, node: str, order: object) -> None:
        """Nobody is there."""


class BusyCore:
    """As a core whose job wants to look at the clock all the time, and whose look takes long."""

    def __init__(self, took_s: float) -> None:
        self.ticks, self.ended, self.outbox, self.leading = 0, None, Outbox(), self
        self.stood_down = False
        self._took_s = took_s

    def tick(self, now_s: float) -> None:
        self.ticks += 1
        end_s = time.thread_time() + self._took_s
        while time.thread_time() < end_s:
            pass

    def tick_every_s(self, now_s: float) -> float:
        return 0.05

    def take(self) -> tuple[list[object], list[object]]:
        return [], []

    def take_hang_ups(self) -> list[str]:
        return []


class LatePause:
    """Of a loop in which others are busy: whoever sleeps is called so much later. After three times it is over."""

    def __init__(self, late_s: float) -> None:
        self.asked_s: list[float] = []
        self._late_s = late_s

    async def sleep(self, seconds: float) -> None:
        self.asked_s.append(seconds)
        if len(self.asked_s) == 3:
            raise asyncio.CancelledError
        time.sleep(seconds + self._late_s)  # noqa: ASYNC251 - the loop itself is held up

    def end(self) -> None:
        """Nobody waits."""


def pauses(late_s: float, share: TimeShare | None) -> list[float]:
    relay = Relay(BusyCore(0.0), share=share)  # type: ignore[arg-type]  # as far as it is used
    relay._pause = pause = LatePause(late_s)  # type: ignore[assignment]  # a stand-in
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(relay.run())
    return pause.asked_s


def test_a_job_that_is_called_late_looks_less_often_where_others_have_their_share() -> None:
    """Else all turns of the loop were looks at the clock, once there are many such jobs, and no agent would be heard in time."""
    assert pauses(0.3, TimeShare())[1:] == [LONGEST_REST_S] * 2
    assert pauses(0.3, None)[1:] == [0.05] * 2


def test_what_the_agents_of_a_job_say_does_not_shorten_its_rest() -> None:
    core = BusyCore(0.05)

    async def said_meanwhile() -> None:
        relay = Relay(core, share=TimeShare(share=0.0005, burst_s=0.0))  # type: ignore[arg-type]  # as far as it is used
        task = asyncio.create_task(relay.run())
        for _ in range(40):
            await asyncio.sleep(0.01)
            relay.order("n0", None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(said_meanwhile())
    assert core.ticks == 1


class WordyCore(BusyCore):
    """Takes each message for that long, and says whether anything may follow from it."""

    def __init__(self, took_s: float, *, follows: bool) -> None:
        super().__init__(took_s)
        self._follows = follows

    def receive(self, node: str, message: object, now_s: float) -> bool:
        self.tick(now_s)
        return self._follows


@pytest.mark.parametrize(
    ("ranks", "follows", "is_full"),
    [
        pytest.param(1, False, False, id="a rank has come further"),
        pytest.param(1, True, True, id="what follows from it counts"),
        pytest.param(1000, False, True, id="so do many ranks in one message"),
    ],
)
def test_a_word_of_progress_counts_little_only_where_nothing_follows(ranks: int, follows: bool, is_full: bool) -> None:
    took_s = 0.05
    relay = Relay(WordyCore(took_s, follows=follows), share=TimeShare())  # type: ignore[arg-type]  # as far as it is used
    told = msg.Progress(tuple(msg.WorkerProgress(f"n0.w{n}", 1, 1, "body", False, 1, "S") for n in range(ranks)))
    relay._take("n0", AgentStream(Inbox()), wrap(relay_pb2.FromAgent, told))
    assert (relay._containment.spent_s >= took_s) is is_full
    assert is_full or relay._containment.spent_s <= MOST_SHORT_S


def test_what_was_taken_for_short_and_is_not_is_measured_the_next_time() -> None:
    containment, is_short, spent_s = Containment(None, None), True, []
    for _ in range(3):
        before_s = containment.spent_s
        with containment.contained(is_short) as cost:
            until_s = time.thread_time() + 0.02
            while time.thread_time() < until_s:
                pass
        is_short = cost.was_short
        spent_s.append(containment.spent_s - before_s)
    assert spent_s[0] <= MOST_SHORT_S
    assert all(each_s >= 0.02 for each_s in spent_s[1:]), "twice in a row it would be no job's cost"
    with containment.contained(is_short) as cost:
        pass
    assert cost.was_short
