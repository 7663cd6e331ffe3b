"""What set-up has learned from outside, a rank that is replaced still knows, and trains on with."""

from __future__ import annotations

import json
from pathlib import Path

from support.relay_run import Finished, relay

SCRIPT, RANKS = "outside.py", 2


def assert_knows_the_same(run: Finished) -> None:
    """Each rank has told once what it had learned, and has the same at its end; and all have the same parameters."""
    assert run.status == 0, run.told()
    assert len(run.committed()) == 1, run.told()
    results = [json.loads((run.out / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    for rank, result in enumerate(results):
        (told,) = (run.out / f"learned-{rank}").read_text().splitlines()
        assert result["learned"] == json.loads(told)
        assert len(result["losses"]) == 16
        assert result["environment"] is None
    assert results[0]["parameters"] == results[1]["parameters"]
    assert results[0]["learned"]["data"] != results[1]["learned"]["data"]
    assert results[0]["learned"]["order"] == results[1]["learned"]["order"]


def test_a_rank_whose_set_up_was_not_seeded_is_replaced(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=["kill:rank=0,step=12,phase=backward"])
    assert_knows_the_same(run)
