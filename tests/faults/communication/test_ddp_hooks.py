"""What stands between a data parallel backward and the communicator is there again with the new one."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "hooks.py", 2


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    few(
        1,
        [
            ("fp16", "kill:rank=1,step=7,phase=backward"),
            ("own", "kill:rank=0,step=7,phase=backward"),
            ("power", "kill:rank=0,step=9,phase=backward"),
            ("closure", "kill:rank=1,step=7,phase=backward"),
            ("method", "kill:rank=0,step=8,phase=optimizer"),
            ("power", "kill:rank=1,step=9,phase=after-step"),
            ("warm", "stop:rank=1,step=10,phase=forward"),
            ("by-node", "kill:rank=1,step=9,phase=backward"),
            ("static", "kill:rank=0,step=10,phase=optimizer"),
            ("builtin", "kill:rank=0,step=7,phase=gate"),
            ("static", "kill:rank=1,step=7,phase=backward"),
            ("static", "kill:rank=0,step=1,phase=backward"),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [fault], 1)


@only_in_long
@pytest.mark.parametrize("kind", few(1, ["static", "own", "power", "closure", "method"]))
def test_a_rank_is_moved(kind: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = "planned:rank=1,step=8"
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault], planned_at=[8], environment={"STEP_S": "0.08"})
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [f"{fault},phase=forward"], 1)


@only_in_long
@pytest.mark.parametrize(
    "fault",
    few(
        1,
        [
            "kill:rank=1,step=2,phase=backward",
            "kill:rank=0,step=3,phase=optimizer",
            "kill:rank=2,step=2,phase=gate",
            "kill:rank=0,step=3,phase=forward",
            "kill:rank=1,step=4,phase=data",
        ],
    ),
)
def test_a_loss_in_the_first_steps_of_a_static_graph(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "static", ranks=3, inject=[fault])  # of three ranks: sums depend on the buckets
    assert_unharmed(run, undisturbed(SCRIPT, "static", ranks=3), 3, [fault], 1)


def test_a_hook_with_state_that_nobody_sees_is_refused(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "hidden", ranks=RANKS, inject=["kill:rank=1,step=7,phase=backward"])
    assert run.status not in (0, 76), run.told()
    assert "may keep state that is not seen" in run.told()
    assert run.committed() == []
