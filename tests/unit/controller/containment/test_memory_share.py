from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.containment.memory_share import (
    BUDGET_BYTES,
    BUDGET_BYTES_PER_AGENT,
    LOOK_EVERY_BYTES,
    MemoryShare,
    size_of,
)
from torchrelay.protocol.errors import RefusedError


class Holder:
    def __init__(self, *held: object) -> None:
        self.held = list(held)


def test_what_can_be_reached_is_counted_once_and_no_further_than_needed() -> None:
    big = bytes(1 << 20)
    assert (1 << 20) < size_of([Holder(big, big, {"again": big}, pytest, Holder)], 1 << 30) < (1 << 20) + 4096
    assert (3 << 20) < size_of([Holder(*(bytes(1 << 20) for _ in range(100)))], 3 << 20) < 5 << 20


def test_a_job_is_counted_without_what_it_shares_with_others(tmp_path: Path) -> None:
    job = FakeJob(tmp_path)
    job.train()
    assert 10_000 < size_of([job.core], 1 << 30) < 2 << 20


def test_who_holds_more_than_the_share_is_refused_and_who_lets_go_again_is_not() -> None:
    holder = Holder()
    share = MemoryShare(holder)
    for _ in range(100):
        holder.held = [bytes(10 << 20)]
        share.take(10 << 20, 1)
    holder.held = [bytes(BUDGET_BYTES + BUDGET_BYTES_PER_AGENT)]
    share.take(1, 1)
    with pytest.raises(RefusedError, match="takes more than 256 MiB"):
        share.take(10 << 20, 1)
    many = MemoryShare(holder)
    for _ in range(100):
        many.take(LOOK_EVERY_BYTES, BUDGET_BYTES // BUDGET_BYTES_PER_AGENT)


def test_what_is_held_is_not_counted_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[object] = []
    monkeypatch.setattr(
        "torchrelay.controller.containment.memory_share.size_of", lambda *of: counted.append(of) or 100 << 20
    )
    share = MemoryShare(Holder())
    for _ in range(3 << 20 >> 10):
        share.take(100 << 10, 1)  # 300 MiB
    assert len(counted) == 3
