"""A script that destroys its default process group and makes another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay
from support.training import differences

SCRIPT, RANKS = "two_groups.py", 2


def test_a_second_default_group_ends_protection_and_nothing_else(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=0)
    assert run.status == 0, run.told()
    assert "the script has destroyed its default process group and made another one" in run.stderr, run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", few(1, ["kill:rank=1,step=8,phase=after-step", "kill:rank=0,step=5,phase=after-step"])
)
def test_a_rank_is_replaced_before_the_first_one_is_destroyed(
    fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [fault], 1)
