"""What others read ahead behind a generator of set-up: a new process asks its own generator as often as the lost rank has."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "read_ahead.py", 2
FAULTS = ("kill:rank=0,step=6,phase=after-step", "kill:rank=1,step=11,phase=backward")


@pytest.mark.parametrize("kind", ["pool", "process", "counted"])
def test_a_rank_is_replaced_whose_batches_others_read_ahead(
    kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, spares=2, inject=FAULTS)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, list(FAULTS), 2)


def test_no_rank_is_replaced_where_training_tells_the_other_process_something(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "answered", ranks=RANKS, inject=FAULTS[:1], options=["--buddy-every=0"])
    assert run.faults() == [*FAULTS[:1]], run.told()
    assert run.committed() == [], run.told()
    assert "what another process sends" in str(run.named("coverage")), run.told()
    assert run.named("incident") == [], "no promise was broken"


def test_no_rank_is_replaced_where_two_generators_draw_from_the_same(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, "shared", ranks=RANKS, inject=FAULTS[1:], options=["--buddy-every=0"])
    assert run.faults() == [*FAULTS[1:]], run.told()
    assert run.committed() == [], run.told()
    assert "what it yields next cannot be captured" in str(run.named("coverage")), run.told()
    assert run.named("incident") == [], "no promise was broken"
