"""Process groups that training makes: a joiner has them, and a step that is done again makes them again under the same name."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "groups_in_training.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "faults"),
    few(
        1,
        [
            pytest.param("before", ["kill:rank=1,step=8,phase=backward"], id="the step that makes it is done again"),
            pytest.param("before", ["kill:rank=0,step=8,phase=after-step"], id="a joiner makes it in that step"),
            pytest.param("after", ["kill:rank=1,step=8,phase=after-step"], id="a joiner makes it behind the update"),
            pytest.param(
                "after", ["kill:rank=0,step=9,phase=after-step", "kill:rank=1,step=13,phase=backward"], id="it is kept"
            ),
        ],
    ),
)
def test_a_group_that_training_has_made_is_there_after_a_loss(
    where: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, where, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, where, ranks=RANKS), RANKS, faults, len(faults))
