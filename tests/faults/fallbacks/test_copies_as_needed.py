"""What one rank alone holds survives its loss without anybody having asked for copies."""

from __future__ import annotations

from pathlib import Path

from faults.conftest import Undisturbed
from support.cells import only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import differences

RANKS, MOST_REDONE = 2, 20


def test_a_rank_with_the_only_average_of_the_weights_is_lost_and_all_go_back_to_copies(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = "kill:rank=0,step=34,phase=backward"
    run = relay(tmp_path, "lone_average.py", ranks=RANKS, inject=[fault])
    assert run.status == 0, run.told()
    assert differences(undisturbed("lone_average.py", ranks=RANKS), run.out, RANKS) == [], run.told()
    assert run.faults() == [fault]
    (done,) = run.committed()
    assert 1 <= done["steps_redone"] <= MOST_REDONE, run.told()


@only_in_long
def test_a_rank_that_others_can_stand_in_for_is_replaced_at_the_cost_of_one_step(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    fault = "kill:rank=1,step=34,phase=backward"
    run = relay(tmp_path, "lone_average.py", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed("lone_average.py", ranks=RANKS), RANKS, [fault], 1)
