"""Each collective on the imitated NCCL gives what gloo gives on the CPU."""

from __future__ import annotations

import pytest

from imitated_gpu import ranks


@pytest.mark.parametrize("bound", ["", "1"])
def test_every_collective_gives_what_gloo_gives(bound: str) -> None:
    for_gloo = ranks.run("collectives", 3, DEVICE="cpu")
    imitated = ranks.run("collectives", 3, DEVICE="cuda", BOUND=bound)
    for theirs, ours in zip(for_gloo, imitated):
        assert len(ours["results"]) >= 25
        assert ours["results"] == theirs["results"]
        assert ours["communicators"] == 0
        assert ours["skipped"] == 0
        assert bool(ours["split"]) == bool(bound)
