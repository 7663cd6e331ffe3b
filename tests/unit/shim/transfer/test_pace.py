"""Who waits for tensors is told how far they are, about once a second."""

from __future__ import annotations

from torchrelay.shim.transfer.pace import EVERY_S, ByteCount


def test_a_loop_tells_at_most_once_in_a_while_and_nothing_if_it_is_quick() -> None:
    now_s = 0.0
    told: list[tuple[int, int]] = []
    pace = ByteCount(lambda done, total: told.append((done, total)), 100, lambda: now_s)
    for _ in range(9):
        pace.add(10)
    assert told == []
    now_s = EVERY_S
    pace.add(5)
    pace.add(1)
    now_s = 2.5 * EVERY_S
    pace.add(4)
    assert told == [(95, 100), (100, 100)]
