"""Communicators that fail, or come to nothing, while ranks live."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from imitated_gpu import jobs
from imitated_gpu.faults import Fault, Orders

START_S = 60.0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_communicator_that_fails_though_no_rank_is_lost_costs_its_rank(rank: int, tmp_path: Path) -> None:
    job = jobs.run(tmp_path, 2, 1, [f"async_error:{rank}:9"])
    assert job.returncode == 0, job.output[-4000:]
    assert [firing.fault for firing in job.fired] == [Fault.ASYNC_ERROR]
    who = f"rank {rank} (n0.w{rank}) cannot reach the others, of which none is lost"
    assert [reason.startswith(who) for reason in job.losses] == [True], job.losses
    assert len(job.committed) == 1
    assert job.committed[0]["downtime_s"]["detect"] >= 10.0
    assert job.results == jobs.undisturbed(2)


def test_communicators_that_take_long_to_connect_are_waited_for(tmp_path: Path) -> None:
    def slow(orders: Orders) -> None:
        orders.order(Fault.SLOW_INIT, seconds=1.5)

    job = jobs.run(tmp_path, 2, 1, (), ["kill:rank=1,step=9,phase=backward"], slow)
    assert job.returncode == 0, job.output[-4000:]
    assert len({firing.pid for firing in job.fired}) == 3, "both ranks and the one that took over"
    assert len(job.committed) == 1
    assert job.results == jobs.undisturbed(2)


def test_a_replacement_that_dies_while_it_connects_is_replaced_by_the_next(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_the_third(orders: Orders) -> None:
        """Whoever makes a communicator after the two ranks have made theirs is the one that takes over."""
        orders.order(Fault.SLOW_INIT, seconds=1.5)
        until_s = time.monotonic() + START_S
        while len(found := list(dict.fromkeys(firing.pid for firing in orders.fired()))) < 3:
            assert time.monotonic() < until_s, found
            time.sleep(0.02)
        killed.append(found[2])
        os.kill(found[2], signal.SIGKILL)
        orders.withdraw(Fault.SLOW_INIT)

    job = jobs.run(tmp_path, 2, 2, (), ["kill:rank=1,step=9,phase=backward"], kill_the_third)
    assert job.returncode == 0, job.output[-4000:]
    assert len(job.committed) == 1
    assert job.committed[0]["spare"] == "n0.s1"
    assert job.losses[1:] == ["n0.s0, which was to take over rank 1, was killed by SIGKILL"]
    assert job.results == jobs.undisturbed(2)
