"""Models, optimizers, loaders and process groups that are made anew in each iteration of an outer loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "made_anew.py", 2


@pytest.mark.parametrize("what", [(), ("groups",)], ids=["models", "models and groups"])
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(["kill:rank=0,step=4,phase=after-step", "kill:rank=1,step=11,phase=backward"], id="each fold"),
        pytest.param(
            ["kill:rank=0,step=8,phase=after-step", "kill:rank=1,step=16,phase=after-step"], id="between folds"
        ),
        pytest.param(["kill:rank=1,step=9,phase=forward", "kill:rank=0,step=13,phase=after-step"], id="second fold"),
        pytest.param(["kill:rank=0,step=18,phase=gate", "kill:rank=1,step=22,phase=after-step"], id="third fold"),
    ],
)
def test_a_rank_is_replaced_in_any_fold(
    faults: list[str], what: tuple[str, ...], undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, *what, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, *what, ranks=RANKS), RANKS, faults, len(faults))
