"""A peer that dies under a collective, and communicators that come to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imitated_gpu import ranks
from imitated_gpu.faults import Fault, Firing, Orders

QUIET = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}  # else torch ends a survivor


def eventually(happens: Callable[[], bool], timeout_s: float = 120) -> bool:
    until = time.monotonic() + timeout_s
    while not happens():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("death", ["in silence", "with a connection error"])
def test_a_survivor_aborts_and_goes_on_with_another_peer(death: str, tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    expected = []
    with ranks.started("abandoned", 2, 3, **QUIET, **orders.environment()) as (survivor, victim, joiner):
        victim.next_report()
        victim.kill()
        posted = survivor.next_report()  # so the host did not wait for the peer
        if death == "with a connection error":
            orders.order(Fault.CONNECTION_ERROR)
            expected = [Firing(Fault.CONNECTION_ERROR, survivor.process.pid)]
        assert eventually(lambda: orders.fired() == expected)
        survivor.go_on()
        facts = survivor.next_report()
        joined = joiner.next_report()
    assert facts["is_stuck"], "the stream waits for the peer"
    assert facts["garbage"], "what was queued behind the collective ran"
    assert facts["intact"]
    assert facts["communicators"] == 0
    assert facts["sum"] == joined["sum"] == 3
    assert facts["bytes"] == posted["bytes"]
    assert orders.fired() == expected


def segments(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"imitated-gpu-{pid}-*"))


def test_a_peer_that_never_comes_leaves_nothing_behind_when_the_others_are_killed(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    with ranks.started("training", 2, DEVICE="cuda", PARALLEL="ddp", OPTIMIZER="fused", **orders.environment()) as both:
        waiting, missing = both
        orders.order(Fault.MISSING_PEER, pid=missing.process.pid)
        assert eventually(lambda: orders.fired() == [Firing(Fault.MISSING_PEER, missing.process.pid)])
        assert eventually(lambda: len(segments(waiting.process.pid)) == 1)
        waiting.kill()
        missing.kill()
    assert segments(waiting.process.pid)
    ranks.run("one_rank", 1, ACTION="slow_init")
    assert not segments(waiting.process.pid)
