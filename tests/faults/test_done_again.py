"""A step that is done again must not do twice what cannot be undone, whether torch has counted it or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cells import few
from support.relay_run import relay

FAULT = "kill:rank=1,step=10,phase=backward"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "reason"),
    few(
        1,
        [
            ("data-before", "written to by a step that is done again, past torch's count, before its optimizer step"),
            ("reduce-before", "written to by a step that is done again, past torch's count, before its optimizer step"),
        ],
    ),
)
def test_a_write_that_torch_does_not_count_is_not_done_twice(what: str, reason: str, tmp_path: Path) -> None:
    run = relay(tmp_path, "uneven.py", what, ranks=3, inject=[FAULT])
    assert run.faults() == [FAULT], run.told()
    assert run.status != 0, run.told()
    assert reason in run.told()
    assert "0.weight" in run.told()
    assert list(run.out.iterdir()) == []
