"""Steps that read, behind their update, what they write to there: a moment of the optimizer that is pruned and logged."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "logged_moments.py", 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults"),
    few(
        1,
        [
            ("pruned", ["kill:rank=1,step=9,phase=after-step", "kill:rank=0,step=17,phase=after-step"]),
            ("data", ["kill:rank=0,step=10,phase=after-step", "kill:rank=1,step=18,phase=after-step"]),
            ("after", ["kill:rank=1,step=12,phase=after-step"]),
        ],
    ),
)
def test_a_rank_is_replaced(kind: str, faults: list[str], undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, faults, len(faults))
    assert "late-read" not in {gap["kind"] for report in run.named("rank_report") for gap in report["gaps"]}, run.told()


@pytest.mark.slow
def test_it_is_said_before_where_that_is_too_much_to_be_copied(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "large", ranks=RANKS, inject=["kill:rank=1,step=9,phase=after-step"])
    assert run.status == 75, run.told()
    (fault,) = run.named("fault_injected")
    told = [report["gaps"] for report in run.named("rank_report") if report["time_s"] < fault["time_s"]]
    gaps = [gap for report in told for gap in report if gap["kind"] == "late-read"]
    assert gaps, run.told()
    assert gaps[0]["effect"] == "behind-update"
    assert "exp_avg, which it writes to" in gaps[0]["text"]
    assert gaps[0]["file"].endswith(SCRIPT)
    assert "a promise was not kept" not in run.stderr, run.told()
