"""A step that is done again must not do twice what cannot be undone, whether torch has counted it or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "uneven.py", 3
FAULT = "kill:rank=1,step=10,phase=backward"


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("what", few(1, ["data-before", "reduce-before"]))
def test_writes_that_torch_does_not_count_go_back_with_the_step(
    what: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Each step makes them, so they are known before one is done again."""
    run = relay(tmp_path, SCRIPT, what, ranks=RANKS, inject=[FAULT])
    assert_unharmed(run, undisturbed(SCRIPT, what, ranks=RANKS), RANKS, [FAULT], 1)


@only_in_long
def test_the_first_such_write_is_not_done_twice(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "data-once", ranks=RANKS, inject=[FAULT])
    assert run.faults() == [FAULT], run.told()
    assert run.status != 0, run.told()
    assert "written to by a step that is done again, past torch's count, before its optimizer step" in run.told()
    assert "0.weight" in run.told()
    assert list(run.out.iterdir()) == []
