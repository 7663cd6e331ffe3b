"""The network links of one rank fail while all processes live: it is told apart from a slow transfer, named, and replaced."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import steps_done

SCRIPT, HELD_OPEN, SHARDED = "ddp.py", "held_open.py", "sharded.py"
DETECTION_S = 5.0
"""What is added to three steps, in docs/transparency.md."""
SLACK_S = 4.0
"""For a loaded machine, on which every look comes late."""


CELLS = [
    (SCRIPT, 0, "backward"),
    (HELD_OPEN, 1, "gate"),
    *[
        (SCRIPT, 2, "gate"),
        (SCRIPT, 0, "gate"),
        (SCRIPT, 1, "optimizer"),
        (SCRIPT, 2, "after-step"),
        (SCRIPT, 0, "data"),
    ],
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "rank", "phase"), few(1, CELLS))
def test_a_rank_whose_links_are_down_is_named_and_replaced(
    script: str, rank: int, phase: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Who is struck in the gate has let others through it already: what it sends arrives."""
    fault = f"partition:rank={rank},step=15,phase={phase}"
    run = relay(tmp_path, script, ranks=3, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=3), 3, [fault], 1)
    (event,) = run.named("suspected")
    others = ", ".join(str(r) for r in range(3) if r != rank)
    assert event["reason"].startswith(f"rank {rank}'s connections to ranks {others} have not been answered for"), event
    assert "; the others reach each other" in event["reason"]
    assert [m["ranks"] for m in run.committed()] == [[rank]], run.told()
    assert run.committed()[0]["downtime_s"]["detect"] < DETECTION_S + SLACK_S
    assert (run.out / "outlived").exists() == (script == HELD_OPEN)


@only_in_long
def test_of_two_ranks_that_do_not_reach_each_other_one_is_replaced(undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "partition:rank=0,step=15,phase=backward"
    run = relay(tmp_path, SCRIPT, ranks=2, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=2), 2, [fault], 1)
    (event,) = run.named("suspected")
    assert "which end is to blame cannot be told: it is rank 1 that is replaced" in event["reason"]


def test_a_transfer_that_is_slow_is_left_alone(tmp_path: Path) -> None:
    run = relay(tmp_path, "slow_link.py", ranks=2)
    assert run.status == 0, run.told()
    assert run.named("suspected") == [], run.told()
    assert run.named("migration_started") == []
    assert steps_done(run.out) == 5
    longest_s = max(later["time_s"] - earlier["time_s"] for earlier, later in itertools.pairwise(run.named("progress")))
    assert longest_s > DETECTION_S, "nothing was slow"


@only_in_long
def test_whoever_holds_the_only_replica_and_has_not_been_let_through_the_gate_goes_on_first(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """What rank 3 sends arrives, and nothing reaches it: ranks 0 and 2 pass, and rank 1, which has the same shards, cannot."""
    fault = "partition:rank=3,step=6,phase=gate"
    environment = {"FIRST_IN_UPDATE": "3:6", "EVENTS": str(tmp_path / "events.jsonl")}
    run = relay(tmp_path, SHARDED, ranks=4, inject=[fault], environment=environment)
    assert_unharmed(run, undisturbed(SHARDED, ranks=4), 4, [fault], 1)
    decided = [event["text"] for event in run.named("decision")]
    assert "rank 1 makes the update of step 6, as others have done" in decided, run.told()
    assert any("rank 1 gives its tensors to rank 3" in text for text in decided), run.told()
