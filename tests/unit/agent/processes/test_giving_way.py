"""Spares whose imports wait for those of the ranks."""

from __future__ import annotations

from torchrelay.agent.processes.giving_way import GivingWay
from torchrelay.agent.processes.priority import Priorities
from torchrelay.protocol.messages import WorkerProgress
from torchrelay.protocol.names import NO_RANK, WorkerId

W0, W1, S0, S1 = (WorkerId(name) for name in ("n0.w0", "n0.w1", "n0.s0", "n0.s1"))
RANKS = {W0: 0, W1: 1, S0: NO_RANK, S1: NO_RANK}


class NotedPriorities(Priorities):
    def __init__(self) -> None:
        self.lowered: list[int] = []
        self.raised: list[tuple[int, ...]] = []

    def lower(self, pid: int) -> None:
        self.lowered.append(pid)

    def raise_(self, *pids: int) -> None:
        self.raised.append(pids)


def progress(worker: WorkerId, boundary: int) -> WorkerProgress:
    return WorkerProgress(worker, boundary, 0, "", waiting=False, count=0, process_state="S")


def with_two_spares() -> tuple[GivingWay, NotedPriorities]:
    priorities = NotedPriorities()
    giving_way = GivingWay(priorities)
    giving_way.until_first_step(S0, 70)
    giving_way.until_first_step(S1, 71)
    assert priorities.lowered == [70, 71]
    return giving_way, priorities


def test_first_spares_give_way_until_each_rank_has_done_a_step() -> None:
    giving_way, priorities = with_two_spares()
    spare = progress(S0, 0)
    giving_way.saw((progress(W0, 0), progress(W1, 0), spare), RANKS, {}.get)
    giving_way.saw((progress(W0, 3), progress(W1, 0), spare), RANKS, {}.get)
    assert priorities.raised == []
    giving_way.saw((progress(W0, 4), progress(W1, 1), spare), RANKS, {S1: 99}.get)
    giving_way.saw((progress(W0, 5), progress(W1, 2), spare), RANKS, {S1: 99}.get)
    assert priorities.raised == [(70, 70), (71, 99)], "once, and also what a wrapper has started"


def test_a_first_spare_that_is_needed_earlier_gives_way_no_more() -> None:
    giving_way, priorities = with_two_spares()
    giving_way.is_needed(S0, 88)
    giving_way.is_needed(S0, 88)
    assert priorities.raised == [(70, 88)]
    giving_way.saw((progress(W0, 1), progress(W1, 1)), RANKS, {}.get)
    assert priorities.raised == [(70, 88), (71, 71)]


def test_where_no_rank_is_spares_give_way_to_nobody() -> None:
    giving_way, priorities = with_two_spares()
    giving_way.saw((progress(S0, 0), progress(S1, 0)), RANKS, {}.get)
    assert priorities.raised == [(70, 70), (71, 71)]


def test_a_spare_that_is_made_later_gives_way_until_it_is_needed() -> None:
    priorities = NotedPriorities()
    giving_way = GivingWay(priorities)
    giving_way.until_needed(S0, 70)
    giving_way.saw((progress(W0, 9), progress(W1, 9)), RANKS, {}.get)
    assert priorities.raised == []
    giving_way.is_needed(S0, None)
    assert priorities.raised == [(70, 70)]


def test_nothing_is_kept_of_a_spare_that_has_ended() -> None:
    giving_way, priorities = with_two_spares()
    giving_way.ended(S0)
    giving_way.saw((progress(W0, 1), progress(W1, 1)), RANKS, {}.get)
    giving_way.is_needed(S0, None)
    assert priorities.raised == [(71, 71)], "its number may be another process's now"
