"""While nobody is silent there is nothing to decide, which must not cost at every tick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.processes import hang_watch


def test_only_a_silence_has_all_ranks_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = FakeJob(tmp_path, world_size=4)
    job.train()
    looked = 0
    find = hang_watch.find_culprit

    def counted(*asked: Any) -> Any:
        nonlocal looked
        looked += 1
        return find(*asked)

    monkeypatch.setattr(hang_watch, "find_culprit", counted)
    for boundary in range(6, 12):
        job.boundary = boundary
        job.tick(0.5)
    assert looked == 0
    job.still.add("n0.w2")
    job.waiting |= {"n0.w0", "n0.w1", "n0.w3"}
    job.tick(4.0)
    assert looked > 0
