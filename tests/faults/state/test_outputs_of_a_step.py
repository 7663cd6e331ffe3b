"""Large parts of what a step has made, which nobody reads behind its update, do not keep a lost rank from being replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

RANKS, SCRIPT = 2, "outputs.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    few(
        1,
        [
            ("read", "kill:rank=0,step=11,phase=after-step"),
            ("deleted", "kill:rank=1,step=9,phase=optimizer"),
            ("read", "kill:rank=1,step=9,phase=optimizer"),
            ("deleted", "kill:rank=0,step=12,phase=data"),
        ],
    ),
)
def test_a_rank_that_is_lost_behind_its_gate_needs_no_logits(
    kind: str, fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [fault], 1)
    gaps = [gap["kind"] for event in run.named("coverage") for gap in event["coverage"]["gaps"]]
    assert "large-fresh-tensor" not in gaps, run.told()
