"""A script that keeps its gradients across optimizer steps is told that nobody can take over, and is not carried on wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.relay_run import relay

SCRIPT, RANKS = "kept_gradients.py", 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("kill:rank=1,step=2,phase=forward", id="before that is known"),
        pytest.param("kill:rank=1,step=6,phase=forward", id="after"),
    ],
)
def test_no_rank_is_replaced(fault: str, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=1, inject=[fault])
    assert [event["fault"] for event in run.events if event["name"] == "fault_injected"] == [fault], run.told()
    assert run.status != 0, run.told()
    assert "gradients are kept across optimizer steps" in run.stderr, run.told()
    assert not list(run.out.glob("*")), run.told()


def test_without_a_fault_it_trains_on_unprotected(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=1)
    assert run.status == 0, run.told()
    assert "no longer protected: UnsupportedError: gradients are kept across optimizer steps" in run.stderr, run.told()
