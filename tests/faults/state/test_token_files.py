"""Tokens of one file after the other, in arrays that nobody can write to: small ones are carried, others bar replacement."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "token_files.py", 2
FAULT = "kill:rank=1,step=13,phase=data"
LARGE, TOO_LARGE = "60000", "5000000"


@pytest.mark.slow
@pytest.mark.parametrize("count", few(1, [LARGE, "900"]))
def test_a_new_process_goes_on_in_the_file_that_is_in_use(count: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, count, ranks=RANKS, inject=[FAULT])
    assert_unharmed(run, undisturbed(SCRIPT, count, ranks=RANKS), RANKS, [FAULT], 1)


@pytest.mark.slow
def test_no_rank_is_replaced_where_it_is_too_large(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, TOO_LARGE, ranks=RANKS, spares=1, inject=[FAULT])
    assert run.status != 0, run.told()
    assert run.committed() == [], run.told()
    reports = [event for event in run.named("rank_report") if event["rank"] == 1]
    assert any("training has put it there" in text for text in reports[-1]["unprotected"]), reports[-1]
