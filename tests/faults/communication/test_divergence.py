"""Ranks that do not hold the same any more after a migration: the job ends before anything is saved as if all were well."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.relay_run import relay


@pytest.mark.core
def test_a_rank_that_goes_its_own_way_after_it_was_replaced_stops_the_job_with_all_states_saved(tmp_path: Path) -> None:
    run = relay(tmp_path, "own_way.py", ranks=2, inject=["kill:rank=1,step=8,phase=backward"])
    assert run.status == 77, run.told()
    (verdict,) = run.named("health_verdict")
    assert verdict["action"] == "stop", run.told()
    assert "ranks 0, 1 differ in module0." in verdict["reason"], run.told()
    assert "after step 11" in verdict["reason"], run.told()
    (saved,) = run.named("checkpoint_saved")
    held = [path.read_bytes() for path in sorted(Path(saved["directory"]).glob("**/tensors-*.bin"))]
    assert len(held) == 2, sorted(Path(saved["directory"]).glob("**/*"))
    assert held[0] != held[1]
