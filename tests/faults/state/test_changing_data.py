"""A data set that training changes is, for a new process, as the lost rank had it; or no rank is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

RANKS, SCRIPT = 2, "changing_data.py"
FAULTS = ("kill:rank=0,step=8,phase=backward", "kill:rank=1,step=13,phase=after-step")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    few(1, ["opened", "workers", "variable", "processes", "parts", "curriculum", "strength", "within", "labels"]),
)
def test_a_new_process_goes_on_with_the_data_as_training_has_changed_it(
    kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, list(FAULTS), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "why"),
    few(
        1,
        [
            ("records", "records: training changes it, and it cannot be carried: no rank can be replaced"),
            ("thread", "samples: a thread of its own works on it, and it changes while training runs"),
        ],
    ),
)
def test_no_rank_is_replaced_where_the_data_cannot_be_carried(kind: str, why: str, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=1, inject=["kill:rank=1,step=13,phase=backward"])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    reports = [event for event in run.named("rank_report") if event["rank"] == 1]
    assert any(why in text for text in reports[-1]["unprotected"]), reports[-1]
