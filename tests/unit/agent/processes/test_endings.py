from __future__ import annotations

from torchrelay.agent.processes.endings import MOST, Endings
from torchrelay.protocol.messages import WorkerExited


def test_the_latest_endings_are_known_and_no_more_than_so_many() -> None:
    endings = Endings()
    for number in range(MOST + 10):
        endings.add(WorkerExited(f"n0.s{number}", 137, 9, True))
    assert [endings.of(f"n0.s{number}") for number in (9, MOST + 10)] == [None, None]
    known = [endings.of(f"n0.s{number}") for number in (10, MOST + 9)]
    assert known == [WorkerExited(f"n0.s{number}", 137, 9, True) for number in (10, MOST + 9)]
