"""A wrapper that a step makes and later ones use is in no new process: that is said before a rank is lost."""

from __future__ import annotations

from pathlib import Path

from support.relay_run import relay

SCRIPT, RANKS = "wrapped_late.py", 2


def test_no_rank_is_replaced_where_an_earlier_step_has_wrapped_the_model(tmp_path: Path) -> None:
    fault = "kill:rank=1,step=9,phase=backward"
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=[fault])
    assert (run.status, run.faults(), run.named("migration_started")) == (137, [fault], []), run.told()
    reason = run.named("job_finished")[0]["reason"]
    assert "keeps the wrapper for later ones, in which a new process would have none" in reason
    assert f"{SCRIPT}:" in reason
